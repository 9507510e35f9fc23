"""What the regions of a recording take when no profiler looks: the times of a measured run, for the report of another.

A profiler makes the host slower and leaves the kernels as they are, but for the clock of the GPU. So what the GPU does
comes from the recording, and how long a region takes from the run without a profiler. The two are joined by the keys of
the regions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from attrs import define, evolve

from llm_perf_opt.analysis.gpu_condition import gpu_diagnoses
from llm_perf_opt.analysis.range_costs import range_costs
from llm_perf_opt.analysis.scopes import AGGREGATE
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import UNKNOWN_HERE, Int64s, Timeline
from llm_perf_opt.regions.instances import find_instances
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.step_numbers import with_graphs

# Of the instances of all regions, the part by which a recording that was ended early may differ from the beginning
# of the measured run. Where it is more, the two runs did not do the same.
_DIFFERENT = 0.05
# Recorded instances are unlike all of them where they differ by more than this, in a region that is large and repeats.
_UNLIKE, _LARGE, _SEVERAL = 0.15, 0.3, 4


@define(eq=False)
class MeasuredTimes:
    """By key of a region."""

    regions: Mapping[str, NCUProfileRegion]  # of the measured run, evaluated
    each_ns: Mapping[str, float]  # what a steady instance takes, of those that were recorded, too
    host_ns: Mapping[str, float]  # the median of the same by the host's clock alone, as a profiler records them
    on_gpu: Collection[str]  # those that the GPU's own clock timed, so that their times hold all of their work
    conditions: Sequence[Diagnosis]  # of the GPUs meanwhile, and of runs that differ

    @staticmethod
    def of(
        measured: Sequence[Timeline],
        recorded: Sequence[Timeline],
        report_of: Callable[[Timeline], NCUProfileRegionReport],
    ) -> MeasuredTimes:
        """`report_of`: evaluates a timeline."""
        whole = merge_timelines(list(measured))
        part = _recorded_part(whole, recorded)
        regions = _regions(report_of(whole))
        inside = regions if part is whole else _regions(report_of(part))
        timings = {key: region.timing for key, region in inside.items()}
        each = {
            key: timing.steady.total_ns / timing.steady.instances
            for key, timing in timings.items()
            if timing is not None and timing.steady.instances
        }
        host, on_gpu = _clocks(part)
        conditions = [*gpu_diagnoses(whole, list(regions.values())), *range_costs(whole, list(regions.values()))]
        return MeasuredTimes(regions, each, host, on_gpu, conditions)

    def set_timings(self, scopes: Sequence[Scope]) -> None:
        """Have the regions of a recording say what they take undisturbed."""
        for scope in _joined(scopes):
            for region in scope.regions:
                own = self.regions.get(region.key)
                if own is None or own.timing is None or region.timing is None or region.key not in self.each_ns:
                    continue
                profiled, host = region.timing.steady.median_ns, self.host_ns.get(region.key)
                disturbance = profiled / host if profiled is not None and host else None
                steps = with_graphs(own.timing.steps, region.timing.steps)
                region.timing = evolve(own.timing, profiled_median_ns=profiled, disturbance=disturbance, steps=steps)

    def set_token_rates(self, scopes: Sequence[Scope]) -> None:
        """Tokens a second, of all steady instances."""
        for scope in _joined(scopes):
            for region in scope.regions:
                own = self.regions.get(region.key)
                found, rate = region.performance, own.performance.tokens if own and own.performance else None
                if found is not None and found.tokens is not None and rate is not None:
                    region.performance = evolve(found, tokens=evolve(found.tokens, tokens=rate.tokens, now=rate.now))

    def diagnoses(self) -> Iterator[Diagnosis]:
        """A region whose recorded instances are not like all of them, the longest such region."""
        timings = {key: region.timing for key, region in self.regions.items() if region.timing is not None}
        longest = max((timing.steady.total_ns for timing in timings.values()), default=0)
        found = []
        for key, each in self.each_ns.items():
            steady = timings[key].steady if key in timings else None
            # A range that was cut off says nothing; what repeats inside it does.
            if steady is None or steady.instances < _SEVERAL or steady.total_ns < _LARGE * longest:
                continue
            whole = steady.total_ns / steady.instances
            if abs(each / whole - 1) > _UNLIKE:
                found.append(
                    (steady.total_ns, diagnose("RECORDED_UNLIKE_ALL", region=key, each=each / 1e6, whole=whole / 1e6))
                )
        yield from (diagnosis for _, diagnosis in sorted(found, key=lambda one: -one[0])[:1])

    def each_of(self, scopes: Sequence[Scope]) -> dict[str, Mapping[str, float]]:
        """By scope: what a steady instance of each region takes."""
        return {scope.scope: self.each_ns for scope in _joined(scopes)}


def _joined(scopes: Sequence[Scope]) -> list[Scope]:
    """Scopes that the measured run speaks of: which of its processes is which of the recording's is not known."""
    alone = sum(scope.scope.startswith("process:") for scope in scopes) <= 1
    return [scope for scope in scopes if alone or scope.scope == AGGREGATE]


