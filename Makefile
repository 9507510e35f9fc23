# Everything a fresh clone needs. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
TORCH_STAMP := $(VENV)/.stamp-torch
# What models run on. One exact version: a range would let pip fetch another build, gigabytes of it.
TORCH ?= torch==2.13.0
# Where `make profile` writes its report; by default a new folder below tmp/profile-output.
PROFILE_OUT ?=
# Workers of the test run; by default as many as keep two processors busy. All tests together wait for half of their
# time, for programs they have started; those of `make check` never do.
JOBS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Python keeps its byte code, whatever the environment says: else every worker and each of the hundreds of programs that
# tests start compiles what it imports, and pytest prepares each test file anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist worksteal
CHECKED := src tests benchmarks tools

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup profile check quick-tests test prepared-tests chromium lint bench answers faults cluster fuzz docs bundle lock audit clean

help:
	@echo 'make setup     set up .venv (Python 3.11 or 3.12; choose one with PYTHON=...); afterwards $(BIN)/llm-perf is there'
	@echo 'make profile   the main job: profiles a small LLM on the GPU; without one, a full report from a recording (PROFILE_OUT=...)'
	@echo 'make check     lint, and all tests that start no process, torch or browser: under a minute (JOBS=... workers)'
	@echo 'make test      set up, lint, run all tests (JOBS=... workers)'
	@echo 'make lint      ruff, mypy and the import contracts'
	@echo 'make bench     speed of `llm-perf report` and of its page, and load: ten million kernels, 64 ranks (LOAD_ARGS="--ranks 8" for less)'
	@echo 'make answers   what reports answer beside what an expert says: right, unsure, wrong (ANSWERS_ARGS="--shared DIR")'
	@echo 'make faults    everything that may go wrong in a run, and kills at random moments: what is survived (FAULTS_ARGS=...)'
	@echo 'make cluster   jobs of several ranks on a real Slurm and a real Ray, of two nodes each on this machine (installs Slurm on Debian, as root)'
	@echo 'make fuzz      ten thousand mutated inputs for every reader, ten times the random examples of every test (FUZZ_ARGS="--seed 2", "--count 500", "--minutes 60")'
	@echo 'make docs      the documentation as a site, in dist/site'
	@echo 'make bundle    dist/bundle: everything to install on a machine with no network (BUNDLE_PYTHON=3.11 for that one; WITH_NCU_REPORT=1: see docs/licences.md)'
	@echo 'make lock      renew requirements/: the exact files the bundle is made of, with hashes'
	@echo 'make audit     ask for known vulnerabilities of what the bundle is made of (needs a network)'
	@echo 'make clean     remove .venv, dist, caches and benchmark data; runs under tmp/ stay'

setup: $(STAMP)
	@:

# A name on PATH proves nothing: version managers put shims there that only print "command not found".
# So each candidate is run, and the first that answers as Python 3.11 or 3.12 with venv is taken.
$(STAMP): pyproject.toml
	@set -e; \
	usable='import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; \
	if [ -z '$(PYTHON)' ] && $(BIN)/python -c "$$usable" >/dev/null 2>&1; then \
		: 'keep the environment that is there'; \
	else \
		chosen=''; \
		for candidate in $(if $(PYTHON),'$(PYTHON)',python3.12 python3.11 python3); do \
			if "$$candidate" -c "$$usable" >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
		done; \
		if [ -z "$$chosen" ]; then \
			echo 'make setup: no usable Python found (tried: $(if $(PYTHON),$(PYTHON),python3.12 python3.11 python3)).' >&2; \
			echo 'Needed: Python 3.11 or 3.12 with the venv module (on Debian and Ubuntu: apt install python3.12-venv).' >&2; \
			echo 'If you have one elsewhere: make setup PYTHON=/path/to/python3.12' >&2; \
			exit 1; \
		fi; \
		echo "Setting up $(VENV) with $$("$$chosen" --version)"; \
		"$$chosen" -m venv --clear $(VENV); \
	fi; \
	$(PIP) -e '.[dev]'; \
	touch $@

# Only models need torch: `make profile` where there is a GPU, and the tests. pip would compile all of torch and
# transformers, of which a run imports a small part. This package is not installed again: `lint` looks at it meanwhile.
$(TORCH_STAMP): $(STAMP)
	@$(BIN)/python -c 'import torch, transformers' >/dev/null 2>&1 || $(PIP) --no-compile '$(TORCH)'
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["torch"], sep="\n")' \
		| $(PIP) --no-compile -r /dev/stdin
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch, transformers'
	@touch $@

