"""One way to start both runners: overrides checked, Hydra composed, exit codes handed out.

Hydra turns every error of a job into a traceback and exit code 1, and gives no result of a sweep's jobs
back. So a job notes its exit code in a file, which also crosses the process borders of joblib.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.options import KEYS, checked_values, default_config, flatten, in_keys
from llm_perf_opt.process import interrupts
from llm_perf_opt.regions.names import printable
from llm_perf_opt.runners.gpu_slot import gpu_slot
from llm_perf_opt.runners.overrides import normalised, unknown_key

Job = Callable[[dict[str, Any], Path], int]
_OWN_FILES = ("--config-", "-cd", "-cn", "-cp")
_CODES, _FULL_ERROR = "LLM_PERF_EXIT_CODES", "HYDRA_FULL_ERROR"


_typed: list[str] = []  # the overrides, before Hydra gets them


def start(job: Job, words: Sequence[str] | None = None) -> int:
    """Run a job for a command line of overrides, or several for a sweep; the exit code."""
    words = _typed[:] = list(sys.argv[1:] if words is None else words)
    try:
        arguments = normalised(words)
    except UserError as error:
        print_error(error)
        return int(error.code)
    register()
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as folder:
        interrupts.at_exit.append(lambda: shutil.rmtree(folder))
        codes = Path(folder) / "codes"
        os.environ[_CODES] = str(codes)
        os.environ[_FULL_ERROR] = "1"  # errors come to us instead of being printed as tracebacks
        old = sys.argv
        sys.argv = [old[0], *arguments]
        try:
            hydra.main(version_base="1.3", config_path="pkg://llm_perf_opt.conf", config_name="config")(_Task(job))()
        except SystemExit as ended:  # Hydra has printed its help, or what was wrong with its options
            return int(ExitCode.BAD_INPUT) if ended.code else int(ExitCode.DONE)
        except yaml.YAMLError as error:
            said = " ".join(str(error).split())
            print_error(
                UserError(f"A configuration file is not YAML: {said}.", "Correct it, or choose another preset.")
            )
            return int(ExitCode.BAD_INPUT)
        except (HydraException, OmegaConfBaseException) as error:
            fix = "Values with spaces, commas or brackets are quoted twice, as in 'KEY=\"a value\"' or 'KEY=[a,b]'."
            if any(word.startswith(_OWN_FILES) for word in words):
                fix = "Check the folder and the names of --config-dir, --config-path and --config-name."
            said = " ".join(line.strip() for line in str(error).splitlines()[:2] if line.strip())
            print_error(UserError(f"Hydra cannot make a configuration of this: {said}", fix))
            return int(ExitCode.BAD_INPUT)
        except UserError as error:  # of a launcher
            print_error(error)
            return int(error.code)
        except OSError as error:  # a job answers for its own; this one is Hydra making the run directory
            where = f"The run directory {error.filename} cannot be created: {error.strerror}."
            print_error(
                UserError(where, "Choose another with hydra.run.dir=FOLDER (hydra.sweep.dir=FOLDER for a sweep).")
            )
            return int(ExitCode.BAD_INPUT)
        except KeyboardInterrupt:
            print("Interrupted.", file=sys.stderr)
            return int(ExitCode.INTERRUPTED)
        finally:
            interrupts.at_exit.clear()
            sys.argv = old
            os.environ.pop(_CODES, None)
        return _worst(codes)


class _Task:
    """A job as Hydra calls it; a class, because joblib has to send it to another process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._typed = list(_typed)
        # Hydra asks functions for these.
        self.__name__ = getattr(job, "__name__", "job")
        self.__module__ = job.__module__

    def __call__(self, config: DictConfig) -> int:
        interrupts.raise_in_order()  # until now there was nothing to lose
        _typed[:] = self._typed
        # Neither is for the program that is profiled.
        ours = {name: os.environ.pop(name) for name in (_CODES, _FULL_ERROR) if name in os.environ}
        try:
            code = self._run(config)
        finally:
            os.environ.update(ours)
        # On another machine, where submitit runs a job, there is no such file: its manifest says how it ended.
        note_code(code)
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt  # the other jobs of a sweep are not wanted any more
        return code

    def _run(self, config: DictConfig) -> int:
        run = Path(HydraConfig.get().runtime.output_dir)
        try:
            values = checked(config)
            in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
            with gpu_slot(str(values["device"]) if in_sweep else ""):
                return self._job(values, run)
        except UserError as error:
            print_error(error)
            return int(error.code)
        except OSError as error:
            print_error(UserError(f"The run failed: {error.strerror or error} ({error.filename}).", f"See {run}"))
            return int(ExitCode.NOTHING_CAPTURED)
        except KeyboardInterrupt:
            print("Interrupted.", file=sys.stderr)
            return int(ExitCode.INTERRUPTED)
        finally:
            with contextlib.suppress(OSError):
                run.rmdir()  # Hydra made it; a run that never began leaves no empty folder


def typed(module: str) -> list[str]:
    """What the user typed to start a runner."""
    return ["python", "-m", module, *_typed]


def note_code(code: int) -> None:
    """For `start`, which gives the worst of all jobs back."""
    with contextlib.suppress(OSError, KeyError), Path(os.environ[_CODES]).open("a", encoding="ascii") as file:
        file.write(f"{code}\n")


def start_folder() -> Path:
    """Where the command was typed: with hydra.job.chdir the working directory is the run's."""
    return Path(HydraConfig.get().runtime.cwd)


def register() -> None:
    """Give Hydra the table of keys and where runs go."""
    ConfigStore.instance().store(name="keys", node=OmegaConf.create(default_config()))
    OmegaConf.register_new_resolver("llm_perf_fresh_run", fresh_run, replace=True, use_cache=True)


def fresh_run() -> str:
    """A folder of its own for this run; made at once, so that two runs of the same second have two."""
    from llm_perf_opt.rundir.directory import fresh_folder

    return str(fresh_folder())


def checked(config: DictConfig) -> dict[str, Any]:
    """The resolved configuration as plain values, each of the kind its key asks for."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"The configuration cannot be resolved: {str(error).splitlines()[0]}.") from error
    assert isinstance(plain, dict)
    values = {str(name): value for name, value in plain.items()}
    for key, _ in flatten(values):  # a preset or a file of the user's may hold anything
        if key not in KEYS and not key.endswith(".description"):
            raise unknown_key(key)
    return checked_values(values)


def _worst(codes: Path) -> int:
    """The first code that is not 0; no code at all: Hydra only printed something, as with --cfg."""
    lines = codes.read_text(encoding="ascii").split() if codes.exists() else []
    return next((int(line) for line in lines if int(line)), int(ExitCode.DONE))


def print_error(error: UserError) -> None:
    """Cause and fix, for the person at the terminal."""
    print(f"llm-perf: {printable(in_keys(error.message))}", file=sys.stderr)
    if error.fix:
        print(f"  → {printable(in_keys(error.fix))}", file=sys.stderr)