def _regions(report: NCUProfileRegionReport) -> dict[str, NCUProfileRegion]:
    return {region.key: region for region in report.scopes[-1].regions} if report.scopes else {}


def _recorded_part(measured: Timeline, recorded: Sequence[Timeline]) -> Timeline:
    """The measured run up to where the recording was ended, where that ended early; else all of it.

    Where that was, the numbers of ranges tell: by name, for the regions of a report may be chosen ones.
    """
    timeline = recorded[0] if len(recorded) == 1 else None
    if timeline is None or len(np.unique(timeline.ranges.process)) != 1:
        return measured
    counts = {name: len(which) for name, which in _by_name(timeline, np.arange(len(timeline.ranges)))}
    ranges = measured.ranges
    until = np.full(len(measured.processes), np.iinfo(np.int64).max)
    for process, mine in group_by(ranges.process):
        ends = [
            ranges.end[which[counts[n] - 1]]
            for n, which in _by_name(measured, mine)
            if 0 < counts.get(n, 0) < len(which)
        ]
        if ends:
            until[process] = max(ends)
    end = until[ranges.process]
    if (end >= ranges.end).all():
        return measured
    before = ranges.start < end
    clipped = evolve(
        ranges,
        end=np.minimum(ranges.end, end),
        took=np.where(ranges.end > end, np.minimum(end - ranges.start, ranges.duration), ranges.duration),
    )
    part = evolve(measured, ranges=clipped.chosen(before))
    for _, mine in group_by(part.ranges.process):
        there = {name: len(which) for name, which in _by_name(part, mine)}
        apart = sum(abs(there.get(name, 0) - count) for name, count in counts.items())
        if apart > _DIFFERENT * sum(counts.values()):
            return measured
    return part


def _by_name(timeline: Timeline, which: Int64s) -> Iterator[tuple[tuple[str, str], Int64s]]:
    """Some ranges by domain and name, in the order in which they began."""
    ranges = timeline.ranges
    which = which[np.argsort(ranges.start[which], kind="stable")]
    for domain, own in group_by(ranges.domain[which]):
        for name, part in group_by(ranges.name[which[own]]):
            yield (timeline.domains[domain], timeline.strings[name]), which[own[part]]


def _clocks(timeline: Timeline) -> tuple[dict[str, float], set[str]]:
    """Of each region the median by the host's clock; and which of them the GPU's clock timed."""
    attribution, ranges = attribute(timeline), timeline.ranges
    steady = np.flatnonzero(~find_instances(timeline, attribution).warmup)
    took, begun = ranges.end - ranges.start, ranges.gpu_start
    host, on_gpu = {}, set()
    for region, part in group_by(attribution.range_region[steady]):
        key, mine = attribution.table.key(region), steady[part]
        host[key] = float(np.median(took[mine]))
        if begun is not None and (begun[mine] != UNKNOWN_HERE).any():
            on_gpu.add(key)
    return host, on_gpu
