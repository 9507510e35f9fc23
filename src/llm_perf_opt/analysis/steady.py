"""Regions once the program is warm: what verdicts, rates and gains speak of.

A report lists everything that was recorded. What it says about a region is said of its steady instances: the scope
built here holds those alone, and is evaluated in place of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, evolve

from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.instances import Instances, find_instances, without_warmup
from llm_perf_opt.regions.rollup import RolledUp, Selection, roll_up
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.timing import SteadyTime, Timing, WarmupTime
from llm_perf_opt.regions.warmup import quantiles


@define(eq=False)
class RegionTimes:
    """The times of a region, before they are summed up: those of several recordings can be put together."""

    source: str
    steady: Int64s
    warmup: int
    warmup_ns: int
    why: str | None
    level_change: int | None

    @staticmethod
    def together(parts: Sequence[RegionTimes]) -> RegionTimes:
        reasons = {part.why for part in parts if part.why is not None}
        changes = [part.level_change for part in parts if part.level_change is not None]
        return RegionTimes(
            source=parts[0].source,
            steady=np.concatenate([part.steady for part in parts]),
            warmup=sum(part.warmup for part in parts),
            warmup_ns=sum(part.warmup_ns for part in parts),
            why=min(reasons, default=None),  # "graph capture" before "other"
            level_change=changes[-1] if changes else None,
        )

    def timing(self) -> Timing:
        low, middle, high = quantiles(self.steady) if len(self.steady) else (None, None, None)
        total = int(self.steady.sum())
        return Timing(
            source=self.source,
            instances=self.warmup + len(self.steady),
            warmup=WarmupTime(instances=self.warmup, total_ns=self.warmup_ns, why=self.why),
            steady=SteadyTime(instances=len(self.steady), total_ns=total, median_ns=middle, p10_ns=low, p90_ns=high),
            level_change=self.level_change,
        )


@define(eq=False)
class SteadyTimeline:
    """A timeline's instances, and its attribution without those of the warm-up."""

    timeline: Timeline
    attribution: Attribution
    instances: Instances
    lifted: Attribution  # `attribution` where there is no warm-up
    captured: Int64s  # when each node of a graph was, sorted

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution) -> SteadyTimeline:
        instances = find_instances(timeline, attribution)
        lifted = without_warmup(timeline, attribution, instances) if instances.first.any() else attribution
        return SteadyTimeline(timeline, attribution, instances, lifted, np.sort(timeline.graph_nodes.host_time))

    @property
    def has_warmup(self) -> bool:
        return bool(self.instances.first.any())

    def selection(self, everything: Selection) -> Selection:
        """The ranges of a scope that are no warm-up; its work stays, and belongs to what is around."""
        return evolve(everything, ranges=everything.ranges[~self.instances.warmup[everything.ranges]])

    def rolled(self, everything: Selection) -> RolledUp:
        """Values of every region over its steady instances."""
        selection = self.selection(everything)
        rolled = roll_up(self.timeline, self.lifted, selection)
        region_of = self.attribution.range_region[selection.ranges]

        def summed(values: Int64s) -> Int64s:
            weights = values[selection.ranges]
            return np.bincount(region_of, weights=weights, minlength=len(rolled.wall)).astype(np.int64)

        # Time that warm-up inside a region took is nothing the steady region takes.
        wall, idle = rolled.wall - summed(self.instances.late), rolled.idle - summed(self.instances.late_idle)
        return evolve(rolled, wall=np.maximum(wall, 0), idle=np.clip(idle, 0, np.maximum(wall, 0)))

    def inside_steady(self, everything: Selection) -> Int64s:
        """How many instances of each region lie in no warm-up but their own: those that regions around them hold."""
        instances, chosen = self.instances, everything.ranges
        mine = chosen[~instances.warmup[chosen] | instances.first[chosen]]
        return np.bincount(self.attribution.range_region[mine], minlength=len(self.attribution.table))

    def times(self, selection: Selection) -> dict[int, RegionTimes]:
        """The times of every region with instances in a scope."""
        found = {}
        for region, part in group_by(self.attribution.range_region[selection.ranges]):
            found[region] = self._times(region, selection.ranges[part])
        return found

    def _times(self, region: int, ranges: Int64s) -> RegionTimes:
        instances = self.instances
        warm = ranges[instances.warmup[ranges]]
        steady = ranges[~instances.warmup[ranges]]
        inside = int(instances.late[steady].sum())
        return RegionTimes(
            source="undisturbed" if self.timeline.kind == "measured" else "timeline",
            steady=instances.steady_duration[steady],
            warmup=len(warm),
            warmup_ns=int(instances.duration[warm].sum()) + inside,
            why=self._why(warm) if len(warm) or inside else None,
            level_change=instances.level_change.get(region),
        )

    def _why(self, warm: Int64s) -> str:
        """What the recording says the warm-up was."""
        ranges = self.timeline.ranges
        nodes = np.searchsorted(self.captured, ranges.end[warm]) - np.searchsorted(self.captured, ranges.start[warm])
        return "graph capture" if nodes.any() else "other"
