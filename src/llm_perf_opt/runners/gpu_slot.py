"""Jobs of a sweep that run at once take turns on a GPU: two profiled programs on one would time each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from llm_perf_opt.files import cache_folder


@contextlib.contextmanager
def gpu_slot(device: str) -> Iterator[None]:
    """Hold the GPU that a device such as `cuda:1` is, as soon as no other job of this user on this machine does.

    Nodes of a cluster often share the home folder, and with it the locks: the machine is in their names.
    """
    if not device.startswith("cuda"):
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a file system without locks
            cache_folder().mkdir(parents=True, exist_ok=True)
            handle = os.open(lock_file(device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def lock_file(device: str) -> Path:
    """Of the GPU as this machine calls it, whatever a job may see of it."""
    number = device.partition(":")[2] or "0"
    seen = _listed("CUDA_VISIBLE_DEVICES")
    # Where Slurm shows a job its own GPUs only, each job counts them from 0.
    given = _listed("SLURM_STEP_GPUS") or _listed("SLURM_JOB_GPUS")
    if len(given) == len(seen):
        seen = given
    found = seen[int(number)] if number.isdigit() and int(number) < len(seen) and seen[int(number)] else number
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{os.uname().nodename}-{found}")[:120]
    return cache_folder() / f"gpu-{name}.lock"


def _listed(variable: str) -> list[str]:
    return [one for part in os.environ.get(variable, "").split(",") if (one := part.strip())]
