"""Collectives between GPUs, and how much of their time is exposed: one runs, and no other kernel on that device.

Only exposed communication is a cost; what runs beside computation is paid for already.
"""

from __future__ import annotations

import numpy as np
from attrs import define

from llm_perf_opt.metrics.families import COLLECTIVE, family_of
from llm_perf_opt.regions.attribution import Membership
from llm_perf_opt.regions.blocks import taken
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline
from llm_perf_opt.regions.distinct import distinct, is_one_of
from llm_perf_opt.regions.intervals import BusyTime, union_by_group
from llm_perf_opt.regions.table import ROOT, levels_up


@define(eq=False)
class CollectiveTimes:
    """One element for each region of a table."""

    total: Int64s  # a collective of the region runs, whatever else does
    exposed: Int64s  # and no other kernel on its device


def collective_kernels(timeline: Timeline, chosen: Int64s) -> Bools:
    """Which of the chosen kernels are collectives."""
    names = taken(timeline.kernels.name, chosen)
    used = distinct(names).tolist()
    return is_one_of(names, [n for n in used if n != UNKNOWN and family_of(timeline.strings[n]) == COLLECTIVE])


def collective_times(
    timeline: Timeline, membership: Membership, chosen: Int64s, parent: Int64s, depth: Int64s
) -> CollectiveTimes:
    """Of every region, over the chosen kernels: those inside nested regions included, devices added up."""
    total, exposed = (np.zeros(len(parent), dtype=np.int64) for _ in range(2))
    mask = collective_kernels(timeline, chosen)
    if not mask.any():
        return CollectiveTimes(total, exposed)
    kernels = timeline.kernels
    device = kernels.device[chosen]
    for number in np.unique(device[mask]).tolist():
        mine, others = chosen[mask & (device == number)], chosen[~mask & (device == number)]
        mine = mine[np.argsort(kernels.start[mine], kind="stable")]
        start, end = kernels.start[mine], kernels.end[mine]
        total += _unions(membership, mine, start, end, parent, depth)
        computing = BusyTime.of(kernels.start[others], kernels.end[others])
        # On a clock that stands still while another kernel runs, a collective takes as long as it is exposed.
        start, end = start - computing.until(start), end - computing.until(end)
        exposed += _unions(membership, mine, start, end, parent, depth)
    return CollectiveTimes(total, exposed)


def _unions(
    membership: Membership, members: Int64s, start: Int64s, end: Int64s, parent: Int64s, depth: Int64s
) -> Int64s:
    """Unions of intervals by region, nested ones included."""
    found = np.zeros(len(parent), dtype=np.int64)
    for regions in membership.by_domain:
        inside = regions[members] != ROOT
        for current, here in levels_up(regions[members][inside], parent, depth):
            found += union_by_group(current[here], start[inside][here], end[inside][here], len(parent))
    for region, own in membership.beside_stacks():
        mine = np.isin(members, own)
        found[region] += BusyTime.of(start[mine], end[mine]).total
    return found
