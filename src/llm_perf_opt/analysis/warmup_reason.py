"""What warm-up instances did that steady ones do not: compile, capture a graph, use things for the first time."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.regions.columns import GRAPH_CAPTURE, ONCE, Int64s, Timeline
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.stacks import group_by

OTHER = "other"
_MUCH = 0.1  # part of the warm-up that something took to be the reason, where others come into question too


def reason(timeline: Timeline, warm: Int64s) -> str:
    """One of ONCE, or "other". `warm`: ranges that are warm-up."""
    spent = _spent(timeline, warm)
    whole = int((timeline.ranges.end[warm] - timeline.ranges.start[warm]).sum())
    for what in ONCE:
        if spent.get(what, 0) >= _MUCH * whole and what in spent:
            return what
    if _captured(timeline, warm):
        return GRAPH_CAPTURE
    return next((what for what in ONCE if what in spent), OTHER)


def _spent(timeline: Timeline, warm: Int64s) -> dict[str, int]:
    """How long the ranges did each of ONCE; those that they did not do are missing."""
    once, ranges, found = timeline.only_once, timeline.ranges, dict[str, int]()
    for process, mine in group_by(ranges.process[warm]):
        start, end = ranges.start[warm[mine]], ranges.end[warm[mine]]
        for number, what in enumerate(ONCE):
            chosen = np.flatnonzero((once.process == process) & (once.what == number))
            began = np.sort(once.start[chosen])
            if (np.searchsorted(began, end) > np.searchsorted(began, start)).any():
                # Ranges of warm-up do not overlap, but their evidence may reach beyond them.
                time = BusyTime.of(once.start[chosen], once.end[chosen]).within(start, end)
                found[what] = found.get(what, 0) + int(time.sum())
    return found


def _captured(timeline: Timeline, warm: Int64s) -> bool:
    """Was a node of a graph captured in one of them? Recordings have no time for that."""
    captured, ranges = np.sort(timeline.graph_nodes.host_time), timeline.ranges
    nodes = np.searchsorted(captured, ranges.end[warm]) - np.searchsorted(captured, ranges.start[warm])
    return bool(nodes.any())