# With a GPU: the built-in small LLM under both profilers. Without one, `demo` builds the report from the recording
# that ships with the package, and says so.
profile: setup
	@if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then \
		$(MAKE) --no-print-directory $(TORCH_STAMP) \
		&& $(BIN)/python -m llm_perf_opt.runners.deep_profile_runner $(if $(PROFILE_OUT),'hydra.run.dir=$(PROFILE_OUT)'); \
	else \
		echo 'There is no NVIDIA GPU on this machine to profile on.'; \
		$(BIN)/llm-perf demo --out '$(or $(PROFILE_OUT),tmp/profile-output/demo)'; \
	fi

# What one runs after every change: needs neither torch nor a browser. tests/guard.py keeps the markers true.
# The linters beside the tests: mypy takes ten seconds of one processor where its cache is empty.
check: setup
	@$(MAKE) --no-print-directory -j2 lint quick-tests

quick-tests: setup
	$(PYTEST) -n $(or $(JOBS),2) --hypothesis-profile quick -m 'not process and not torch and not browser and not slow'

# Side by side, as each of them leaves the others a processor. Tests import a small part of what is installed: it is
# compiled by the first that does.
test: PIP += --no-compile
test: setup
	@$(MAKE) --no-print-directory -j4 lint $(TORCH_STAMP) chromium prepared-tests
# Neighbours stay together, as they share what they prepare; who has nothing left to do takes over some of the others.
	$(PYTEST) -n $(or $(JOBS),4)

# pytest rewrites every test file when it is first imported: once, and not in each of the workers at the same time.
prepared-tests: setup
	@$(PYTEST) -n 0 --collect-only -m 'not torch and not browser' >/dev/null || true  # the tests themselves say what is wrong

chromium:
	@sh tools/install_chromium.sh || true

lint: setup
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/bench_report.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/bench_html.py
	$(BIN)/python benchmarks/load.py $(LOAD_ARGS)

answers: setup
	$(BIN)/python benchmarks/answers.py $(ANSWERS_ARGS)

fuzz: setup
	$(BIN)/python benchmarks/fuzz.py $(FUZZ_ARGS)
	LLM_PERF_ALL_RECORDINGS=1 $(BIN)/python -m pytest -q -p no:xdist tests/test_scrub.py -k public_recording
	$(BIN)/python -m pytest -q -p no:xdist --hypothesis-profile thorough $$(grep -lE '@(examples|given)\(' tests/test_*.py)

faults: setup
	$(BIN)/python benchmarks/faults.py $(FAULTS_ARGS)
	$(BIN)/python benchmarks/safe_hands.py $(SAFE_HANDS_ARGS)

# Ray in an environment of its own: it needs other versions of much that is here. Jobs of sweeps run in it.
cluster: $(TORCH_STAMP)
	@command -v slurmctld >/dev/null || [ -x /usr/sbin/slurmctld ] || [ "$$(id -u)" != 0 ] || \
		DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends slurmctld slurmd slurm-client munge openmpi-bin mpich
	@[ -x $(VENV)/ray/bin/ray ] || { $(BIN)/python -m venv $(VENV)/ray && $(VENV)/ray/bin/python -m pip install --quiet --disable-pip-version-check 'ray[default]'; }
	@$(VENV)/ray/bin/python -c 'import llm_perf_opt, torch' 2>/dev/null || $(VENV)/ray/bin/python -m pip install --quiet --disable-pip-version-check --no-compile '$(TORCH)' -e '.[torch]'
	@[ -x $(VENV)/ray/bin/kubernetes-validate ] || $(VENV)/ray/bin/python -m pip install --quiet --disable-pip-version-check kubernetes-validate
	@$(BIN)/python -c 'import hydra_plugins.hydra_submitit_launcher' 2>/dev/null || $(PIP) hydra-submitit-launcher
	$(VENV)/ray/bin/kubernetes-validate --strict docs/submit/kubernetes.yaml
	$(BIN)/python tools/cluster.py --ray $(VENV)/ray/bin/python $(CLUSTER_ARGS)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir dist/site
	$(BIN)/python tools/gallery.py pages dist/site/gallery

bundle: setup
	$(BIN)/python tools/bundle.py $(BUNDLE_PYTHON)

lock: setup
	$(BIN)/python tools/lock_bundle.py

# In an environment of its own: an auditor must not change what it looks at.
audit: setup
	$(BIN)/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	for lock in requirements/bundle-*.txt; do $(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement "$$lock" || exit 1; done

clean:
	rm -rf $(VENV) dist build benchmarks/data .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
