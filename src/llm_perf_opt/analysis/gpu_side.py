"""The instances of a region as the GPU sees them: each from the first start to the last end of its own work.

A server or an asynchronous loop closes its ranges long before their work has begun. What a step takes, and how long
the GPU waits between steps, is then to be read from the work alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import define

from llm_perf_opt.analysis.gaps import Gaps
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.idle import GpuSide
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.rollup import host_copies
from llm_perf_opt.regions.table import ROOT, RegionTable

_PAUSE = 1.0  # a pause between two instances belongs to the steps where it is no longer than this many of them


@define(eq=False)
class _Launched:
    """All work of a process in the order it was launched."""

    host: Int64s
    start: Int64s
    end: Int64s
    kind: Int64s  # which of `Timeline.work`
    index: Int64s  # in its columns

    @staticmethod
    def of(timeline: Timeline, process: int) -> _Launched:
        mine = [np.flatnonzero((w.process == process) & (w.host_time != UNKNOWN)) for w in timeline.work]
        host, start, end = (
            np.concatenate([getattr(work, name)[chosen] for work, chosen in zip(timeline.work, mine, strict=True)])
            for name in ("host_time", "start", "end")
        )
        kind, index = np.repeat(np.arange(len(mine)), [len(one) for one in mine]), np.concatenate(mine)
        order = np.argsort(host, kind="stable")
        return _Launched(*(column[order] for column in (host, start, end, kind, index)))


class GpuSteps:
    """Answers for many regions of one timeline."""

    def __init__(self, timeline: Timeline, attribution: Attribution, gaps: Callable[[int], Gaps]) -> None:
        self._timeline, self._attribution, self._gaps = timeline, attribution, gaps
        self._launched: dict[int, _Launched] = {}
        self._found: dict[tuple[int, int], tuple[Int64s, Int64s]] = {}
        self._waits: dict[int, BusyTime] = {}
        self._behind: dict[int, tuple[list[Int64s], Int64s]] = {}
        self._without_copies: dict[int, BusyTime] = {}

    def of(self, process: int, instances: Int64s, region: int) -> GpuSide | None:
        """`instances`: ranges of the region, of one process."""
        start, end = self.spans(process, instances, region)
        if not len(start):
            return None
        of_others = self._waits_of_others(process, region)
        steps = without(BusyTime.of(start, end), of_others)
        windows = without(self._with_pauses(process, start, end), of_others)
        if process not in self._waits:
            gaps = self._gaps(process)
            self._waits[process] = BusyTime.of(gaps.start, gaps.end)
        waits = self._waits[process]
        idle, inside = (int(waits.within(one.starts, one.ends).sum()) for one in (windows, steps))
        return GpuSide(
            instances=len(start),
            # Work of others between two steps is no time of theirs.
            time_ns=steps.total + idle - inside,
            idle_ns=idle,
            idle_between_ns=idle - inside,
            # Copies and collectives on streams of their own may start steps ahead: then the ends tell.
            step_ns=max(int(np.median(np.diff(np.sort(side)))) for side in (start, end)) if len(start) > 1 else None,
        )

    def windows(self, process: int, instances: Int64s, region: int) -> BusyTime:
        """The time from the first step to the last; long pauses left out, and waiting that is of other regions."""
        found = self._with_pauses(process, *self.spans(process, instances, region))
        return without(found, self._waits_of_others(process, region))

    def _with_pauses(self, process: int, start: Int64s, end: Int64s) -> BusyTime:
        """The steps, the short pauses between them, and short waits right before each but the first."""
        joined = _with_pauses(start, end)
        gaps = self._gaps(process)
        if len(start) < 2 or not len(gaps):
            return joined
        at = np.minimum(np.searchsorted(gaps.end, start), len(gaps) - 1)
        short = (gaps.end[at] == start) & (start - gaps.start[at] <= _longest_pause(start, end))
        short[0] = False
        return BusyTime.of(np.append(joined.starts, gaps.start[at[short]]), np.append(joined.ends, start[short]))

    def one_by_one(self, process: int, instances: Int64s, region: int) -> tuple[Int64s, Int64s]:
        """Starts and ends of the steps, each with the short pause before it."""
        start, end = self.spans(process, instances, region)
        if len(start) < 2:
            return start, end
        short = start[1:] - end[:-1] <= _longest_pause(start, end)
        return np.append(start[:1], np.where(short, np.minimum(end[:-1], start[1:]), start[1:])), end

    def _waits_of_others(self, process: int, region: int) -> tuple[Int64s, Int64s]:
        """Gaps that end with work of a region beside this one: that one's step waited.

        Else two regions whose steps alternate would both have the time that the GPU is idle between them.
        """
        gaps, table = self._gaps(process), self._attribution.table
        # A start/end range has whatever runs meanwhile; beside a whole recording there is nothing.
        if table.start_end[region] or region in table.whole or not len(gaps):
            return gaps.start[:0], gaps.end[:0]
        if process not in self._behind:
            self._behind[process] = self._work_behind(process, gaps)
        around = {region}
        while (above := table.parent[min(around, key=table.depth.__getitem__)]) != ROOT:
            around.add(above)
        found, present = self._behind[process]
        same = np.array([table.domain[number] == table.domain[region] for number in present.tolist()], dtype=np.bool_)
        others = np.zeros(len(table) + 1, dtype=np.bool_)  # the last is ROOT
        others[present] = same & ~np.isin(present, list(around)) & ~inside_region(present, region, table)
        beside = np.zeros(len(gaps), dtype=np.bool_)
        for regions in found:
            beside |= others[regions]
        return gaps.start[beside], gaps.end[beside]

    def _work_behind(self, process: int, gaps: Gaps) -> tuple[list[Int64s], Int64s]:
        """The regions of the work that each gap ends with, domain by domain (ROOT where there is none), and which they are."""
        launched = self._launches(process)
        order = np.argsort(launched.start, kind="stable")
        at = np.searchsorted(launched.start[order], gaps.end)
        known = np.flatnonzero(at < len(order))
        work = order[at[known]]
        known, work = (column[launched.start[work] == gaps.end[known]] for column in (known, work))
        found = []
        for domain in range(max((len(one.by_domain) for one in self._attribution.memberships), default=0)):
            regions = np.full(len(gaps), ROOT, dtype=np.int64)
            for kind, membership in enumerate(self._attribution.memberships):
                mine = launched.kind[work] == kind
                if domain < len(membership.by_domain):
                    regions[known[mine]] = membership.by_domain[domain][launched.index[work[mine]]]
            found.append(regions)
        used = distinct(*found)
        return found, used[used != ROOT]

    def _launches(self, process: int) -> _Launched:
        if process not in self._launched:
            self._launched[process] = _Launched.of(self._timeline, process)
        return self._launched[process]

    def exposed_copies(self, region: int, processes: frozenset[int] | None) -> int:
        """How long copies of the region between host and device ran while nothing else did, ns; None: of all processes."""
        copies, time = self._timeline.copies, 0
        between = host_copies(self._timeline)
        held = np.zeros(len(copies), dtype=np.bool_)
        for regions in self._attribution.copies.by_domain:
            held |= inside_region(regions, region, self._attribution.table)
        held[self._attribution.copies.pieces(region)] = True
        mine = between[held[between]]
        for process in np.unique(copies.process[mine]).tolist():
            if processes is None or process in processes:
                own = mine[copies.process[mine] == process]
                ran = BusyTime.of(copies.start[own], copies.end[own])
                time += ran.total - int(self._other_work(process, between).within(ran.starts, ran.ends).sum())
        return time

    def spans(self, process: int, instances: Int64s, region: int) -> tuple[Int64s, Int64s]:
        """First start and last end of the work of each instance that has some, in order of time."""
        if (process, region) in self._found:
            return self._found[process, region]
        _, starts, ends = self._bounds(process, instances, region)
        used = np.flatnonzero(ends > starts)
        used = used[np.argsort(starts[used], kind="stable")]
        self._found[process, region] = starts[used], ends[used]
        return self._found[process, region]

    def bounds(self, process: int, instances: Int64s, region: int) -> tuple[Int64s, Int64s, Int64s]:
        """Instances in order, and when the work of each began and ended; UNKNOWN for those without any."""
        order, starts, ends = self._bounds(process, instances, region)
        used = ends > starts
        return order, np.where(used, starts, UNKNOWN), np.where(used, ends, UNKNOWN)

    def _bounds(self, process: int, instances: Int64s, region: int) -> tuple[Int64s, Int64s, Int64s]:
        ranges = self._timeline.ranges
        launched = self._launches(process)
        order = instances[np.argsort(ranges.start[instances], kind="stable")]
        first = np.searchsorted(launched.host, ranges.start[order])
        count = np.maximum(np.searchsorted(launched.host, ranges.end[order]) - first, 0)
        which = np.repeat(np.arange(len(order)), count)
        at = np.arange(len(which)) + np.repeat(first - (np.cumsum(count) - count), count)
        held = self._held(launched, at, region)
        which, at = which[held], at[held]
        starts, ends = (np.full(len(order), sign * np.iinfo(np.int64).max) for sign in (1, -1))
        np.minimum.at(starts, which, launched.start[at])
        np.maximum.at(ends, which, launched.end[at])
        return order, starts, ends

    def _held(self, launched: _Launched, at: Int64s, region: int) -> Bools:
        """Which launches, all of them made while an instance of the region was open, belong to it."""
        table = self._attribution.table
        held = np.full(len(at), bool(table.start_end[region]))
        for kind, membership in enumerate(self._attribution.memberships):
            mine = np.flatnonzero(launched.kind[at] == kind)
            for regions in membership.by_domain if len(mine) else ():
                held[mine] |= inside_region(regions[launched.index[at[mine]]], region, table)
        return held

    def _other_work(self, process: int, left_out: Int64s) -> BusyTime:
        """All work of a process but for copies between host and device."""
        if process not in self._without_copies:
            parts = []
            for work in self._timeline.work:
                mine = work.process == process
                if work is self._timeline.copies:
                    mine[left_out] = False
                parts.append((work.start[mine], work.end[mine]))
            union = BusyTime.of(*(np.concatenate(side) for side in zip(*parts, strict=True)))
            self._without_copies[process] = union
        return self._without_copies[process]


def inside_region(regions: Int64s, region: int, table: RegionTable) -> Bools:
    """Which of some regions are this one, or lie in it."""
    inside = np.zeros(len(table) + 1, dtype=np.bool_)  # the last element stands for ROOT
    for number in (np.flatnonzero(np.bincount(regions + 1)[1:]) if len(regions) else regions).tolist():
        above = number
        while above != ROOT and table.depth[above] > table.depth[region]:
            above = table.parent[above]
        inside[number] = above == region
    return inside[regions]


def without(windows: BusyTime, left_out: tuple[Int64s, Int64s]) -> BusyTime:
    """Windows without some intervals, which are disjoint and in order."""
    starts, ends = left_out
    if not len(starts) or not len(windows.starts):
        return windows
    first = np.searchsorted(ends, windows.starts, side="right")
    counts = np.maximum(np.searchsorted(starts, windows.ends, side="left") - first, 0)
    which = np.repeat(np.arange(len(counts)), counts)
    at = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    begins = np.sort(np.append(windows.starts, np.minimum(ends[at], windows.ends[which])))
    finishes = np.sort(np.append(windows.ends, np.maximum(starts[at], windows.starts[which])))
    some = finishes > begins
    return BusyTime.of(begins[some], finishes[some])


def _longest_pause(start: Int64s, end: Int64s) -> int:
    return int(_PAUSE * np.median(end - start))


def _with_pauses(start: Int64s, end: Int64s) -> BusyTime:
    """The steps and the short pauses between them."""
    if not len(start):
        return BusyTime.of(start, end)
    longest = _longest_pause(start, end)
    joined = BusyTime.of(start, end + longest)
    # Each run of steps ends with the last of its steps, not with a pause.
    return BusyTime.of(joined.starts, joined.ends - longest)
