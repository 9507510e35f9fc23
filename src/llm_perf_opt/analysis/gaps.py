"""The gaps between the GPU work of a process, each given to what the host did meanwhile.

An expert looks at a gap, at the threads that launch, and reads what they are in. Here the same for all gaps at once:
a gap belongs to the tightest thing on the host that covers at least half of it (`Cover`). Short gaps need no name: they
have the length of a launch, unless the host had waited for the GPU, or the work had been launched long before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.metrics.host_calls import WAITING_CALLS, call_kind, code_kind
from llm_perf_opt.regions.blocks import blocks
from llm_perf_opt.regions.columns import CALL, PYTHON, SYSTEM, UNKNOWN, Bools, Int32s, Int64s, Timeline
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.merged_work import merged_work
from llm_perf_opt.regions.table import WHOLE

CAUSES = (
    "launch",
    "sync",
    "data",
    "alloc",
    "module",
    "copy",
    "python",
    "thread",
    "unseen",
    "replan",
    "gpu",
    "end",
    "startup",
    "warmup",
    "wait",
    "shared",
    "output",
    "pages",
)
_CODE = {cause: number for number, cause in enumerate(CAUSES)}
NAMED = 100_000  # ns: gaps from here on are given a name
LONG = 1_000_000  # ns: no launch of a kernel takes the host that long
_AHEAD = 20_000  # ns: work launched so long before a gap began did not wait for the host
TIGHT = 3  # times as long as a gap: a range around it that is longer, and not part of what is asked about, says nothing
_REPEATED = 3  # long gaps before attention: one or two are its first use
_BEGUN = 100  # the part of its kernels with which a program that has no ranges has begun its work
_QUIET = 4  # of the last gap, the part in which something may begin and end though the recording was cut off there
_NEVER = np.iinfo(np.int64).max
_TURNS = 0.3  # of their work, up to which two processes that take turns on a GPU overlap
_MIGRATION = re.compile(r"\[memcpy Unified [^,]*$")
_ON_GPU = re.compile(r"device-to-device|dtod|memset", re.IGNORECASE)  # the host does not wait for such copies
_MOST_EVENTS = 200_000  # that cover a gap: the shortest, which tell most


@define(eq=False)
class Gaps:
    """The gaps of one process in order of time."""

    start: Int64s
    end: Int64s
    cause: Int32s  # index into CAUSES
    named: Int64s  # which of them are long enough for a name; the columns below are of those
    event: Int64s  # what covers it on the host: a name, as an index into the timeline's strings; UNKNOWN where nothing
    elsewhere: Bools  # that is on a thread that launches nothing
    range: Int64s  # the range that covers it, as an index; UNKNOWN where none does
    other_range: Int64s  # the same of a thread that launches nothing, where `event` is its name

    def __len__(self) -> int:
        return len(self.start)


@define(eq=False)
class Cover:
    """Finds for each of some gaps, which are in order and disjoint, the shortest event that covers half of it."""

    start: Int64s
    end: Int64s
    _middle: Int64s = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._middle = self.start + (self.end - self.start) // 2

    def of(self, starts: Int64s, ends: Int64s, events: Int64s) -> Int64s:
        """Which of `events`, indices into the two columns; UNKNOWN where none."""
        owner = np.full(len(self.start), UNKNOWN, dtype=np.int64)
        if not len(events) or not len(owner):
            return owner
        begin, finish = starts[events], ends[events]
        # What covers half of an interval covers its middle.
        first = np.searchsorted(self._middle, begin, side="left")
        last = np.searchsorted(self._middle, finish, side="right") - 1
        first += (first <= last) & ~self._half(first, begin, finish)
        last -= (first <= last) & ~self._half(last, begin, finish)
        covering = np.flatnonzero(first <= last)
        longest = covering[np.argsort(begin[covering] - finish[covering], kind="stable")]
        for event, low, high in zip(
            *(column[longest[-_MOST_EVENTS:]].tolist() for column in (events, first, last)), strict=True
        ):
            owner[low : high + 1] = event  # shorter ones come later, and stay
        return owner

    def _half(self, gap: Int64s, begin: Int64s, finish: Int64s) -> Bools:
        gap = np.clip(gap, 0, len(self.start) - 1)
        shared = np.minimum(self.end[gap], finish) - np.maximum(self.start[gap], begin)
        covers: Bools = 2 * shared >= self.end[gap] - self.start[gap]
        return covers


def find_gaps(timeline: Timeline, process: int, warmup: Bools) -> Gaps:
    """All gaps of a process, from its first range or work to its last. `warmup`: which ranges are warm-up."""
    return _Finder(timeline, process).find(warmup)


class _Finder:
    """Holds what the steps share."""

    def __init__(self, timeline: Timeline, process: int) -> None:
        self.timeline, self.process = timeline, process
        self.start, self.end, self.launched, self.next_name, threads = self._between()
        self.length = self.end - self.start
        host, ranges = timeline.host, timeline.ranges
        if not len(threads):  # launching calls were not recorded: any thread with ranges may be the one
            threads = np.unique(ranges.thread[ranges.process == process])
        launches = np.isin(host.thread, threads)
        self.own = (host.process == process) & launches
        self.of_others = (host.process == process) & ~launches
        mine = ranges.process == process
        self.own_ranges = mine & np.isin(ranges.thread, threads)
        self.others = _work_of_others(timeline, process)
        self.ranges_of_others = mine & ~self.own_ranges & (ranges.thread != UNKNOWN)

    @cached_property
    def launches(self) -> Int64s:
        return np.sort(np.concatenate([work.host_time for work in self.timeline.work]))

    def _between(self) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
        """Starts and ends of the gaps, when the work behind each was launched, its name, and the threads that launch."""
        timeline, ranges = self.timeline, self.timeline.ranges
        alone = len(timeline.processes) == 1
        mine = [slice(None) if alone else work.process == self.process for work in timeline.work]
        columns = {
            column: [getattr(work, column)[chosen] for work, chosen in zip(timeline.work, mine, strict=True)]
            for column in ("host_time", "thread", "name")
        }
        threads = distinct(*columns["thread"])
        threads = threads[threads != UNKNOWN]
        work = merged_work(timeline, self.process)
        around, busy = np.flatnonzero(ranges.process == self.process), work.busy
        low = min(int(column.min()) for column in (busy.starts, ranges.start[around]) if len(column))
        high = max(int(column.max()) for column in (busy.ends, ranges.end[around]) if len(column))
        start, end = np.append(low, busy.ends), np.append(busy.starts, high)
        behind = work.firsts if work.order is None else work.order[work.firsts]
        gap = np.flatnonzero(end > start)
        following = behind[gap[gap < len(behind)]]

        def of_following(column: str) -> Int64s:
            found = np.full(len(gap), UNKNOWN, dtype=np.int64)  # behind the last gap there is nothing
            found[: len(following)] = np.concatenate(columns[column])[following]
            return found

        return start[gap], end[gap], of_following("host_time"), of_following("name"), threads

    def find(self, warmup: Bools) -> Gaps:
        host = self.timeline.host
        call = self.by_name(host.name, call_kind)
        cause = np.full(len(self.start), _CODE["launch"], dtype=np.int32)
        waited_at = self._waited(call)
        for part in blocks(len(cause)):
            waited = waited_at(self.start[part]) != UNKNOWN
            cause[part][waited & (self.length[part] < LONG)] = _CODE["sync"]
            cause[part][self._is_ahead(part)] = _CODE["gpu"]

        named = np.flatnonzero(self.length >= NAMED)
        long, new = self.length[named] >= LONG, cause[named]
        over = _Covering(self, Cover(self.start[named], self.end[named]), self.by_name(host.name, code_kind))
        # Behind a call in which the host had waited, be it a copy of a few bytes, it is the waiting that counts.
        called = np.where((over.call == UNKNOWN) & (new == _CODE["sync"]), waited_at(self.start[named]), over.call)
        by_call = np.append(call, "")[over.call]  # UNKNOWN is the last
        new[long] = _CODE["unseen"]
        new[long & ((over.other_thread != UNKNOWN) | (over.other_range != UNKNOWN))] = _CODE["thread"]
        new[long & ((over.code != UNKNOWN) | (over.range != UNKNOWN))] = _CODE["python"]
        attends = self._plans(named, long & ~self._had_ended(named, over.code, over.range))
        new[attends | (long & over.plans)] = _CODE["replan"]
        new[over.compiles] = _CODE["module"]
        new[over.reads_input] = _CODE["data"]
        new[self._is_ahead(named)] = _CODE["gpu"]
        new[(by_call == "other") & (new == _CODE["unseen"])] = _CODE["python"]
        for one in ("sync", "alloc", "module", "copy"):
            new[(by_call == one) & ~over.reads_input] = _CODE[one]
        new[(by_call == "launch") & long] = _CODE["module"]  # a launch takes that long when its code is loaded
        # A range that fills a gap, and launches nothing, says more than that the host had waited before.
        fills = self._is_what_fills(named, over.range) & (over.call == UNKNOWN) & ~over.reads_input
        fills &= np.isin(new, (_CODE["sync"], _CODE["launch"]))
        new[fills], called[fills] = _CODE["python"], UNKNOWN
        for one in ("alloc", "module"):
            many = self._filled(named, call == one) & (by_call == "")
            new[many & ~over.reads_input] = _CODE[one]
            called[many] = UNKNOWN  # none of them alone
        if self._ends_inside():
            new[-1], called[-1] = _CODE["end"], UNKNOWN
        what_the_host_does = np.isin(new, [_CODE[one] for one in ("python", "thread", "unseen")])
        what_the_host_does |= np.append(host.kind == SYSTEM, False)[over.input]  # it reads weights, say
        new[what_the_host_does & (self.end[named] <= self._work_begins())] = _CODE["startup"]
        new[(new == _CODE["python"]) & over.waits] = _CODE["wait"]
        new[(new == _CODE["python"]) & over.writes] = _CODE["output"]
        cause[named] = new
        if self.others is not None:
            since = np.clip(self.launched, self.start, self.end)  # before, it is the host that is waited for
            theirs = 2 * self.others.within(since, self.end) >= self.length
            cause[theirs] = _CODE["shared"]
            called[theirs[named]] = UNKNOWN
        behind = distinct(self.next_name).tolist()
        pages = [n for n in behind if n != UNKNOWN and _MIGRATION.match(self.timeline.strings[n])]
        cause[np.isin(self.next_name, pages)] = _CODE["pages"]  # which nobody launched
        cause[self._inside(warmup)] = _CODE["warmup"]

        choices = [over.reads_input, called != UNKNOWN, over.code != UNKNOWN]
        event = np.select(choices, [over.input, called, over.code], over.other_thread)
        name = np.append(host.name.astype(np.int64), UNKNOWN)[event]
        by_range = (event == UNKNOWN) & (over.other_range != UNKNOWN)
        name[by_range] = self.timeline.ranges.name[over.other_range[by_range]]
        elsewhere = ~np.logical_or.reduce(choices) & ((over.other_thread != UNKNOWN) | by_range)
        other = np.where(by_range, over.other_range, UNKNOWN)
        return Gaps(self.start, self.end, cause, named, name, elsewhere, over.range, other)

    def _is_ahead(self, gaps: slice | Int64s) -> Bools:
        """Had the work behind been launched long before?"""
        start, launched = self.start[gaps], self.launched[gaps]
        ahead: Bools = (launched != UNKNOWN) & (start - launched >= _AHEAD)
        return ahead

    def _had_ended(self, gaps: Int64s, code: Int64s, covering: Int64s) -> Bools:
        """Was what covers a gap over when the work behind it was launched? Then it is not the launching that took so long.

        `code`, `covering`: functions or operators, and ranges. Of samples nobody knows when they ended.
        """
        host, ranges, launched = self.timeline.host, self.timeline.ranges, self.launched[gaps]
        ended = np.append(ranges.end, _NEVER)[covering] <= launched
        if not self.timeline.code.sampled.any():
            ended |= np.append(host.end, _NEVER)[code] <= launched
        over: Bools = ended & (launched != UNKNOWN)
        return over

    def _plans(self, gaps: Int64s, long: Bools) -> Bools:
        """Which of the long gaps end with attention, several of them: a library that plans for each length anew."""
        plans = np.zeros(len(long), dtype=np.bool_)
        names = self._next_kernel(gaps[long])
        attention = [
            number
            for number in np.unique(names).tolist()
            if number != UNKNOWN and family_of(self.timeline.strings[number]) == "attention"
        ]
        plans[long] = np.isin(names, attention)
        return plans if plans.sum() >= _REPEATED else np.zeros_like(plans)

    def _next_kernel(self, gaps: Int64s) -> Int64s:
        """The names of what the gaps end with; of a kernel where that is a fill, with which it makes its memory ready."""
        names, strings = self.next_name[gaps], self.timeline.strings
        fills = np.isin(
            names, [n for n in np.unique(names).tolist() if n != UNKNOWN and "memset" in strings[n].lower()]
        )
        kernels = self.timeline.kernels
        mine = np.flatnonzero(kernels.process == self.process)
        behind = np.searchsorted(kernels.start[mine], self.end[gaps])
        of_kernel = np.append(kernels.name[mine], UNKNOWN)[behind]
        return np.where(fills, of_kernel, names)

    def _ends_inside(self) -> bool:
        """Is the last gap long, behind all work, and does nothing begin on the host and fill it, not even an operator?

        Then it may not be one at all: the recording was cut off, and has to their end what began before.
        """
        timeline = self.timeline
        last = len(self.start) - 1
        if last < 0 or not len(timeline.calls) or self.length[last] < LONG or self.next_name[last] != UNKNOWN:
            return False
        begins = self.start[last]
        since = begins + self.length[last] // _QUIET
        columns = (timeline.host, timeline.ranges, timeline.calls)
        return not any(((column.start >= begins) & (column.end > since)).any() for column in columns)

    def _work_begins(self) -> int:
        """Where the program has no ranges of its own: the moment up to which hardly a kernel had run. Before, a program makes ready."""
        ranges, kernels = self.timeline.ranges, self.timeline.kernels
        mine = np.unique(ranges.name[ranges.process == self.process]).tolist()
        if not {self.timeline.strings[name] for name in mine} <= {WHOLE, *self.timeline.operators}:
            return UNKNOWN
        starts = np.sort(kernels.start[kernels.process == self.process])
        return int(starts[len(starts) // _BEGUN]) if len(starts) >= _BEGUN else UNKNOWN

    def _is_what_fills(self, gaps: Int64s, covering: Int64s) -> Bools:
        """Which gaps the range that covers them fills and hardly exceeds, without a launch in it."""
        ranges, known = self.timeline.ranges, covering != UNKNOWN
        fills = np.zeros(len(gaps), dtype=np.bool_)
        if not known.any():
            return fills
        start, end, length = ranges.start[covering[known]], ranges.end[covering[known]], self.length[gaps[known]]
        first, last = (np.searchsorted(self.launches, side) for side in (start, end))
        fills[known] = (first == last) & (2 * (end - start) <= 3 * length)
        return fills

    def _waited(self, call: NDArray[Any]) -> Callable[[Int64s], Int64s]:
        """For moments, the call in which a thread waited for the GPU then."""
        host = self.timeline.host
        waiting = np.flatnonzero(self.own & (host.kind == CALL) & np.isin(call, WAITING_CALLS))
        copies, strings = self.timeline.copies, self.timeline.strings
        names = [n for n in distinct(copies.name).tolist() if n != UNKNOWN and _ON_GPU.search(strings[n])]
        asked = copies.host_time[np.isin(copies.name, names) & (copies.host_time != UNKNOWN)]
        waiting = waiting[(call[waiting] == "sync") | ~np.isin(host.start[waiting], asked)]
        return _open_at(host.start, host.end, waiting)

    def _filled(self, gaps: Int64s, chosen: Bools) -> Bools:
        """Which gaps some calls fill for the most part, though none of them alone does."""
        host = self.timeline.host
        calls = np.flatnonzero(self.own & (host.kind == CALL) & chosen)
        start, end = self.start[gaps], self.end[gaps]
        filled: Bools = 2 * BusyTime.of(host.start[calls], host.end[calls]).within(start, end) >= end - start
        return filled

    def by_name(self, names: Int32s, value: Callable[[str], str]) -> NDArray[Any]:
        """What `value` says of each name, asked once for each."""
        used, which = np.unique(names, return_inverse=True)
        found = np.array([value(self.timeline.strings[number]) for number in used.tolist()], dtype=np.str_)
        return found[which.reshape(-1)]

    def _inside(self, warmup: Bools) -> Int64s:
        """Gaps that lie in warm-up."""
        ranges = self.timeline.ranges
        chosen = np.flatnonzero(warmup & (ranges.process == self.process))
        windows = BusyTime.of(ranges.start[chosen], ranges.end[chosen])
        if not len(chosen):
            return chosen
        middle = self.start + self.length // 2
        first, last = (np.searchsorted(middle, side).tolist() for side in (windows.starts, windows.ends))
        return np.concatenate([np.arange(low, high) for low, high in zip(first, last, strict=True)])


class _Covering:
    """What covers each of the named gaps, by what it is: indices of host events or ranges, UNKNOWN where none."""

    def __init__(self, of: _Finder, gaps: Cover, kind: NDArray[Any]) -> None:
        host, ranges = of.timeline.host, of.timeline.ranges
        is_call, kind_of_range = host.kind == CALL, of.by_name(ranges.name, code_kind)

        def events(chosen: Bools) -> Int64s:
            return gaps.of(host.start, host.end, np.flatnonzero(of.own & chosen))

        def in_ranges(chosen: Bools) -> Int64s:
            return gaps.of(ranges.start, ranges.end, np.flatnonzero(of.own_ranges & chosen))

        def elsewhere() -> Int64s:
            """Ranges of threads that launch nothing; one around many gaps is what a thread is for, not what it does."""
            found = gaps.of(ranges.start, ranges.end, np.flatnonzero(of.ranges_of_others))
            length = (ranges.end - ranges.start)[found] if len(ranges) else found
            return np.where(length <= TIGHT * (gaps.end - gaps.start), found, UNKNOWN)

        waits = kind == "wait"
        self.call, self.code = events(is_call), events(~is_call)
        self.other_thread = gaps.of(host.start, host.end, np.flatnonzero(of.of_others & ~waits))
        # Who waits for another thread, which is seen at work, does what that one does.
        elsewhere_works = (events(waits) != UNKNOWN) & (self.other_thread != UNKNOWN)
        self.code[elsewhere_works] = UNKNOWN
        self.waits = np.append(waits, False)[self.code]  # UNKNOWN is the last
        self.writes = np.append(kind == "write", False)[self.code]
        self.other_range = elsewhere()
        kind_elsewhere = np.append(kind_of_range, "")[self.other_range]
        self.input = events(~is_call & (kind == "data"))
        for_input = elsewhere_works & (np.append(kind, "")[self.other_thread] == "data")
        self.input[for_input] = self.other_thread[for_input]
        input_range = in_ranges(kind_of_range == "data")
        self.reads_input = (self.input != UNKNOWN) | (input_range != UNKNOWN) | (kind_elsewhere == "data")
        # Functions that compile are around every call of what was compiled before, too.
        compiling = (~is_call) & (host.kind != PYTHON) & (kind == "compile")
        self.plans = events(~is_call & (kind == "plan")) != UNKNOWN
        self.compiles = (events(compiling) != UNKNOWN) | (in_ranges(kind_of_range == "compile") != UNKNOWN)
        self.compiles |= kind_elsewhere == "compile"
        self.range = np.where(input_range != UNKNOWN, input_range, in_ranges(np.ones(len(ranges), dtype=np.bool_)))


def _work_of_others(timeline: Timeline, process: int) -> BusyTime | None:
    """When other processes run work on the GPUs of this one, if they take turns; None where there are none.

    Work of two that runs at the same time may be on GPUs of their own, which each calls by the same number.
    """
    if len(timeline.processes) < 2:
        return None
    own, theirs = [], []
    for work in timeline.work:
        mine = work.process == process
        shared = ~mine & np.isin(work.device, np.unique(work.device[mine]))
        own.append((work.start[mine], work.end[mine]))
        theirs.append((work.start[shared], work.end[shared]))
    busy, others = (BusyTime.of(*(np.concatenate(side) for side in zip(*one, strict=True))) for one in (own, theirs))
    together = int(busy.within(others.starts, others.ends).sum()) if len(others.starts) else 0
    return others if len(others.starts) and together <= _TURNS * min(busy.total, others.total) else None


def _open_at(starts: Int64s, ends: Int64s, events: Int64s) -> Callable[[Int64s], Int64s]:
    """For moments, which of the events is open then, the last to begin; UNKNOWN where none is."""
    ordered = events[np.argsort(starts[events], kind="stable")]
    began = starts[ordered]

    def open_at(moments: Int64s) -> Int64s:
        if not len(ordered):
            return np.full(len(moments), UNKNOWN, dtype=np.int64)
        last = ordered[np.maximum(np.searchsorted(began, moments, side="right") - 1, 0)]
        return np.where((starts[last] <= moments) & (moments < ends[last]), last, UNKNOWN)

    return open_at
