"""Times every range of the process from inside, with no profiler: host clock, and CUDA events where a GPU is used.

Nothing waits for the GPU. An event is recorded on the stream in use when a range opens and when it closes, and read
long after; while a CUDA graph is captured none is recorded. Rows go to two files of the process in the folder
`LLM_PERF_TIMERS`: `<pid>-<start>.rows` (eight 64-bit integers each, see ROW) and `.names`, a line of JSON for each
name when it is first met.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from array import array
from typing import Any

from . import log
from .seen_ranges import Locked, SeenRanges

# Times are nanoseconds of the monotonic clock; GPU times are on the same scale, -1 where there are none. `parent` is
# the number of the row of the range around this one, counted from 0 in the order ranges began; -1: none.
ROW = ("number", "name", "thread", "parent", "start", "end", "gpu_start", "gpu_end")
_UNKNOWN = -1
_FLUSH_ROWS = 4096
_EVENTS_AHEAD = 4096  # that may wait to be read; beyond that, ranges are timed by the host clock alone
_ALWAYS = 2  # levels of ranges that always get events
_EVENT_NS = 8_000  # what a pair costs the host, at most
_SHARE = 0.003  # of the program's time that events of inner ranges may take
_REBASE_NS = 2_000_000_000  # elapsed times are 32-bit floats: far from their base they are coarse


class _Open(threading.local):
    """Ranges that are open on a thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[list[Any]] = []
        self.thread = threading.get_native_id()


class Timers(Locked):
    """A listener of ranges."""

    def __init__(self, path: str, cuda: Any) -> None:
        self._path = path
        self._cuda = cuda
        self._open = _Open()
        self._names: dict[tuple[str, str], int] = {}
        self._rows = array("q")
        self._waiting: list[tuple[list[int], Any, Any]] = []  # rows whose events were not read yet
        self._spare: list[Any] = []
        self._base: tuple[Any, int] | None = None
        self._began = time.monotonic_ns()
        self._count = self._inner_events = 0
        super().__init__()

    def __call__(self, domain: str, name: str, number: int, begins: bool | None) -> None:
        if begins:
            self._begin(domain, name)
        else:
            self._end(kept=begins is not None)

    def _begin(self, domain: str, name: str) -> None:
        stack = self._open.stack
        with self._lock:
            which = self._names.get((domain, name))
            if which is None:
                which = self._new_name(domain, name)
            order, self._count = self._count, self._count + 1
        event = self._record(len(stack))
        parent = stack[-1][0] if stack else _UNKNOWN
        stack.append([order, which, self._open.thread, parent, time.monotonic_ns(), event])

    def _end(self, *, kept: bool) -> None:
        now = time.monotonic_ns()
        if not self._open.stack:
            return
        *row, first = self._open.stack.pop()
        if not kept:
            return
        last = self._record(0) if first is not None else None
        with self._lock:
            if first is None or last is None:
                self._rows.extend((*row, now, _UNKNOWN, _UNKNOWN))
            else:
                self._waiting.append(([*row, now], first, last))
            if len(self._rows) >= _FLUSH_ROWS * len(ROW) or len(self._waiting) >= _FLUSH_ROWS:
                self.flush()

    def _new_name(self, domain: str, name: str) -> int:
        which = self._names[domain, name] = len(self._names)
        log.append(self._path + ".names", json.dumps([which, domain, name]))
        return which

    # -- events -----------------------------------------------------------------------------------

    def _record(self, level: int) -> Any:
        """An event on the stream in use; None where there is no GPU, where it may not be, or costs too much."""
        cuda = self._cuda
        if cuda is None or not cuda.is_initialized() or len(self._waiting) >= _EVENTS_AHEAD:
            return None
        if level >= _ALWAYS:
            if self._inner_events * _EVENT_NS > _SHARE * (time.monotonic_ns() - self._began):
                return None
            self._inner_events += 1
        try:
            if cuda.is_current_stream_capturing():
                return None
            if self._base is None or time.monotonic_ns() - self._base[1] > _REBASE_NS:
                self._set_base()
            event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)
            event.record()
            return event, self._base
        except Exception as error:
            self._cuda = None
            log.failed("timing ranges on the GPU", error, of="ranges")
            return None

    def _set_base(self) -> None:
        """An event whose moment is known by the host clock: where the GPU has nothing to do, it happens at once."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        self._base = (event, time.monotonic_ns())

    def flush(self, *, last: bool = False) -> None:
        """Write the rows that are finished. `last`: all; the program has ended, so that nobody waits for the GPU."""
        waiting = []
        for row, first, end in self._waiting:
            if last or end[0].query():
                self._rows.extend((*row, *self._moments(first, end)))
                self._spare += (first[0], end[0])
            else:
                waiting.append((row, first, end))
        self._waiting = waiting
        rows, self._rows = self._rows, array("q")
        if rows:
            with open(self._path + ".rows", "ab") as file:  # noqa: PTH123 - pathlib is slow to import
                rows.tofile(file)

    def _moments(self, first: Any, last: Any) -> tuple[int, int]:
        (begin, (base, at)), (end, _) = first, last
        try:
            start = at + round(base.elapsed_time(begin) * 1e6)
            return start, start + round(begin.elapsed_time(end) * 1e6)
        except Exception:  # of another device, or the context is gone
            return _UNKNOWN, _UNKNOWN

    def _at_exit(self) -> None:
        with self._lock:
            try:
                if self._waiting and self._cuda is not None:
                    self._cuda.synchronize()
                self.flush(last=True)
            except Exception as error:
                log.failed("writing the times of ranges", error, of="ranges")

    def _forget_lock(self) -> None:
        """In a forked child: what the parent has open and has not written is the parent's."""
        super()._forget_lock()
        self._path = _path_of(os.path.dirname(self._path))  # noqa: PTH120
        self._names, self._rows, self._waiting, self._spare, self._base = {}, array("q"), [], [], None
        self._open, self._count = _Open(), 0


def _path_of(folder: str) -> str:
    return os.path.join(folder, f"{os.getpid()}-{time.monotonic_ns()}")  # noqa: PTH118


def install(torch: Any, ranges_seen: SeenRanges) -> None:
    """Time the ranges, where a folder is given for that."""
    folder = os.environ.get("LLM_PERF_TIMERS")
    if not folder:
        return
    cuda = getattr(torch, "cuda", None) if torch is not None else None
    timers = next((known for known in ranges_seen.listeners if isinstance(known, Timers)), None)
    if timers is not None:  # the nvtx package was there before torch
        timers._cuda = timers._cuda or cuda
        return
    timers = Timers(_path_of(folder), cuda)
    ranges_seen.listeners.append(timers)
    atexit.register(timers._at_exit)
