"""What the regions of a recording take when no profiler looks: the times of a measured run, for the report of another.

A profiler makes the host slower and leaves the kernels as they are. So what the GPU does comes from the recording, and
how long a region takes from the run without a profiler. The two are joined by the keys of the regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from attrs import define, evolve

from llm_perf_opt.analysis.scopes import AGGREGATE
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.instances import find_instances
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.stacks import group_by

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

    @staticmethod
    def of(
        measured: Sequence[Timeline], recorded: Sequence[Scope], report_of: Callable[[Timeline], NCUProfileRegionReport]
    ) -> MeasuredTimes:
        """`recorded`: the scopes of the recording. `report_of`: evaluates a timeline."""
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
        return MeasuredTimes(regions, each, _host_medians(part))

    def set_timings(self, scopes: Sequence[Scope]) -> None:
        """Have the regions of a recording say what they take undisturbed."""
        for scope in _joined(scopes):
            for region in scope.regions:
                own = self.regions.get(region.key)
                if own is None or own.timing is None or region.timing is None or not own.timing.steady.instances:
                    continue
                profiled, host = region.timing.steady.median_ns, self.host_ns.get(region.key)
                disturbance = profiled / host if profiled is not None and host else None
                region.timing = evolve(own.timing, profiled_median_ns=profiled, disturbance=disturbance)

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


def _recorded_part(measured: Timeline, recorded: Sequence[Scope]) -> Timeline:
    """The measured run up to where the recording was ended, where that ended early; else all of it."""
    joined = _joined(recorded)
    counts = {r.key: r.timing.instances for r in joined[-1].regions if r.timing is not None} if joined else {}
    if not counts or sum(scope.scope.startswith("process:") for scope in recorded) > 1:
        return measured
    attribution, ranges = attribute(measured), measured.ranges
    until = np.full(len(measured.processes), np.iinfo(np.int64).max)
    for process, mine in group_by(ranges.process):
        ends = []
        for region, part in group_by(attribution.range_region[mine]):
            seen = counts.get(attribution.table.key(region), 0)
            if 0 < seen < len(part):
                ends.append(int(_in_order(mine[part], ranges.start)[seen - 1]))
        if ends:
            until[process] = ranges.end[ends].max()
    end = until[ranges.process]
    if (end >= ranges.end).all():
        return measured
    before = ranges.start < end
    clipped = evolve(
        ranges,
        end=np.minimum(ranges.end, end),
        took=np.where(ranges.end > end, np.minimum(end - ranges.start, ranges.duration), ranges.duration),
    )
    keys = [attribution.table.key(region) for region in attribution.range_region[before].tolist()]
    there: dict[str, int] = {}
    for key in keys:
        there[key] = there.get(key, 0) + 1
    processes = len(np.unique(ranges.process))
    apart = sum(abs(there.get(key, 0) / processes - count) for key, count in counts.items())
    return evolve(measured, ranges=clipped.chosen(before)) if apart <= _DIFFERENT * sum(counts.values()) else measured


def _in_order(which: Int64s, start: Int64s) -> Int64s:
    return which[np.argsort(start[which], kind="stable")]


def _host_medians(timeline: Timeline) -> dict[str, float]:
    attribution, ranges = attribute(timeline), timeline.ranges
    steady = np.flatnonzero(~find_instances(timeline, attribution).warmup)
    took = ranges.end - ranges.start
    return {
        attribution.table.key(region): float(np.median(took[steady[part]]))
        for region, part in group_by(attribution.range_region[steady])
    }
