"""The instances of all regions of a timeline: which are warm-up, and how long each takes once that is taken off.

What warm-up does to a region has two sides. Its own warm-up instances do not count: neither their time nor their
work. A region around them goes on counting their work, for it is part of what the region does, but not the time
that they took longer than steady instances do.
"""

from __future__ import annotations

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.regions.attribution import Attribution, Membership
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline, Work
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.merged_work import merged_work
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT, levels_up
from llm_perf_opt.regions.warmup import excess, split


@define(eq=False)
class Instances:
    """One element for each range of a timeline."""

    duration: Int64s  # on the host
    working: Int64s  # of that, the GPU ran something of the process
    warmup: Bools  # a warm-up instance, or inside one
    first: Bools  # of those, the outermost: a warm-up instance of its own region
    late: Int64s  # of the duration, what warm-up instances inside took longer than steady ones
    late_idle: Int64s  # of that, the GPU did nothing
    level_change: dict[int, int]  # region -> the instance, counted from 0, from which on all take another time
    steady_duration: Int64s = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.steady_duration = np.maximum(self.duration - self.late, 0)


def find_instances(timeline: Timeline, attribution: Attribution) -> Instances:
    """Instances of all regions, warm-up told apart region by region, the outermost first."""
    ranges, region_of, parent_of = timeline.ranges, attribution.range_region, attribution.range_parent
    duration, working = ranges.duration, _working(timeline)
    idle = duration - working
    warmup, first = (np.zeros(len(ranges), dtype=np.bool_) for _ in range(2))
    late, late_idle = (np.zeros(len(ranges), dtype=np.int64) for _ in range(2))
    depth = np.array([*attribution.table.depth, 0], dtype=np.int64)[region_of]
    changes: dict[int, int] = {}
    for _, level in group_by(depth):
        inherited = parent_of[level] != UNKNOWN
        inherited[inherited] = warmup[parent_of[level[inherited]]]
        warmup[level] = inherited
        # Threads and processes warm up each by itself.
        owner = ranges.thread[level].astype(np.int64) * (len(attribution.table) + 1) + region_of[level] + 1
        for _, part in group_by(owner):
            mine = level[part[~inherited[part]]]
            # A whole recording is there once for each process: one is no warm-up of another.
            whole = int(region_of[level[part[0]]]) in attribution.table.whole
            if len(mine) < 2 or whole or timeline.processes[ranges.process[mine[0]]].warm:
                continue
            mine = mine[np.argsort(ranges.start[mine], kind="stable")]
            found = split(duration[mine], working[mine])
            if found.level_change is not None:
                changes[int(region_of[mine[0]])] = found.level_change
            if found.warmup:
                warm = np.arange(len(mine)) < found.warmup
                warmup[mine[warm]] = first[mine[warm]] = True
                late[mine] = excess(duration[mine], warm)
                late_idle[mine] = np.minimum(excess(idle[mine], warm), late[mine])
    _hand_up(late, first, parent_of, depth)
    _hand_up(late_idle, first, parent_of, depth)
    return Instances(duration, working, warmup, first, late, late_idle, changes)


def _hand_up(late: Int64s, first: Bools, parent_of: Int64s, depth: Int64s) -> None:
    """From the excess of each warm-up instance to that of all instances around it; warm-up itself has none left."""
    for _, level in reversed(list(group_by(depth))):
        inside = level[parent_of[level] != UNKNOWN]
        np.add.at(late, parent_of[inside], late[inside])
    late[first] = 0


def _working(timeline: Timeline) -> Int64s:
    """Of each range, how long the GPU ran something of its process."""
    ranges = timeline.ranges
    working = np.zeros(len(ranges), dtype=np.int64)
    for process, mine in group_by(ranges.process):
        working[mine] = merged_work(timeline, process).busy.within(ranges.start[mine], ranges.end[mine])
    return working


def without_warmup(timeline: Timeline, attribution: Attribution, instances: Instances) -> Attribution:
    """The same attribution, but work inside a warm-up instance belongs to what is around that."""
    lifted = [
        _lifted(work, membership, timeline, attribution, instances)
        for work, membership in zip(timeline.work, attribution.memberships, strict=True)
    ]
    return evolve(attribution, kernels=lifted[0], copies=lifted[1], graphs=lifted[2])


def _lifted(
    work: Work, membership: Membership, timeline: Timeline, attribution: Attribution, instances: Instances
) -> Membership:
    ranges, table = timeline.ranges, attribution.table
    warm = np.flatnonzero(instances.first)
    if not len(warm) or not len(work):
        return membership
    parent, depth = table.arrays()
    # Windows of one region in one process, end to end on an axis of their own: of the places of moments among all edges,
    # which stay small whatever the times are.
    start, end = ranges.start[warm], ranges.end[warm]
    edges = np.unique(np.concatenate([start, end]))
    span = len(edges) + 2
    own = (ranges.process[warm].astype(np.int64) * len(table) + attribution.range_region[warm]) * span
    start, end = (own + np.searchsorted(edges, times, side="right") for times in (start, end))
    order = np.argsort(start, kind="stable")
    windows = BusyTime.of(start[order], end[order])
    places = np.searchsorted(edges, work.host_time, side="right")
    known = work.host_time != UNKNOWN
    by_domain = []
    for regions in membership.by_domain:
        regions = regions.copy()
        inside = np.flatnonzero(known & (regions != ROOT))
        for current, here in levels_up(regions[inside], parent, depth):
            members = inside[here]
            moment = (work.process[members].astype(np.int64) * len(table) + current[here]) * span + places[members]
            hit = windows.within(moment, moment + 1) > 0
            regions[members[hit]] = parent[current[here]][hit]
        by_domain.append(regions)
    return evolve(membership, by_domain=by_domain, start_end=_outside(work, membership, timeline, attribution, warm))


def _outside(
    work: Work, membership: Membership, timeline: Timeline, attribution: Attribution, warm: Int64s
) -> dict[int, Int64s]:
    """Start/end regions without the work of their warm-up instances."""
    ranges, found = timeline.ranges, dict(membership.start_end)
    for region, part in group_by(attribution.range_region[warm]):
        if region in found and attribution.table.start_end[region]:
            mine = warm[part]
            windows = BusyTime.of(ranges.start[mine], ranges.end[mine])
            moments = work.host_time[found[region]]
            found[region] = found[region][windows.within(moments, moments + 1) == 0]
    return found
