"""Jobs of a sweep that run at once take turns on a GPU: two profiled programs on one would time each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator

from llm_perf_opt.files import cache_folder


@contextlib.contextmanager
def gpu_slot(device: str) -> Iterator[None]:
    """Hold the GPU that a device such as `cuda:1` is, as soon as no other job of this user on this machine does."""
    if not device.startswith("cuda"):
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a file system without locks
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / f"gpu-{_name(device)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _name(device: str) -> str:
    """What the GPU is called on this machine, whatever a job may see of it."""
    number = device.partition(":")[2] or "0"
    seen = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    found = seen[int(number)] if number.isdigit() and int(number) < len(seen) and seen[int(number)] else number
    return re.sub(r"[^A-Za-z0-9-]", "_", found)[:80]
