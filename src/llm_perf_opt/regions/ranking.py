"""Which regions matter most, and by which times: one answer for the verdicts, the tables and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionStats, ScopeTotals, SpeedOfLight

K = TypeVar("K", int, str)  # what a region is known by
_MOST_OF_THE_WORK = 0.5
_MUCH_LONGER = 1.5  # all instances against those recorded


def gpu_time(values: RegionStats | ScopeTotals) -> int | None:
    """Time of kernels and of CUDA graphs recorded as one block; None where nothing was measured."""
    if values.gpu_time_ns is None:
        return None
    return values.gpu_time_ns + values.graph_time_ns


def weight(region: NCUProfileRegion) -> tuple[int, int]:
    """How much a region matters: the time it took on the host or kept the GPU busy, whichever is longer."""
    return max(region.wall_ns or 0, region.gpu_busy_ns or 0), gpu_time(region.inclusive) or 0


def heaviest(regions: list[NCUProfileRegion], count: int) -> list[NCUProfileRegion]:
    """The regions that matter most, each with the regions around it, in the order of the tree."""
    if len(regions) <= count:
        return regions
    known = {region.key: region.parent for region in regions}
    ordered = sorted(regions, key=weight, reverse=True)
    chosen = with_parents((r.key for r in ordered), lambda key: p if (p := known[key]) in known else None, count)
    return [region for region in regions if region.key in chosen]


def with_parents(ordered: Iterable[K], parent: Callable[[K], K | None], most: int) -> set[K]:
    """The first of some regions, each with all regions around it, until there would be too many."""
    chosen: set[K] = set()
    for region in ordered:
        line: list[K] = []
        at: K | None = region
        while at is not None and at not in chosen:
            line.append(at)
            at = parent(at)
        if len(chosen) + len(line) > most:
            break
        chosen.update(line)
    return chosen


def evaluated_times(region: NCUProfileRegion) -> tuple[float | None, float | None]:
    """Wall and idle time as verdicts see them: of steady instances, without a profiler where that was timed."""
    time = region.performance.time if region.performance else None
    if time is None or time.wall is None:
        return region.wall_ns, region.gpu_idle_ns
    return time.wall.of("ns"), None if time.idle is None else time.idle.of("ns")


def evaluated_work(region: NCUProfileRegion) -> RegionStats:
    """The work that belongs to the evaluated times."""
    performance = region.performance
    return region.inclusive if performance is None or performance.steady is None else performance.steady


def evaluated_instances(region: NCUProfileRegion) -> int | None:
    """The instances that the evaluated times are of."""
    timing = region.timing
    if region.performance is not None and region.performance.instances is not None:
        return region.performance.instances
    return timing.steady.instances if timing is not None and timing.steady.instances else region.instances


def stage_regions(report: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    """The stages the analysis found, else the outermost regions; the longest first."""
    scope = report.main_scope
    regions = scope.regions if scope else []
    keys, stages = {region.key for region in regions}, set(report.stages)
    chosen = [r for r in regions if (r.key in stages if stages else r.parent not in keys)]
    return sorted(chosen, key=_steady_weight, reverse=True)


def _steady_weight(region: NCUProfileRegion) -> tuple[float, ...]:
    """How much a stage matters once the program is warm."""
    wall = unrecorded_whole(region) or evaluated_times(region)[0]
    busy = region.performance.time.busy if region.performance else None
    evaluated = max(wall or 0.0, busy.of("ns") if busy is not None else 0.0)
    return (evaluated, *weight(region)[1:]) if evaluated else weight(region)


def stage_time(region: NCUProfileRegion) -> float | None:
    """Wall time as the verdicts see it, else GPU time."""
    wall, _ = evaluated_times(region)
    return wall if wall is not None else gpu_time(evaluated_work(region))


def unrecorded_whole(region: NCUProfileRegion) -> float | None:
    """What all steady instances take, where the recording was ended when it had enough of them; else None."""
    wall, timing = evaluated_times(region)[0], region.timing
    if wall is None or timing is None or timing.source != "undisturbed" or timing.profiled_median_ns is None:
        return None
    steady = timing.steady.total_ns / timing.runs
    everything = steady + timing.warmup.total_ns / timing.runs
    # The second: what one run takes for warm-up the other may not.
    return steady if steady > _MUCH_LONGER * wall and everything > _MUCH_LONGER * (region.wall_ns or 0) else None


def all_steady_time(region: NCUProfileRegion) -> float | None:
    """All steady instances of a stage, recorded or not."""
    return unrecorded_whole(region) or stage_time(region)


def roofs_known(light: SpeedOfLight) -> bool:
    """Whether the limit is one: without counters of most of the work it is the work as measured."""
    return light.analysed_share >= _MOST_OF_THE_WORK


def is_host_only(report: NCUProfileRegionReport) -> bool:
    """Ranges with wall times, and neither GPU work nor counters anywhere: a model on a CPU, say."""
    scope = report.main_scope
    if scope is None or not scope.regions or scope.totals.gpu_time_ns is not None:
        return False
    return not any(r.inclusive.metrics for r in scope.regions) and any(r.wall_ns for r in scope.regions)
