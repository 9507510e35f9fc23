"""Chooses what of a timeline is worth keeping launch by launch, and follows each kernel over the instances.

A stage may have ten launches or ten million. Kept are a typical steady, the first and the last instance, whole;
where an instance is too long, those of the regions inside it; and where there is nothing inside, its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from attrs import define, field

from llm_perf_opt.analysis.instance_strips import instance_strips
from llm_perf_opt.regions.attribution import Attribution, Membership
from llm_perf_opt.regions.code import innermost
from llm_perf_opt.regions.columns import CALL, UNKNOWN, Bools, CodeSpans, Int32s, Int64s, Timeline
from llm_perf_opt.regions.detail import (
    COPY,
    GRAPH,
    KERNEL,
    NO_LAUNCH,
    TREND_LEVELS,
    HostCode,
    Instances,
    Launches,
    TimelineDetail,
    Window,
)
from llm_perf_opt.regions.instances import Instances as Timed
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.operator_calls import outermost_around
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT, levels_up

MOST_LAUNCHES = 20_000  # in all windows
MOST_IN_WINDOW = 5_000  # a longer instance is shown by the regions inside it
MOST_WINDOWS = 120
MOST_RANGES = 20_000
MOST_LINES = 8_000
TREND_GROUPS = 24
_TREND_BYTES = np.frombuffer(TREND_LEVELS.encode("ascii"), dtype=np.uint8)
_LOOK_BACK = 256  # pieces before a window that may still be running when it begins


def timeline_detail(
    timeline: Timeline, attribution: Attribution, timed: Timed, keys: Collection[str]
) -> TimelineDetail:
    """Windows, strips and trends of the regions called `keys`, of all processes together. `timed`: all instances."""
    table = attribution.table
    wanted = np.array([table.key(number) in keys for number in range(len(table))], dtype=np.bool_)
    instances = _instances_by_region(attribution, timeline)
    chooser = _Chooser(timeline, attribution, wanted, instances, timed)
    windows = chooser.choose()
    return TimelineDetail(
        windows=windows,
        launches=chooser.launches(windows),
        instances=_instances_in(windows, timeline, attribution, wanted, instances),
        strings=timeline.strings,
        table=table,
        profiled=timeline.kind != "measured",
        code=_code_in(windows, timeline),
        strips=instance_strips(timed, instances, wanted),
        trends=_trends(timeline, attribution, wanted, instances),
    )


def _instances_by_region(attribution: Attribution, timeline: Timeline) -> dict[int, Int64s]:
    """The range instances of each region, in order of start."""
    order = np.argsort(timeline.ranges.start, kind="stable")
    return {region: order[part] for region, part in group_by(attribution.range_region[order])}


@define(eq=False)
class _Pieces:
    """All GPU work of one process, of every kind, in order of start."""

    kind: Int32s
    name: Int32s
    device: Int32s
    start: Int64s
    end: Int64s
    host_time: Int64s
    region: Int64s

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution, process: int) -> _Pieces:
        works = timeline.work
        mine = [np.flatnonzero(work.process == process) for work in works]
        start = np.concatenate([work.start[i] for work, i in zip(works, mine, strict=True)])
        order = np.argsort(start, kind="stable")

        def column(field: str) -> Int64s:
            joined: Int64s = np.concatenate([getattr(work, field)[i] for work, i in zip(works, mine, strict=True)])
            return joined[order]

        kinds = [np.full(len(i), kind) for kind, i in zip((KERNEL, COPY, GRAPH), mine, strict=True)]
        regions = [_innermost(m)[i] for m, i in zip(attribution.memberships, mine, strict=True)]
        return _Pieces(
            kind=np.concatenate(kinds)[order].astype(np.int32),
            name=column("name").astype(np.int32),
            device=column("device").astype(np.int32),
            start=start[order],
            end=column("end"),
            host_time=column("host_time"),
            region=np.concatenate(regions)[order],
        )

    def within(self, start: int, end: int) -> tuple[Int64s, int]:
        """What runs in a window, or was launched in it and runs later; and when the last of that ends."""
        first = int(np.searchsorted(self.start, start))
        after = int(np.searchsorted(self.start, end))
        back = np.arange(max(first - _LOOK_BACK, 0), first)
        ahead = slice(after, after + MOST_IN_WINDOW)
        late = np.flatnonzero((self.host_time[ahead] != UNKNOWN) & (self.host_time[ahead] < end))
        # Work of other ranges between the late pieces is kept too: the GPU was not idle then.
        until = after + int(late[-1]) + 1 if len(late) else after
        chosen = np.concatenate([back[self.end[back] > start], np.arange(first, until)])
        last = max(end, int(self.end[after:until].max())) if until > after else end
        return chosen, last


def _innermost(membership: Membership) -> Int64s:
    """One region for each piece: in the domain that holds most of them, else in any other that has one."""
    found = np.full(len(membership.adopted), ROOT, dtype=np.int64)
    for regions in sorted(membership.by_domain, key=lambda regions: -int((regions != ROOT).sum())):
        found = np.where(found == ROOT, regions, found)
    return found


@define(eq=False)
class _Chooser:
    """Chooses windows until the allowance of launches is used up."""

    timeline: Timeline
    attribution: Attribution
    wanted: Bools
    instances: dict[int, Int64s]
    timed: Timed
    _pieces: dict[int, _Pieces] = field(factory=dict, init=False)  # by process
    _left: int = field(default=MOST_LAUNCHES, init=False)
    _windows: list[Window] = field(factory=list, init=False)
    _contents: list[Int64s] = field(factory=list, init=False)  # which pieces, window by window
    _done: set[int] = field(factory=set, init=False)  # instances looked at already

    def choose(self) -> list[Window]:
        table = self.attribution.table
        outermost = [n for n in self.instances if self.wanted[n] and not self._has_wanted_parent(n)]
        for which in ("typical", "first", "last"):
            level = outermost
            while level and self._left > 0 and len(self._windows) < MOST_WINDOWS:
                too_long = [n for n in self._by_wall(level) if not self._take(n, which)]
                inside = [n for n in self.instances if self.wanted[n] and table.parent[n] in too_long]
                for number in too_long:
                    if not any(table.parent[n] == number for n in inside):
                        self._take(number, which, cut=True)
                level = inside
        order = sorted(range(len(self._windows)), key=lambda i: (self._windows[i].process, self._windows[i].start))
        self._windows = [self._windows[i] for i in order]
        self._contents = [self._contents[i] for i in order]
        return self._windows

    def _has_wanted_parent(self, number: int) -> bool:
        parent = self.attribution.table.parent[number]
        return parent != ROOT and bool(self.wanted[parent])

    def _by_wall(self, numbers: list[int]) -> list[int]:
        ranges = self.timeline.ranges

        def wall(number: int) -> int:
            mine = self.instances[number]
            return int((ranges.end[mine] - ranges.start[mine]).sum())

        return sorted(numbers, key=wall, reverse=True)

    def _take(self, number: int, which: str, cut: bool = False) -> bool:
        """Keep one instance of a region. False: it is too long to be kept whole."""
        if len(self._windows) >= MOST_WINDOWS:
            return True
        at = self._chosen(number, which)
        ranges = self.timeline.ranges
        process, start, end = int(ranges.process[at]), int(ranges.start[at]), int(ranges.end[at])
        if at in self._done:
            return True
        if any(w.process == process and w.start <= start and end <= w.end for w in self._windows):
            return True
        if process not in self._pieces:
            self._pieces[process] = _Pieces.of(self.timeline, self.attribution, process)
        pieces = self._pieces[process]
        chosen, last = pieces.within(start, end)
        allowed = min(MOST_IN_WINDOW, self._left)
        if len(chosen) > allowed:
            if not cut:
                return False
            chosen = chosen[:allowed]
            last = int(pieces.end[chosen].max()) if len(chosen) else start
        else:
            cut = False
        self._done.add(at)
        if not len(chosen):
            return True  # nothing ran: there is nothing to show
        self._windows.append(Window(process, start, last, cut=cut))
        self._contents.append(chosen)
        self._left -= len(chosen)
        return True

    def _chosen(self, number: int, which: str) -> int:
        """An instance of a region; the typical one is steady and about as long as half of those are."""
        mine = self.instances[number]
        if which != "typical":
            return int(mine[0 if which == "first" else -1])
        steady = np.flatnonzero(~self.timed.warmup[mine])
        places = steady if len(steady) else np.arange(len(mine))
        duration = self.timed.duration[mine[places]]
        off, from_middle = np.abs(duration - np.median(duration)), np.abs(places - len(mine) // 2)
        return int(mine[places[np.lexsort((from_middle, off))[0]]])

    def launches(self, windows: list[Window]) -> Launches:
        def column(field: str) -> Int64s:
            parts = [getattr(self._pieces[w.process], field)[i] for w, i in zip(windows, self._contents, strict=True)]
            return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

        sizes = [len(part) for part in self._contents]
        return Launches(
            window=np.repeat(np.arange(len(windows)), sizes).astype(np.int32),
            kind=column("kind").astype(np.int32),
            name=column("name").astype(np.int32),
            device=column("device").astype(np.int32),
            start=column("start"),
            end=column("end"),
            host_time=column("host_time"),
            region=column("region"),
        )


def _instances_in(
    windows: list[Window], timeline: Timeline, attribution: Attribution, wanted: Bools, instances: dict[int, Int64s]
) -> Instances:
    """Range instances with a part in the windows; the longest where there are too many."""
    ranges = timeline.ranges
    number = np.zeros(len(ranges), dtype=np.int32)
    for part in instances.values():
        number[part] = np.arange(len(part))
    found: list[Int64s] = []
    for window in windows:
        # Also those that reach out of the window: they are what is around it.
        inside = (ranges.process == window.process) & (ranges.end > window.start) & (ranges.start < window.end)
        mine = np.flatnonzero(inside & wanted[attribution.range_region]) if len(wanted) else np.zeros(0, dtype=np.int64)
        allowed = MOST_RANGES // len(windows)
        if len(mine) > allowed:
            length = ranges.end[mine] - ranges.start[mine]
            mine = mine[np.sort(np.argsort(-length, kind="stable")[:allowed])]
        found.append(mine[np.lexsort((-ranges.end[mine], ranges.start[mine]))])
    chosen = np.concatenate([np.zeros(0, dtype=np.int64), *found])
    return Instances(
        window=np.repeat(np.arange(len(windows)), [len(part) for part in found]).astype(np.int32),
        region=attribution.range_region[chosen],
        number=number[chosen],
        start=ranges.start[chosen],
        end=ranges.end[chosen],
    )


def _code_in(windows: list[Window], timeline: Timeline) -> HostCode:
    """Of each process the thread that has most to tell, among those that launch.

    Where no lines were recorded: its operators, and the calls of CUDA in them.
    """
    spans, found, cut = timeline.code, [], []
    spans = spans if len(spans) else _called_in(windows, timeline)
    for number, window in enumerate(windows):
        launching = [work.thread[work.process == window.process] for work in timeline.work]
        inside = (spans.process == window.process) & (spans.end > window.start) & (spans.start < window.end)
        mine = (
            np.flatnonzero(inside & np.isin(spans.thread, np.unique(np.concatenate(launching)))) if len(spans) else ()
        )
        if not len(mine):
            continue
        mine = mine[spans.thread[mine] == np.argmax(np.bincount(spans.thread[mine]))]
        length = spans.end[mine] - spans.start[mine]
        mine = mine[np.argsort(-length, kind="stable")[: MOST_LINES // len(windows)]]
        found.append(mine[np.argsort(spans.start[mine], kind="stable")])
        cut.append(np.full(len(found[-1]), number))
    chosen, window_of = (np.concatenate([np.zeros(0, dtype=np.int64), *parts]) for parts in (found, cut))
    return HostCode(window_of.astype(np.int32), spans.place[chosen], spans.start[chosen], spans.end[chosen])


def _called_in(windows: list[Window], timeline: Timeline) -> CodeSpans:
    """Calls and outermost operators that share time with some windows."""
    shown = BusyTime.of(
        *(np.array([getattr(window, side) for window in windows], dtype=np.int64) for side in ("start", "end"))
    )
    host, calls = timeline.host, timeline.calls
    called = np.flatnonzero((host.kind == CALL) & (host.thread != UNKNOWN) & (shown.within(host.start, host.end) > 0))
    operators = calls.chosen(shown.within(calls.start, calls.end) > 0)
    operators = operators.chosen(outermost_around(operators) == np.arange(len(operators)))
    start, end, thread, name = (
        np.concatenate([getattr(host, column)[called], getattr(operators, column)])
        for column in ("start", "end", "thread", "name")
    )
    return innermost(start, end, thread, name.astype(np.int64), timeline.threads)


# -- trends ----------------------------------------------------------------------------------------


def _trends(
    timeline: Timeline, attribution: Attribution, wanted: Bools, instances: dict[int, Int64s]
) -> dict[int, dict[str, str]]:
    """Mean duration of each kernel in each instance of each region, instances in groups where they are many."""
    kernels = timeline.kernels
    moment = np.where(kernels.host_time == UNKNOWN, kernels.start, kernels.host_time)
    everything = np.argsort(moment, kind="stable")
    found = {ROOT: _trend_rows(timeline, everything, _in_equal_parts(len(everything)))}
    for number, members in _members(attribution, wanted):
        members = members[np.argsort(moment[members], kind="stable")]
        ranges = instances.get(number)
        if ranges is None or len(ranges) < 2:
            groups = _in_equal_parts(len(members))
        else:
            starts = timeline.ranges.start[ranges]
            place = np.clip(np.searchsorted(starts, moment[members], side="right") - 1, 0, None)
            groups = place if len(ranges) <= TREND_GROUPS else place * TREND_GROUPS // len(ranges)
        found[number] = _trend_rows(timeline, members, groups)
    return found


def _in_equal_parts(count: int) -> Int64s:
    parts = min(count, TREND_GROUPS)
    return np.arange(count, dtype=np.int64) * parts // max(count, 1)


def _members(attribution: Attribution, wanted: Bools) -> Iterator[tuple[int, Int64s]]:
    """Each wanted region with the kernels in it, nested regions included."""
    parent, depth = attribution.table.arrays()
    for regions in attribution.kernels.by_domain:
        which = np.flatnonzero(regions != ROOT)
        for current, on_level in levels_up(regions[which], parent, depth):
            here = on_level & wanted[current]
            for region, part in group_by(current[here]):
                yield region, which[here][part]
    for number, members in attribution.kernels.beside_stacks():
        if wanted[number] and len(members):
            yield number, members


def _trend_rows(timeline: Timeline, members: Int64s, groups: Int64s) -> dict[str, str]:
    if not len(members):
        return {}
    kernels = timeline.kernels
    names, row = np.unique(kernels.name[members], return_inverse=True)
    count = int(groups.max()) + 1
    key = row.reshape(-1) * count + groups
    size = len(names) * count
    calls = np.bincount(key, minlength=size).reshape(len(names), count)
    total = np.bincount(key, weights=kernels.end[members] - kernels.start[members], minlength=size)
    mean = total.reshape(len(names), count) / np.maximum(calls, 1)
    top = np.maximum(mean.max(axis=1, keepdims=True), 1.0)
    level = np.rint(mean / top * (len(TREND_LEVELS) - 1)).astype(np.int64)
    characters = np.where(calls > 0, _TREND_BYTES[level], ord(NO_LAUNCH)).astype(np.uint8)
    return {timeline.strings[n]: characters[row].tobytes().decode("ascii") for row, n in enumerate(names.tolist())}
