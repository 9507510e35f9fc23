"""What warm-up instances did that steady ones do not: compile, capture a graph, use things for the first time."""

from __future__ import annotations

import re

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import COMPILATION, GRAPH_CAPTURE, ONCE, Int64s, OnlyOnce, Timeline
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.stacks import group_by

OTHER = "other"
_MUCH = 0.1  # part of the warm-up that something took to be the reason, where others come into question too
# Ranges that torch.compile opens while it compiles; those of what it compiled are not among them.
_COMPILING = re.compile(r"\(dynamo_timed\)|^entire_frame_compile|^_compile\.|^compile_fx|^fx_codegen_and_compile")


@define(eq=False)
class Reasons:
    """Of the warm-up instances of a timeline."""

    timeline: Timeline
    once: OnlyOnce
    captured: Int64s  # when nodes of graphs were captured, in order: recordings have no time for that

    @staticmethod
    def of(timeline: Timeline) -> Reasons:
        known, ranges = timeline.only_once, timeline.ranges
        names = [number for number, name in enumerate(timeline.strings) if _COMPILING.search(name)]
        found = np.flatnonzero(np.isin(ranges.name, names)) if names else np.zeros(0, dtype=np.int64)
        compiling = np.full(len(found), ONCE.index(COMPILATION), dtype=np.int32)
        once = OnlyOnce(
            np.concatenate([known.what, compiling]),
            np.concatenate([known.process, ranges.process[found]]),
            np.concatenate([known.start, ranges.start[found]]),
            np.concatenate([known.end, ranges.end[found]]),
        )
        return Reasons(timeline, once, np.sort(timeline.graph_nodes.host_time))

    def reason(self, warm: Int64s) -> str:
        """One of ONCE, or "other". `warm`: ranges that are warm-up."""
        ranges, spent = self.timeline.ranges, self._spent(warm)
        whole = int((ranges.end[warm] - ranges.start[warm]).sum())
        much = next((what for what in ONCE if spent.get(what, -1) >= _MUCH * whole), None)
        if much is None or ONCE.index(much) > ONCE.index(GRAPH_CAPTURE):
            nodes = np.searchsorted(self.captured, ranges.end[warm]) - np.searchsorted(
                self.captured, ranges.start[warm]
            )
            if nodes.any():
                return GRAPH_CAPTURE
        return much or next((what for what in ONCE if what in spent), OTHER)

    def _spent(self, warm: Int64s) -> dict[str, int]:
        """How long the ranges did each of ONCE; those that they did not do are missing."""
        once, ranges, found = self.once, self.timeline.ranges, dict[str, int]()
        for process, mine in group_by(ranges.process[warm]):
            start, end = ranges.start[warm[mine]], ranges.end[warm[mine]]
            for number, what in enumerate(ONCE):
                chosen = np.flatnonzero((once.process == process) & (once.what == number))
                began = np.sort(once.start[chosen])
                if (np.searchsorted(began, end) > np.searchsorted(began, start)).any():
                    time = BusyTime.of(once.start[chosen], once.end[chosen]).within(start, end)
                    found[what] = found.get(what, 0) + int(time.sum())
        return found
