"""Bytes that the GPU moved in a region, from samples of the whole GPU that nsys takes with a timeline.

A sample knows a stretch of time, not a region. So a region has what was moved from the begin of its first piece of
work to the end of its last, wherever no other work begins between (a run of pieces). Where samples do not end in the
pause between two runs, part of one sample belongs to the neighbour: it is shared in proportion to the time, and the
whole of it counts as possible error. So does everything that is moved while other work runs too, and as much as the
GPU moves at that time when nothing of the recording runs: then somebody else uses it. Where that is more than a little,
the region is not said to be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import Factory, define, field
from numpy.typing import NDArray

from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import Bools, Int64s, Timeline
from llm_perf_opt.regions.rollup import Selection
from llm_perf_opt.regions.table import ROOT, RegionTable
from llm_perf_opt.regions.traffic import SampledGpu, Traffic

# Beyond this share of the bytes that may be the neighbours', counters of the region's own kernels tell more.
MOST_UNCERTAIN = 0.025
_ALWAYS = 2**62  # ns: before and after all work
_AROUND_NS = 50_000_000  # where to look for intervals without work, where a region has none

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@define
class Moved:
    """Bytes of one region and counter, as far as one can tell."""

    value: float = 0.0
    uncertain: float = 0.0  # bytes that may be those of other work
    samples: int = 0

    def is_measured(self) -> bool:
        return self.value > 0 and self.uncertain <= MOST_UNCERTAIN * self.value


def moved_in_regions(
    timeline: Timeline, attribution: Attribution, selection: Selection, wanted: list[bool]
) -> dict[int, dict[str, Moved]]:
    """What was moved in each wanted region, as far as samples of its devices say; by region and counter."""
    found: dict[int, dict[str, Moved]] = {}
    unknown: set[int] = set()  # regions with work that nobody sampled
    pieces = _Pieces.of(timeline, attribution, selection)
    for here, traffic in pieces.by_gpu(timeline.sampled_gpus):
        idle = None if traffic is None else _Idle.of(traffic, here.start, here.over)
        for region, members in here.by_region(attribution.table):
            if not wanted[region] or region in unknown:
                continue
            moved = None if traffic is None or idle is None else _moved(traffic, here, members, idle)
            if moved is None:
                unknown.add(region)
                found.pop(region, None)
            else:
                add_moved(found.setdefault(region, {}), moved)
    return found


def moved_by_others(timeline: Timeline) -> dict[int, float]:
    """Devices that keep moving much while nothing of the recording runs on them: bytes a second.

    The driver, too, moves much at times: when it clears memory. That is no steady stream.
    """
    found: dict[int, float] = {}
    for gpu in timeline.sampled_gpus:
        device, traffic = gpu.device, gpu.traffic
        works = [(work, _is_on(gpu, work.device, work.process)) for work in timeline.work]
        start, end = (np.concatenate([getattr(work, side)[on] for work, on in works]) for side in ("start", "end"))
        if not len(start):
            continue
        order = np.argsort(start, kind="stable")
        start, over = start[order], np.maximum.accumulate(end[order])
        inside = (traffic.start >= start[0]) & (traffic.start < over[-1])
        idle = _idle_intervals(traffic, start, over) & inside
        for values in traffic.bytes.values() if idle.any() else ():
            steady = float(np.median(values[idle]))
            if steady > MOST_UNCERTAIN * float(values[inside].mean()):
                found[device] = max(found.get(device, 0.0), steady / traffic.step * 1e9)
    return found


def _idle_intervals(traffic: Traffic, start: Int64s, over: Int64s) -> Bools:
    """Intervals without work of the recording, nor work in the one before: what comes late of that is not in them.

    `start`: of the pieces of work, in order; `over`: of each, when it and all before it had ended.
    """
    last = np.searchsorted(start, traffic.start + traffic.step) - 1  # that began before the interval ended
    idle: Bools = (last < 0) | (over[np.maximum(last, 0)] <= traffic.start - traffic.step)
    return idle


def _is_on(gpu: SampledGpu, device: Ints, process: Ints) -> Bools:
    there: Bools = (device == gpu.device) & (process >= gpu.first_process) & (process < gpu.end_process)
    return there


@define(eq=False)
class _Idle:
    """How much a GPU moves, and for how many intervals, without work of the recording; before each interval."""

    intervals: Int64s
    bytes: dict[str, Int64s]

    @staticmethod
    def of(traffic: Traffic, start: Int64s, over: Int64s) -> _Idle:
        idle = _idle_intervals(traffic, start, over)
        sums = {name: np.concatenate([[0], np.cumsum(values * idle)]) for name, values in traffic.bytes.items()}
        return _Idle(np.concatenate([[0], np.cumsum(idle)]), sums)

    def rate(self, traffic: Traffic, counter: str, since: int, until: int) -> float:
        """Bytes a nanosecond in idle intervals of that time, and a little before and after it."""
        around = (since - _AROUND_NS, until + _AROUND_NS)
        first, last = (int(np.searchsorted(traffic.start, moment)) for moment in around)
        time = int(self.intervals[last] - self.intervals[first]) * traffic.step
        return float(self.bytes[counter][last] - self.bytes[counter][first]) / time if time else 0.0


def add_moved(sums: dict[str, Moved], more: dict[str, Moved]) -> None:
    """What another GPU, or another recording, moved in the same region."""
    for counter, moved in more.items():
        known = sums.setdefault(counter, Moved())
        known.value += moved.value
        known.uncertain += moved.uncertain
        known.samples += moved.samples


@define(eq=False)
class _Pieces:
    """Kernels, copies and whole graphs, in the order they began, with the regions of those that are selected."""

    start: Int64s
    end: Int64s
    device: Int64s
    process: Int64s
    by_domain: list[Int64s]
    start_end: dict[int, Int64s] = Factory(dict)
    over: Int64s = field(init=False)  # when each, and all that began before it, had ended

    def __attrs_post_init__(self) -> None:
        self.over = np.maximum.accumulate(self.end) if len(self.end) else self.end

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution, selection: Selection) -> _Pieces:
        chosen_of = (selection.kernels, selection.copies, selection.graphs)
        parts = list(zip(timeline.work, attribution.memberships, chosen_of, strict=True))
        start, end, device, process = (
            np.concatenate([getattr(work, field).astype(np.int64) for work, _, _ in parts])
            for field in ("start", "end", "device", "process")
        )
        order = np.argsort(start, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        domains = max((len(membership.by_domain) for _, membership, _ in parts), default=0)
        by_domain = [np.full(len(order), ROOT, dtype=np.int64) for _ in range(domains)]
        start_end: dict[int, list[Int64s]] = {}
        before = 0
        for work, membership, chosen in parts:
            for regions, own in zip(by_domain, membership.by_domain, strict=False):
                regions[place[before + chosen]] = own[chosen]
            for region, members in membership.beside_stacks():
                inside = members[np.isin(members, chosen)]
                start_end.setdefault(region, []).append(place[before + inside])
            before += len(work)
        joined = {region: np.sort(np.concatenate(members)) for region, members in start_end.items()}
        return _Pieces(start[order], end[order], device[order], process[order], by_domain, joined)

    def by_gpu(self, gpus: Sequence[SampledGpu]) -> Iterator[tuple[_Pieces, Traffic | None]]:
        """Those of each sampled GPU; at last those of all others."""
        elsewhere = np.ones(len(self.start), dtype=np.bool_)
        for gpu in gpus:
            there = _is_on(gpu, self.device, self.process)
            if there.any():
                yield self._only(there), gpu.traffic
            elsewhere &= ~there
        if elsewhere.any():
            yield self._only(elsewhere), None

    def _only(self, there: Bools) -> _Pieces:
        if there.all():
            return self
        place = np.cumsum(there) - 1
        start_end = {region: place[members[there[members]]] for region, members in self.start_end.items()}
        by_domain = [regions[there] for regions in self.by_domain]
        start, end, device, process = (column[there] for column in (self.start, self.end, self.device, self.process))
        return _Pieces(start, end, device, process, by_domain, start_end)

    def by_region(self, table: RegionTable) -> Iterator[tuple[int, Int64s]]:
        """Every region with pieces of its own or below it, and all of those, in order."""
        order = table.in_tree_order()
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        size = np.ones(len(order), dtype=np.int64)
        for region in reversed(order):
            if table.parent[region] != ROOT:
                size[table.parent[region]] += size[region]
        for regions in self.by_domain:
            inside = np.flatnonzero(regions != ROOT)
            if not len(inside):
                continue
            at = position[regions[inside]]
            by_position = np.argsort(at, kind="stable")
            at, inside = at[by_position], inside[by_position]
            first = np.searchsorted(at, position)
            last = np.searchsorted(at, position + size)
            for region in np.flatnonzero(last > first).tolist():
                yield region, np.sort(inside[first[region] : last[region]])
        for region, members in self.start_end.items():
            if len(members):
                yield region, members


def _moved(traffic: Traffic, pieces: _Pieces, members: Int64s, idle: _Idle) -> dict[str, Moved] | None:
    """Bytes moved in the runs of some pieces; None where samples of that time are missing."""
    breaks = np.flatnonzero(np.diff(members) > 1)
    first = members[np.concatenate([[0], breaks + 1])]
    last = members[np.concatenate([breaks, [len(members) - 1]])]
    runs = np.concatenate([[0], breaks + 1])
    starts, ends = pieces.start[first], np.maximum.reduceat(pieces.end[members], runs)
    others_ended = np.where(first > 0, pieces.over[first - 1], -_ALWAYS)
    following = np.where(
        last + 1 < len(pieces.start), pieces.start[np.minimum(last + 1, len(pieces.start) - 1)], _ALWAYS
    )
    begin, begin_clear = _begin_of(traffic, starts, others_ended)
    end, end_clear = _end_of(traffic, ends, following)
    in_time = (begin >= 0) & (end < len(traffic))  # so that there is a sample at and around each end
    if not (in_time.all() and traffic.whole(begin, np.maximum(end, begin)).all()):
        return None
    # While others were still at it, and after they had begun.
    shared = (np.minimum(others_ended, ends), starts), (ends, np.maximum(following, starts))
    result = {}
    for counter in traffic.bytes:
        lower, unsure_lower = _up_to(traffic, counter, starts, begin, begin_clear)
        upper, unsure_upper = _up_to(traffic, counter, ends, end - 1, end_clear, after=True)
        moved = float(np.maximum(upper - lower, 0.0).sum())
        uncertain = float(unsure_lower.sum() + unsure_upper.sum())
        uncertain += idle.rate(traffic, counter, int(starts[0]), int(ends.max())) * float((ends - starts).sum())
        for until, since in shared:
            overlapping = until > since
            uncertain += _between(traffic, counter, since[overlapping], until[overlapping])
        result[counter] = Moved(moved, uncertain, int((end - begin).sum()))
    return result


def _between(traffic: Traffic, counter: str, since: Int64s, until: Int64s) -> float:
    """All bytes of the intervals that some stretches of time touch."""
    first = np.maximum(np.searchsorted(traffic.start, since, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(traffic.start, until, side="left"), len(traffic))
    return float((traffic.until(counter, last) - traffic.until(counter, first)).sum())


def _begin_of(traffic: Traffic, start: Int64s, ended: Int64s) -> tuple[Int64s, Bools]:
    """The last interval that begins before some work, and whether no earlier work is in it."""
    interval = np.searchsorted(traffic.start, start, side="right") - 1
    return interval, traffic.start[np.maximum(interval, 0)] >= ended


def _end_of(traffic: Traffic, ended: Int64s, following: Int64s) -> tuple[Int64s, Bools]:
    """The first interval that begins after some work has ended, and whether no later work had begun by then."""
    interval = np.searchsorted(traffic.start, ended, side="left")
    return interval, traffic.start[np.minimum(interval, len(traffic) - 1)] <= following


def _up_to(
    traffic: Traffic, counter: str, moment: Int64s, interval: Int64s, clear: Bools, after: bool = False
) -> tuple[Floats, Floats]:
    """Bytes until a moment in an interval, and how many of them may belong to the other side of it.

    `clear`: nothing else was going on around the begin (`after`: the end) of the interval, so that it is exact.
    """
    before, behind = traffic.until(counter, interval), traffic.until(counter, interval + 1)
    share = np.clip((moment - traffic.start[interval]) / max(traffic.step, 1), 0.0, 1.0)
    exact = behind if after else before
    value = np.where(clear, exact, before + share * (behind - before))
    return value, np.where(clear, 0.0, behind - before)
