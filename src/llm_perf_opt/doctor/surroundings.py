"""Packages, disk, limits, and what a recording would carry away."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.doctor.checks import BOTH, COUNTERS, Check, Purpose
from llm_perf_opt.doctor.gpu import has_gpu
from llm_perf_opt.doctor.machine_facts import Facts, Folder, Package

_LITTLE, _TOO_LITTLE = 5_000_000_000, 500_000_000
_SMALL_HOME, _SMALL_SHARED = 50_000_000, 60_000_000
_FEW_FILES = 1024
_PACKAGE_WHY = {
    "ncu-report": "it reads the reports of ncu: without it counters cannot be reported; NVIDIA's, under NVIDIA's licence",
    "nvtx": "the built-in models mark their stages with it; programs that use torch.cuda.nvtx do not need it",
    "hydra-core": "the runners (python -m llm_perf_opt.runners…) are built on it",
}
_ROLES = {
    "working folder": ("recordings go there", "cd to another folder, or give one with --out"),
    "temporary folder": ("nsys writes its raw stream there, which can be gigabytes", "export TMPDIR=/path/with/space"),
    "home folder": ("ncu writes its section files to $HOME/Documents", "export HOME=/path/that/can/be/written"),
    "shared memory": ("data loaders and collectives of PyTorch need it", "docker run --shm-size 8g …"),
}


def check_packages(facts: Facts) -> list[Check]:
    """What Python must have."""
    return [_package(package) for package in facts.packages if package.name in _PACKAGE_WHY]


def check_models(facts: Facts) -> list[Check]:
    """PyTorch and transformers: needed only to run a model of this package."""
    found = next((p.version for p in facts.packages if p.name == "transformers"), "")
    text = found or "not installed; only the built-in models need it (pip install transformers)"
    return [_torch(facts), *([] if found == "" or facts.torch.version is None else [Check("transformers", "ok", text)])]


def _torch(facts: Facts) -> Check:
    torch, name = facts.torch, "PyTorch"
    built = f"{torch.version}, {f'built for CUDA {torch.cuda}' if torch.cuda else 'built without CUDA'}"
    why = "programs that use PyTorch would run on the CPU or fail"
    fix = "python -c 'import torch; print(torch.zeros(1).cuda())'"
    if torch.version is None:
        return Check(name, "ok", "not installed; only the built-in models need it (pip install torch)")
    if torch.problem:
        return Check(name, "warning", f"{torch.version}: {torch.problem}", why, fix)
    if not has_gpu(facts):
        return Check(name, "ok", built)
    if torch.cuda is None:
        install = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
        return Check(name, "warning", built, why, install)
    if not torch.sees_gpu:
        return Check(name, "warning", f"{built}, sees no GPU", why, fix)
    return Check(name, "ok", f"{built}, sees the GPU")


def check_folders(facts: Facts) -> list[Check]:
    """Room and permission to write."""
    return [_folder(folder) for folder in facts.folders if folder.exists or folder.role != "shared memory"]


def check_limits(facts: Facts) -> Iterator[Check]:
    """What the system forbids this process; little of it matters to the profilers."""
    if facts.open_files is not None and facts.open_files < _FEW_FILES:
        text = f"this shell may open {facts.open_files} files at once"
        yield Check("open files", "warning", text, "nsys opens many files while it writes a report", "ulimit -n 4096")
    notes = {
        f"container ({facts.privileges.container})": facts.privileges.container,
        "seccomp filter on": facts.privileges.seccomp,
        f"ptrace_scope {facts.ptrace_scope}": facts.ptrace_scope,
        f"perf_event_paranoid {facts.perf_event_paranoid}": (facts.perf_event_paranoid or 0) > 2,
    }
    if any(notes.values()):
        text = ", ".join(note for note, applies in notes.items() if applies)
        yield Check("sandbox", "ok", f"{text}: matters only for CPU sampling, which is not used here")


def check_secrets(facts: Facts) -> list[Check]:
    """What a recording of nsys would carry away."""
    names = facts.secret_variables
    why = "a recording of nsys (.nsys-rep and .sqlite) contains the whole environment of the program, values included"
    if not names:
        text = "no variable of this shell looks like a secret; recordings of nsys contain the environment anyway"
        return [Check("secrets", "ok", text)]
    listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    text = f"{len(names)} variable{'s' if len(names) > 1 else ''} of this shell would be in every timeline: {listed}"
    fix = f"env {' '.join(f'-u {name}' for name in names[:12])} llm-perf profile …  (or, before you share a run: llm-perf scrub RUN)"
    return [Check("secrets", "warning", text, why, fix)]


def _package(package: Package) -> Check:
    why, blocks = _PACKAGE_WHY[package.name], COUNTERS if package.name == "ncu-report" else ()
    fix = f"python -m pip install {package.name}"
    if package.problem:
        again = f"python -m pip install --force-reinstall {package.name}"
        return Check(package.name, "error", f"does not load: {package.problem}", why, again, blocks)
    if package.version is None:
        return Check(package.name, "missing", "is not installed", why, fix, blocks)
    return Check(package.name, "ok", package.version)


def _folder(folder: Folder) -> Check:
    why, fix = _ROLES[folder.role]
    needed = folder.role in ("working folder", "temporary folder")
    blocks: tuple[Purpose, ...] = BOTH if needed else ()
    name = f"{folder.role} ({folder.path})"
    if not folder.exists or not folder.writable:
        text = "cannot be written" if folder.exists else "is not there"
        return Check(name, "error" if needed else "warning", text, why, fix, blocks)
    if folder.free_bytes is None:
        return Check(name, "ok", "can be written")
    text = f"{folder.free_bytes / 1e9:,.1f} GB free"
    little = {"home folder": _SMALL_HOME, "shared memory": _SMALL_SHARED}.get(folder.role, _LITTLE)
    if needed and folder.free_bytes < _TOO_LITTLE:
        return Check(name, "error", text, why, fix, blocks)
    if folder.free_bytes < little:
        return Check(name, "warning", f"only {text}", why, fix)
    return Check(name, "ok", text)
