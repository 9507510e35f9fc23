"""Times every range of the process from inside, with no profiler: host clock, and CUDA events where a GPU is used.

Nothing waits for the GPU. An event is recorded on the stream in use when a range opens and when it closes, and read
long after; while a CUDA graph is captured none is recorded or asked. What a range costs is what counts here: a decode
step of 10 ms may have a hundred. So this takes the place of `SeenRanges` altogether, every thread has rows of its own
without a lock, and what is dear (events of inner ranges, the allocator's statistics) is bought from a budget.

Rows go to files of the process in the folder `LLM_PERF_TIMERS`: `<pid>-<start>.rows` (eight 64-bit integers each, see
ROW), `.host` (the first four, where there are no more) and `.names`, lines of JSON: a name when it is first met, and
facts (`evidence.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from array import array
from contextlib import suppress
from functools import partial, wraps
from itertools import chain
from time import monotonic_ns
from typing import Any

from . import imports, log
from .budget import Budget
from .current_stream import Device, Events
from .evidence import Evidence, cpu_times
from .memory import Memory
from .place import place_of
from .seen_ranges import Locked, SeenRanges
from .ticker import ticker

# Times are nanoseconds of the monotonic clock; GPU times are on the same scale. Bytes are those of PyTorch's allocator.
ROW = ("name", "thread", "start", "end", "gpu_start", "gpu_end", "memory_peak", "memory_growth")
UNKNOWN = -(1 << 62)
_NOTHING = (UNKNOWN, UNKNOWN)
ENDING = ".ending"  # a file in the folder, there once whoever started the program ends it
_NO_NAME, _NO_DOMAIN = -1, -2  # instead of the number of a name
_FLUSH_ROWS = 2048  # of a thread
_FLUSH_NUMBERS = 4 * _FLUSH_ROWS
_LOOK_AGAIN_NS = 1_000_000  # whether the process uses a GPU by now
_NEVER = 1 << 62
_FLUSH_NS = 500_000_000  # between two ranges that have none around them
_READ_NS = 3_000_000_000  # likewise, for events: to read one takes longer than to record it
_SOONER = 20  # times as often, in a child of multiprocessing: a pool kills its workers when it is done with them
_EVENTS_AHEAD = 4096  # that may wait to be read; beyond that, ranges are timed by the host clock alone
_ALWAYS = 2  # levels of ranges whose events come first
_OUTER_SHARE, _INNER_SHARE, _MEMORY_SHARE = 0.002, 0.001, 0.0008  # of the program's time that each may take
_LEAVE_TO_OTHERS_NS = 60_000_000  # so long a name that had more looks at the allocator than others lets them go first
_MOST_NAMES = 20_000  # a program that puts numbers into its names has no end of them
_IN_A_ROW, _MOST_UNWRITTEN = 8, 1 << 18  # numbers, while the disk is full
_MOST_STARTED = 10_000  # start/end ranges that are open: a program may forget to end them
_LEAVE_S = 1.0
_MANY_THREADS = 256  # from then on, those that have ended are let go


class _Thread:
    """What one thread has open and has not written yet."""

    __slots__ = ("host", "number", "read", "rows", "stack", "waiting", "wrote")

    def __init__(self) -> None:
        self.number = threading.get_native_id()
        self.stack: list[tuple[Any, ...]] = []  # domain, name, start, event, what else is taken; innermost last
        self.host: list[int] = []  # the first half of ROW, one after the other, of those that have no more
        self.rows: list[tuple[int, ...]] = []
        self.waiting: list[tuple[tuple[int, ...], Any, Any, tuple[int, int]]] = []  # their events were not read yet
        self.wrote = self.read = monotonic_ns()  # when rows were last written, and events read


class Timers(Locked):
    """Stands in for `SeenRanges`: `begin` right before a range is pushed, `end` right after one was popped."""

    def __init__(self, folder: str, torch: Any) -> None:
        self._folder = folder
        self._events: Events | None = None
        self._memory: Memory | None = None
        self._flush_ns, self._read_ns = _FLUSH_NS, _READ_NS
        self.evidence = Evidence("")
        self._start_anew()
        super().__init__()
        if torch is not None:
            self.use(torch)

    def _start_anew(self) -> None:
        self._path = os.path.join(self._folder, f"{os.getpid()}-{monotonic_ns()}")  # noqa: PTH118 - slow to import
        self._local = threading.local()
        self._threads: list[_Thread] = []
        self._names: dict[tuple[Any, ...], int] = {}  # domain, name, and of start/end ranges True
        self._started: dict[Any, tuple[int, int, Any, Any]] = {}  # which, start, event, what else is taken
        self._is_on_gpu, self._ahead = False, _EVENTS_AHEAD
        self._next_outer = self._next_inner = 0  # when there is more to do for a range than to look at the clock
        self._looks: dict[int, int] = {}  # at the allocator, by the number of a name
        self._all_looks = self._last_look = 0
        self._outer, self._inner, self._for_memory = map(Budget, (_OUTER_SHARE, _INNER_SHARE, _MEMORY_SHARE))
        self.evidence.path = self._path + ".names"
        self._cpu_before = cpu_times()
        if self._memory is not None:
            self._memory.forget()
        if self._events is not None:
            self._events.forget()

    def write_to(self, folder: str) -> None:
        """Begin anew, with files in another folder."""
        self._folder = folder
        self._start_anew()

    def write_sooner(self) -> None:
        """The process may be killed once it has done its part."""
        self._flush_ns, self._read_ns = _FLUSH_NS // _SOONER, _READ_NS // _SOONER

    def use(self, torch: Any) -> None:
        """Torch is there: its GPU, its allocator, and what tells of compilation and graph capture."""
        if self._events is None:
            self._events = Events(torch, self.evidence.note)
            self._memory = Memory.of(torch)
            self._next_outer = self._next_inner = 0
            self.evidence.watch(torch)

    # -- what every range goes through ----------------------------------------------------------

    def begin(self, domain: Any, name: Any) -> None:
        try:
            of, which, extra = self._local.of, self._names[domain, name], None
        except (AttributeError, KeyError, TypeError):
            of, which, extra = self._first(domain, name)
            if which == _NO_DOMAIN:
                return
        stack, event, now = of.stack, None, monotonic_ns()
        if now >= (self._next_inner if len(stack) >= _ALWAYS else self._next_outer) and which >= 0:
            event, extra = self._begin_on_gpu(len(stack), which, extra, now)
            now = monotonic_ns()
        stack.append((domain, which, now, event, extra))

    def end(self, domain: Any) -> None:
        now = monotonic_ns()
        try:
            of = self._local.of
            stack = of.stack
            opened, which, start, event, extra = stack.pop()
        except (AttributeError, IndexError):
            return  # it was opened in a way that is not watched
        if opened is not domain and (not isinstance(domain, str) or opened != domain):
            found = self._find(stack, (opened, which, start, event, extra), domain)
            if found is None:
                return
            _, which, start, event, extra = found
        if event is not None or extra is not None:
            self._end_with(of, (which, of.number, start, now), event, extra)
        elif which >= 0:
            of.host += (which, of.number, start, now)
        if len(of.host) >= _FLUSH_NUMBERS or (not stack and now - of.wrote > self._flush_ns):
            self._flush(of)

    def undo(self, domain: Any) -> None:
        """What began last did not open: whoever pushed it got an error."""
        of = getattr(self._local, "of", None)
        if of is not None and of.stack:
            *_, event, extra = of.stack.pop()
            self._give_back(event)
            if self._memory is not None and isinstance(extra, list):
                self._memory.forget(extra)

    def open(self, domain: Any, name: Any, key: Any) -> bool:
        """A start/end range, which may overlap others and end on another thread. Whether it is timed."""
        if not isinstance(domain, str) or not isinstance(name, str) or len(self._started) >= _MOST_STARTED:
            return False
        which, extra, now = self._names.get((domain, name, True), _NO_NAME), None, monotonic_ns()
        if which < 0:
            which, extra = self._new_name(domain, name, start_end=True)
        event = None
        if which >= 0 and now >= self._next_outer:
            event, extra = self._begin_on_gpu(0, which, extra, now)
        try:
            self._started[key] = which, monotonic_ns(), event, extra
        except TypeError:  # another package of this name: it may be known by anything
            return False
        return True

    def close(self, key: Any) -> None:
        now = monotonic_ns()
        try:
            which, start, event, extra = self._started.pop(key)
        except (KeyError, TypeError):
            return
        of = getattr(self._local, "of", None) or self._new_thread()
        if which >= 0:
            self._end_with(of, (which, of.number, start, now), event, extra)
        if not of.stack and now - of.wrote > self._flush_ns:
            self._flush(of)

    # -- what few go through ----------------------------------------------------------------------

    def _first(self, domain: Any, name: Any) -> tuple[_Thread, int, Any]:
        """The first range of a thread, or of a name."""
        of = getattr(self._local, "of", None) or self._new_thread()
        try:
            return of, self._names[domain, name], None
        except (KeyError, TypeError):
            return of, *self._new_name(domain, name)

    def _new_thread(self) -> _Thread:
        of = self._local.of = _Thread()
        with self._lock:
            if len(self._threads) > _MANY_THREADS:
                alive = {thread.native_id for thread in threading.enumerate()}
                for ended in [other for other in self._threads if other.number not in alive]:
                    self._flush(ended)
                self._threads = [other for other in self._threads if other.number in alive or other.waiting]
            self._threads.append(of)
        return of

    def _new_name(self, domain: Any, name: Any, *, start_end: bool = False) -> tuple[int, Any]:
        """Its number, and what is noted of the first instance. What is no text is not timed."""
        if not isinstance(domain, str):
            return _NO_DOMAIN, None
        if not isinstance(name, str) or len(self._names) >= _MOST_NAMES:
            return _NO_NAME, None
        with self._lock:
            key = (domain, name, True) if start_end else (domain, name)
            which = self._names.setdefault(key, len(self._names))
            if not which and (place := place_of(os.environ)) is not None:
                self.evidence.note(rank=place.rank)
            self.evidence.note(name=[which, domain, name], **({"start_end": True} if start_end else {}))
        return which, self.evidence.first_use(self._memory if self._is_on_gpu else None)

    @staticmethod
    def _find(stack: list[tuple[Any, ...]], top: tuple[Any, ...], domain: Any) -> tuple[Any, ...] | None:
        """The innermost range of a domain: every domain has a stack of its own. `top` is no longer on it."""
        stack.append(top)
        for place in range(len(stack) - 1 if isinstance(domain, str) else -1, -1, -1):
            if stack[place][0] == domain:
                return stack.pop(place)
        return None

    def _begin_on_gpu(self, level: int, which: int, extra: Any, now: int) -> tuple[Any, Any]:
        if not self._is_on_gpu:
            if self._events is None or not self._events.can_be():
                self._next_outer = self._next_inner = _NEVER if self._events is None else now + _LOOK_AGAIN_NS
                return None, extra
            self._is_on_gpu = True
        outer, inner, memory, event = self._outer, self._inner, self._for_memory, None
        if now >= memory.next_at and self._memory is not None and extra is None and self._is_its_turn(which, now):
            extra = self._memory.begin()
            now = memory.charge(now)
        budget = outer if level < _ALWAYS else inner
        if now >= budget.next_at:
            event = self._record(now)
            budget.charge(now, times=2)  # it is paid for the second, too
        look_at = memory.next_at if self._memory is not None else _NEVER
        self._next_outer, self._next_inner = min(outer.next_at, look_at), min(inner.next_at, look_at)
        return event, extra

    def _is_its_turn(self, which: int, now: int) -> bool:
        """Names get the same number of looks at the allocator: a step is as seldom among its layers as they are many.

        Where those that have had fewer do not come, as the stage around many steps, nobody waits for them for long.
        """
        looks = self._looks
        mine = looks.get(which, 0)
        if mine * len(looks) > self._all_looks and now - self._last_look < _LEAVE_TO_OTHERS_NS:
            return False
        looks[which], self._all_looks, self._last_look = mine + 1, self._all_looks + 1, now
        return True

    def _end_with(self, of: _Thread, row: tuple[int, ...], first: Any, extra: Any) -> None:
        last = self._record(0) if first is not None else None
        used = _NOTHING
        if isinstance(extra, list):  # of the allocator
            now = monotonic_ns()
            used = self._memory.end(extra) if self._memory is not None else _NOTHING
            self._for_memory.charge(now)
        elif extra is not None:
            self.evidence.end_first_use(extra, row[2], row[3], self._memory if self._is_on_gpu else None)
        if last is None:
            self._give_back(first)
            of.rows.append((*row, *_NOTHING, *used))
        else:
            of.waiting.append((row, first, last, used))
            if len(of.waiting) >= _FLUSH_ROWS:
                self._flush(of)

    # -- events -----------------------------------------------------------------------------------

    def _record(self, now: int) -> Any:
        """An event on the stream in use, with its device and what its time is counted from. None where it may not be.

        `now`: 0 for the last event of a range, which is counted from the first.
        """
        events = self._events
        if events is None or self.evidence.capturing:
            return None
        try:
            if events.is_capturing():
                return None
            return events.record(now)
        except Exception as error:
            self._events = None
            log.failed("timing ranges on the GPU", error, of="ranges")
            return None

    @staticmethod
    def _give_back(event: Any) -> None:
        if event is not None:
            event[1].spare.append(event[0])

    @staticmethod
    def _moments(first: tuple[Any, Device, Any], last: tuple[Any, Device, Any]) -> tuple[int, int]:
        (begin, device, (base, at)), (end, other, _) = first, last
        try:
            if device is other:  # else it began on one device and ended on another
                start = at + round(base.elapsed_time(begin) * 1e6)
                return start, start + round(begin.elapsed_time(end) * 1e6)
        except Exception:  # noqa: S110 - the context is gone, as at the end of a program: the host clock remains
            pass
        return _NOTHING

    # -- files ------------------------------------------------------------------------------------

    def _flush(self, of: _Thread, *, last: bool = False, events: bool = True) -> None:
        """Write what a thread has finished. `last`: the program has ended, so that nobody waits for the GPU."""
        try:
            with self._lock:
                self._write(of, last, events)
        except OSError as error:  # a full disk: what could not be written waits for room
            if not last and len(of.host) + _IN_A_ROW * len(of.rows) < _MOST_UNWRITTEN:
                return
            self._write_into_reserve(of, error)
        except Exception as error:  # whatever it is, the program goes on; the report says that times are missing
            of.host, of.rows, of.waiting = [], [], []
            log.failed("writing the times of ranges", error, of="ranges")

    def _write_into_reserve(self, of: _Thread, error: OSError) -> None:
        """The space that llm-perf has reserved for the last words of a run: times are worth more than those."""
        with suppress(OSError):  # gone: another process has used it, and there may be room by now
            os.unlink(os.path.join(self._folder, "..", "..", ".reserve"))  # noqa: PTH108, PTH118 - slow to import
        try:
            with self._lock:
                self._write(of, True)
        except Exception:  # as above
            of.host, of.rows, of.waiting = [], [], []
            log.failed("writing the times of ranges", error, of="ranges")

    def _write(self, of: _Thread, last: bool, events: bool = True) -> None:
        now = of.wrote = monotonic_ns()
        due = events and (last or len(of.waiting) >= _FLUSH_ROWS or now - of.read > self._read_ns)
        if of.waiting and due and (last or not self._is_capturing()):
            of.read = now
            done = len(of.waiting)
            if not last:
                done = next((n for n, found in enumerate(of.waiting) if not found[2][0].query()), done)
            lost = max(len(of.waiting) - done - self._ahead, 0)  # the GPU is far behind: by the host clock alone
            for number, (row, first, end, used) in enumerate(of.waiting[: done + lost]):
                moments = self._moments(first, end) if number < done else _NOTHING
                of.rows.append((*row, *moments, *used))
                self._give_back(first)
                self._give_back(end)
            del of.waiting[: done + lost]
            self._outer.charge(now, things=done)
        rows, host = of.rows[:], of.host[:]  # its thread may add to them meanwhile
        if rows:
            self._append(".rows", array("q", chain.from_iterable(rows)))
            del of.rows[: len(rows)]
        if host:
            self._append(".host", array("q", host))
            del of.host[: len(host)]

    def _append(self, ending: str, packed: array[int]) -> None:
        """All of it or nothing: half a row would shift those after it."""
        path = self._path + ending
        with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - pathlib is slow to import
            before = file.tell()
            written = file.write(packed)
            if written != packed.itemsize * len(packed):
                file.truncate(before)
                raise OSError(28, "No space left on device")

    def _is_capturing(self) -> bool:
        """An event must not be asked while a graph is captured: that would break the capture."""
        return bool(self.evidence.capturing or (self._events is not None and self._events.is_capturing()))

    def write_idle(self) -> None:
        """From another thread, again and again: write what threads have finished that write nothing more by themselves.

        Events are asked only once the program is being ended (`ENDING`): another thread may begin to capture a graph,
        which asking would break. It may be one that has to be killed.
        """
        if os.path.exists(os.path.join(self._folder, ENDING)):  # noqa: PTH110, PTH118 - slow to import
            self._write_all()
            return
        with self._lock:
            late = monotonic_ns() - 2 * _FLUSH_NS  # those that are busy have written since
            idle = [of for of in self._threads if (of.host or of.rows) and of.wrote < late]
        for of in idle:
            self._flush(of, events=False)

    def _write_all(self) -> None:
        """Wait for the GPU, and write everything."""
        with self._lock:
            for of in self._threads:
                with contextlib.suppress(Exception):  # of a GPU that has failed: the host clock remains
                    for _, _, last, _ in of.waiting[:]:
                        last[0].synchronize()
                self._flush(of, last=True)

    def leave(self) -> None:
        """The program ends itself at once: what it has finished is written, and nobody waits for the GPU."""
        if not self._lock.acquire(timeout=_LEAVE_S):  # whoever has it waits for a GPU that hangs
            return
        try:
            self._ahead = 0
            for of in self._threads:
                of.read = 0
                self._flush(of)
        finally:
            self._lock.release()

    def finish(self) -> None:
        """At the end of the program."""
        with self._lock:
            self._write_all()
            now, before = cpu_times(), self._cpu_before
            if now is not None and before is not None:
                self.evidence.note(cpu=[now[0] - before[0], now[1] - before[1]])
            with suppress(Exception):  # other threads may still run
                self._note_cost()

    def _note_cost(self) -> None:
        """What it takes to time a range by the host's clock: one after the other, and once much else has run."""
        name = next((key for key in list(self._names) if len(key) == 2), None)
        if name is None:
            return
        from .range_cost import range_cost  # only here: slow to import

        own, mine = vars(self._local).copy(), _Thread()
        self._local.of = mine
        mine.wrote = self._next_outer = self._next_inner = _NEVER  # nothing of this is written
        try:
            steps = partial(self.begin, *name), partial(self.end, name[0])
            self.evidence.note(cost=[range_cost(steps, mine.host.clear, between) for between in (False, True)])
        finally:  # what runs at the very end may have ranges, too
            del self._local.of
            vars(self._local).update(own)

    def _forget_lock(self) -> None:
        """In a forked child: what the parent has open and has not written is the parent's."""
        super()._forget_lock()
        self._start_anew()


