"""Peak and growth of the memory of PyTorch's allocator inside ranges, from its own statistics.

The allocator keeps one peak since it was last reset. To know the peak of a range it is reset when the range opens and
closes; so that the program goes on reading the peak it would have read, what is lost by that is kept here and put back
into the statistics whenever somebody asks for them. All these calls are of the host alone.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any, Callable

from . import log

UNKNOWN = -(1 << 62)
# How torch reads and resets them: the older pair, and that of torch.accelerator.
_PAIRS = (
    ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
    ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
)


class Memory:
    """The allocator's statistics, shared between the program and us."""

    def __init__(self, read: Callable[[int], Any], reset: Callable[[int], Any], device: Callable[[], int]) -> None:
        self._read, self._reset, self._device = read, reset, device
        self._lock = threading.RLock()
        self._open: list[list[int]] = []  # device, bytes asked for at the beginning, most bytes in use so far
        self._lost: dict[int, dict[tuple[str, str], int]] = {}  # peaks that the program would still see

    @staticmethod
    def of(torch: Any) -> Memory | None:
        """None where torch has no such allocator."""
        inner = torch._C
        read, reset = (getattr(inner, name, None) for name in _PAIRS[0])
        device = getattr(inner, "_cuda_getDevice", None)
        if read is None or reset is None or device is None:
            return None
        memory = Memory(read, reset, device)
        for names in _PAIRS:
            for name, shared in zip(names, (memory.shown, memory.forgetting)):
                if hasattr(inner, name):
                    setattr(inner, name, shared(getattr(inner, name)))
        return memory

    # -- for ranges -------------------------------------------------------------------------------

    def begin(self) -> list[int] | None:
        """To be given to `end`; None where nothing can be said."""
        try:
            with self._lock:
                device = self._device()
                now, requested = self._take(device)
                opened = [device, requested, now]
                self._open.append(opened)
                return opened
        except Exception as error:  # another allocator
            log.failed("reading the memory of the GPU", error, of="ranges")
            return None

    def end(self, opened: list[int]) -> tuple[int, int]:
        """The most bytes in use since then, and how many more are asked for now."""
        try:
            with self._lock:
                _, requested = self._take(opened[0])
                self.forget(opened)
                return opened[2], requested - opened[1]
        except Exception:  # the program may have put in another allocator, or lost the GPU: it is not measured
            self.forget(opened)
            return UNKNOWN, UNKNOWN

    def forget(self, opened: list[int] | None = None) -> None:
        """`opened` did not open after all; without it, none of them is ours (a forked child)."""
        self._open = [other for other in self._open if opened is not None and other is not opened]

    def mapped(self) -> int | None:
        """How often memory was taken from the system; None where the allocator does not say."""
        try:
            return int(self._read(self._device())["num_device_alloc"])
        except Exception:  # as above
            return None

    def _take(self, device: int) -> tuple[int, int]:
        """Bytes in use now, and those of them that were asked for: the rest is of blocks that were not divided.

        The peak so far goes to all that is open, and the allocator looks for a new one.
        """
        stats = self._read(device)
        self._keep(device, stats)
        self._reset(device)
        used = stats["allocated_bytes"]["all"]["current"]
        return used, stats["requested_bytes"]["all"]["current"] if "requested_bytes" in stats else used

    def _keep(self, device: int, stats: Any) -> None:
        peak = stats["allocated_bytes"]["all"]["peak"]
        for opened in self._open:
            if opened[0] == device and peak > opened[2]:
                opened[2] = peak
        lost = self._lost.setdefault(device, {})
        for name, pool, values in _peaks(stats):
            if values["peak"] > lost.get((name, pool), 0):
                lost[name, pool] = values["peak"]

    # -- for the program --------------------------------------------------------------------------

    def shown(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """The statistics as they would be without us."""

        @wraps(read)
        def statistics(device: Any, *more: Any) -> Any:
            with self._lock:
                stats = read(device, *more)
                lost = self._lost.get(device, {})
                for name, pool, values in _peaks(stats) if lost else ():
                    values["peak"] = max(values["peak"], lost.get((name, pool), 0))
                return stats

        return statistics

    def forgetting(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        """A reset by the program: what is open keeps its peak."""

        @wraps(reset)
        def reset_peaks(device: Any, *more: Any) -> Any:
            with self._lock:
                if self._open:
                    self._keep(device, self._read(device))
                self._lost.pop(device, None)
                return reset(device, *more)

        return reset_peaks


def _peaks(stats: Any) -> list[tuple[str, str, Any]]:
    """Every statistic that has a peak: most are there for each pool of the allocator."""
    found = []
    for name, values in stats.items() if isinstance(stats, dict) else ():
        if isinstance(values, dict):
            pools = [("", values), *((pool, inner) for pool, inner in values.items() if isinstance(inner, dict))]
            found += [(name, pool, inner) for pool, inner in pools if "peak" in inner]
    return found
