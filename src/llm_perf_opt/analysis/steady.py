"""Regions once the program is warm: what verdicts, rates and gains speak of.

A report lists everything that was recorded. What it says about a region is said of its steady instances: the scope
built here holds those alone, and is evaluated in place of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.analysis.energy import Energy, share_out
from llm_perf_opt.analysis.resources import Use, use_of
from llm_perf_opt.analysis.step_times import step_times
from llm_perf_opt.analysis.warmup_reason import OTHER, Reasons
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import ONCE, UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.instances import Instances, find_instances, without_warmup
from llm_perf_opt.regions.rollup import RolledUp, Selection, roll_up
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.step_numbers import step_numbers, summed_up
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
    use: Use = field(factory=Use)
    runs: list[Int64s] = field(factory=list)  # the steady ones by run, where the program was run several times
    numbers: Int64s | None = None  # of the steady ones, as `step_numbers` reads them off their names
    step_times: Int64s | None = None  # of the steady ones, where they are steps of a server

    @staticmethod
    def together(parts: Sequence[RegionTimes]) -> RegionTimes:
        if len(parts) == 1:
            return parts[0]
        reasons = {part.why for part in parts if part.why is not None}
        changes = [part.level_change for part in parts if part.level_change is not None]
        numbers = [part.numbers for part in parts if part.numbers is not None]
        taken = [part.steady if part.step_times is None else part.step_times for part in parts]
        return RegionTimes(
            source=parts[0].source,
            steady=np.concatenate([part.steady for part in parts]),
            warmup=sum(part.warmup for part in parts),
            warmup_ns=sum(part.warmup_ns for part in parts),
            why=next((why for why in (*ONCE, OTHER) if why in reasons), None),
            level_change=changes[-1] if changes else None,
            numbers=np.concatenate(numbers) if len(numbers) == len(parts) else None,
            step_times=np.concatenate(taken),
        )

    def timing(self) -> Timing:
        low, middle, high = quantiles(self.steady) if len(self.steady) else (None, None, None)
        total = int(self.steady.sum())
        return Timing(
            source=self.source,
            instances=self.warmup + len(self.steady),
            warmup=WarmupTime(instances=self.warmup, total_ns=self.warmup_ns, why=self.why),
            steady=SteadyTime(instances=len(self.steady), total_ns=total, median_ns=middle, p10_ns=low, p90_ns=high),
            energy_j=self.use.energy_j,
            memory_peak_bytes=self.use.memory_peak,
            memory_growth_bytes=self.use.memory_growth,
            energy_interval_j=self.use.energy_interval,
            run_medians_ns=[quantiles(times)[1] for times in self.runs] or None,
            level_change=self.level_change,
            steps=summed_up(self.numbers, self.steady if self.step_times is None else self.step_times),
        )


@define(eq=False)
class SteadyTimeline:
    """A timeline's instances, and its attribution without those of the warm-up."""

    timeline: Timeline
    attribution: Attribution
    instances: Instances
    lifted: Attribution  # `attribution` where there is no warm-up
    reasons: Reasons
    energy: Energy | None  # None but for a program that was measured by itself on a GPU
    numbers: Int64s | None  # of each range, where names say what a step of a server did
    step_times: Int64s  # of each range: what it takes, where it is such a step

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution) -> SteadyTimeline:
        instances = find_instances(timeline, attribution)
        lifted = without_warmup(timeline, attribution, instances) if instances.first.any() else attribution
        energy = share_out(timeline, attribution)
        numbers = step_numbers(timeline)
        taken = step_times(timeline, lifted, numbers, instances.steady_duration)
        return SteadyTimeline(timeline, attribution, instances, lifted, Reasons.of(timeline), energy, numbers, taken)

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
            why=self._why(warm if len(warm) else self._inside(region)) if len(warm) or inside else None,
            level_change=instances.level_change.get(region),
            use=use_of(self.timeline.ranges, region, steady, self.energy),
            runs=self._by_run(steady),
            numbers=None if self.numbers is None else self.numbers[steady],
            step_times=self.step_times[steady],
        )

    def _by_run(self, steady: Int64s) -> list[Int64s]:
        runs = np.array([process.run for process in self.timeline.processes], dtype=np.int64)
        if not len(runs) or not runs.any():
            return []
        times = self.instances.steady_duration[steady]
        return [times[mine] for _, mine in group_by(runs[self.timeline.ranges.process[steady]])]

    def _inside(self, region: int) -> Int64s:
        """Warm-up instances of other regions that lie in instances of this one."""
        first = around = np.flatnonzero(self.instances.first)
        found = []
        while len(around):
            hit = self.attribution.range_region[around] == region
            found.append(first[hit])
            parent = self.attribution.range_parent[around]
            first, around = first[~hit & (parent != UNKNOWN)], parent[~hit & (parent != UNKNOWN)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])

    def _why(self, warm: Int64s) -> str:
        """What the recording says the warm-up was; that of a region inside a warm-up instance is the same."""
        instances, parent_of = self.instances, self.attribution.range_parent
        while len(inner := np.flatnonzero(~instances.first[warm])):
            warm = warm.copy()
            warm[inner] = parent_of[warm[inner]]
            warm = np.unique(warm[warm != UNKNOWN])
        return self.reasons.reason(warm)
