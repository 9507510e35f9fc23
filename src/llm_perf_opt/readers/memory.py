"""Is there memory enough for a recording? Asked before it is read: a machine that swaps or kills tells nobody why."""

from __future__ import annotations

import resource
from pathlib import Path

from llm_perf_opt.errors import UserError

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int | None:
    """Memory this process may still take: of the machine, its container and its own limit; None where nothing says."""
    found = [_number_after("MemAvailable:", Path("/proc/meminfo"), 1024), _of_container(), _of_limit()]
    known = [amount for amount in found if amount is not None]
    return min(known) if known else None


def refuse_if_too_large(source: str, needed: int, what: str) -> None:
    """Say how much a recording needs where that is more than there is. `what`: the reason, in words."""
    free = free_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{source} needs about {needed / 1e9:.1f} GB of memory ({what}), but only {free / 1e9:.1f} GB are free.",
            "Use a machine with more memory, or record a shorter part: nsys profile --duration SECONDS, or --capture-range.",
        )


def _of_container() -> int | None:
    limit = _number(_CGROUP / "memory.max")
    used = _number(_CGROUP / "memory.current")
    if limit is None or used is None:
        return None
    # Files in the cache make room when memory is needed.
    cache = _number_after("inactive_file", _CGROUP / "memory.stat", 1) or 0
    return max(limit - used + cache, 0)


def _of_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    taken = _number_after("VmSize:", Path("/proc/self/status"), 1024)
    return max(limit - (taken or 0), 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max": there is no limit
        return None


def _number_after(word: str, path: Path, unit: int) -> int | None:
    try:
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(word):
                return int(line.split()[1]) * unit
    except (OSError, ValueError, IndexError):
        pass
    return None
