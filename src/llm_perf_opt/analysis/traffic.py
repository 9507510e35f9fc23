"""Bytes that the GPU moved in a region, from samples of the whole GPU beside the timeline.

A sample knows a stretch of time, not a region. So a region has what was moved from the begin of its first piece of
work to the end of its last, wherever no other work lies between (a run of pieces). Where samples do not end in the
pause between two runs, part of one sample belongs to the neighbour: it is shared in proportion to the time, and the
whole of it counts as possible error. A region of many short runs has more of that than it has bytes: it is then not
said to be measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.regions.attribution import Attribution, Membership
from llm_perf_opt.regions.columns import Bools, Int64s, Timeline, Work
from llm_perf_opt.regions.rollup import Selection
from llm_perf_opt.regions.table import ROOT, RegionTable
from llm_perf_opt.regions.traffic import Traffic

# Beyond this share of the bytes that may be the neighbours', counters of the region's own kernels tell more.
MOST_UNCERTAIN = 0.025
_ALWAYS = 2**62  # ns: before and after all work

Floats = NDArray[np.float64]


@define
class Moved:
    """Bytes of one region and counter."""

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
    for device in np.unique(pieces.device).tolist():
        here = pieces.on(device)
        traffic = timeline.traffic.get(device)
        for region, members in here.by_region(attribution.table):
            if not wanted[region] or region in unknown:
                continue
            moved = None if traffic is None else _moved(traffic, here, members)
            if moved is None:
                unknown.add(region)
                found.pop(region, None)
            else:
                _add(found.setdefault(region, {}), moved)
    return found


def _add(sums: dict[str, Moved], more: dict[str, Moved]) -> None:
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
    by_domain: list[Int64s]
    start_end: dict[int, Int64s] = Factory(dict)

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution, selection: Selection) -> _Pieces:
        parts: list[tuple[Work, Membership, Int64s]] = [
            (timeline.kernels, attribution.kernels, selection.kernels),
            (timeline.copies, attribution.copies, selection.copies),
            (timeline.graphs, attribution.graphs, selection.graphs),
        ]
        start, end, device = (
            np.concatenate([getattr(work, field).astype(np.int64) for work, _, _ in parts])
            for field in ("start", "end", "device")
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
            for region, members in membership.start_end.items():
                inside = members[_among(members, chosen, len(work))]
                start_end.setdefault(region, []).append(place[before + inside])
            before += len(work)
        joined = {region: np.sort(np.concatenate(members)) for region, members in start_end.items()}
        return _Pieces(start[order], end[order], device[order], by_domain, joined)

    def on(self, device: int) -> _Pieces:
        there = self.device == device
        if there.all():
            return self
        place = np.cumsum(there) - 1
        start_end = {region: place[members[there[members]]] for region, members in self.start_end.items()}
        by_domain = [regions[there] for regions in self.by_domain]
        return _Pieces(self.start[there], self.end[there], self.device[there], by_domain, start_end)

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


def _among(members: Int64s, chosen: Int64s, count: int) -> Bools:
    mask = np.zeros(count, dtype=np.bool_)
    mask[chosen] = True
    return mask[members]


def _moved(traffic: Traffic, pieces: _Pieces, members: Int64s) -> dict[str, Moved] | None:
    """Bytes moved in the runs of some pieces; None where samples of that time are missing."""
    breaks = np.flatnonzero(np.diff(members) > 1)
    first = members[np.concatenate([[0], breaks + 1])]
    last = members[np.concatenate([breaks, [len(members) - 1]])]
    over = np.maximum.accumulate(pieces.end)  # when everything that began until then had ended
    ended = np.where(first > 0, over[first - 1], -_ALWAYS)
    following = np.where(last + 1 < len(over), pieces.start[np.minimum(last + 1, len(over) - 1)], _ALWAYS)
    begin, begin_clear = _begin_of(traffic, pieces.start[first], ended)
    end, end_clear = _end_of(traffic, over[last], following)
    in_time = (begin >= 0) & (end < len(traffic))  # so that there is a sample at and around each end
    if not (in_time.all() and traffic.whole(begin, np.maximum(end, begin)).all()):
        return None
    result = {}
    for counter in traffic.bytes:
        lower, unsure_lower = _up_to(traffic, counter, pieces.start[first], begin, begin_clear)
        upper, unsure_upper = _up_to(traffic, counter, over[last], end - 1, end_clear, after=True)
        moved = np.maximum(upper - lower, 0.0)
        result[counter] = Moved(
            float(moved.sum()), float(unsure_lower.sum() + unsure_upper.sum()), int((end - begin).sum())
        )
    return result


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