def install(torch: Any, ranges_seen: SeenRanges) -> None:
    """Time the ranges, where a folder is given for that."""
    folder = os.environ.get("LLM_PERF_TIMERS")
    if not folder:
        return
    timers = getattr(ranges_seen, "timers", None)
    if timers is not None:  # the nvtx package was there before torch
        if torch is not None:
            timers.use(torch)
        return
    timers = Timers(folder, torch)
    ranges_seen.timers = timers  # type: ignore[attr-defined]
    ranges_seen.begin, ranges_seen.end, ranges_seen.undo = timers.begin, timers.end, timers.undo  # type: ignore[method-assign]
    ranges_seen.open, ranges_seen.close = timers.open, timers.close  # type: ignore[method-assign]
    atexit.register(timers.finish)
    exit_at_once = os._exit

    @wraps(exit_at_once)
    def leave(status: int) -> Any:
        with suppress(Exception):
            timers.leave()
        return exit_at_once(status)

    os._exit = leave
    ticker.add(timers.write_idle)
    imports.when_imported({"multiprocessing.util": lambda util: util.register_after_fork(timers, _end_with)})
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:  # in such a child already
        _end_with(timers)
    elif process is not None and hasattr(process.current_process(), "_inheriting"):  # in one that spawn is setting up
        timers.write_sooner()


def _end_with(timers: Timers) -> None:
    """In a child of multiprocessing: forked, it ends without atexit, as workers of servers do; in a pool, it is killed."""
    timers.write_sooner()
    sys.modules["multiprocessing.util"].Finalize(None, timers.finish, exitpriority=-100)
