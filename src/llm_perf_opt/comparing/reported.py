"""A side from a finished report: what is left of a run when its recordings are gone.

Less than recordings tell: instances are known by their quantiles, kernels by name with those of the warm-up, and the
order of launches is not known.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from llm_perf_opt.comparing.side import (
    COPIED,
    COPIES,
    COUNTERS,
    DRAM,
    KERNELS,
    LAUNCHES,
    PEAK_MEMORY,
    RECORDERS,
    REPLAYS,
    TENSOR,
    TIMELINE,
    UNDISTURBED,
    KernelUse,
    RegionSide,
    Side,
    Times,
    rest_of,
)
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.table import WHOLE
from llm_perf_opt.regions.timing import Timing

_TENTHS = 2.5631  # standard deviations between the 10 % and the 90 % quantile


def side_of_report(report: NCUProfileRegionReport, label: str) -> Side:
    """The main scope of a report."""
    scope = report.main_scope
    side = Side(label, made_at=report.generated_at)
    side.gpus = tuple(sorted({str(name) for name in report.environment.get("gpus", {}).values()}))
    side.recorders = tuple(sorted({kind for one in report.inputs if (kind := str(one.get("kind"))) in RECORDERS}))
    for region in scope.regions if scope else ():
        side.regions[region.key] = _region(region)
    if scope is not None and not side.regions and scope.totals.gpu_time_ns:
        side.regions[WHOLE] = _whole(scope)
    return side


def _region(region: NCUProfileRegion) -> RegionSide:
    instances = max(region.instances or 1, 1)
    found = RegionSide(region.key, tuple(region.path), region.parent, instances=instances, recorded=instances)
    found.numbers = tuple(known.mean for known in region.numbers)
    if region.timing is not None and region.timing.steady.median_ns:
        _add_times(found, region.timing)
    elif region.inclusive.gpu_time_ns:
        _add_counted_time(found, region.inclusive.gpu_time_ns, instances)
    if region.inclusive.gpu_time_ns is None:
        return found
    work, memory = region.inclusive, region.inclusive.memory
    summed = (work.gpu_time_ns or 0) + memory.time_ns + work.graph_time_ns
    found.busy_ns = (summed if region.gpu_busy_ns is None else region.gpu_busy_ns) / instances
    if region.wall_ns and region.gpu_busy_ns is not None and region.gpu_idle_ns is not None:
        found.early = max(region.gpu_busy_ns - (region.wall_ns - region.gpu_idle_ns), 0) / region.wall_ns
    replays = region.graph_replays + work.graph_launches
    totals = {
        LAUNCHES: work.kernel_count - region.graph_kernels + replays + memory.count,
        KERNELS: work.kernel_count,
        REPLAYS: replays,
        COPIES: memory.count,
        COPIED: memory.bytes,
    }
    found.counts |= {what: total / instances for what, total in totals.items()}
    if region.performance is not None and TIMELINE in found.times and UNDISTURBED not in found.times:
        made, steady = region.performance.work, max(found.instances, 1)
        if made.tensor:
            found.counts[TENSOR] = sum(amount.value for amount in made.tensor.values()) / steady
        if made.dram is not None:
            found.counts[DRAM] = made.dram.value / steady
    found._kernels = partial(_kernels, region, instances)
    return found


def _add_times(found: RegionSide, timing: Timing) -> None:
    steady = timing.steady
    medians = timing.run_medians_ns or [steady.median_ns or 1]
    spread = None
    if steady.p10_ns and steady.p90_ns:
        spread = math.log(steady.p90_ns / steady.p10_ns) / _TENTHS
    runs = tuple(np.array([max(float(median), 1.0)]) for median in medians)
    source = UNDISTURBED if timing.source == "undisturbed" else TIMELINE
    found.times[source] = Times(runs, spread=spread, instances=steady.instances)
    if timing.profiled_median_ns and source == UNDISTURBED:
        profiled = (np.array([float(timing.profiled_median_ns)]),)
        found.times[TIMELINE] = Times(profiled, spread=spread, instances=steady.instances)
    found.instances = steady.instances
    found.weight_ns = float(steady.total_ns) / max(len(medians), 1)
    if timing.memory_peak_bytes is not None:
        found.counts[PEAK_MEMORY] = float(timing.memory_peak_bytes)


def _add_counted_time(found: RegionSide, total_ns: float, instances: int) -> None:
    """Of ncu's results alone: what the kernels took under ncu."""
    found.times[COUNTERS] = Times((np.array([max(total_ns / instances, 1.0)]),), instances=1)
    found.weight_ns = float(total_ns)


def _kernels(region: NCUProfileRegion, instances: int) -> list[KernelUse]:
    memory, work = region.inclusive.memory, region.inclusive
    found = [
        KernelUse(record.kernel_name, record.calls / instances, (record.total_ms or 0.0) * 1e6 / instances)
        for record in region.kernels
    ]
    if region.kernels_omitted:
        rest = (work.gpu_time_ns or 0) / instances - sum(use.time_ns for use in found)
        found.append(rest_of(region.kernels_omitted, rest))
    others = (("copies and fills", memory.count, memory.time_ns), ("graphs", work.graph_launches, work.graph_time_ns))
    for (name, count, time), kind in zip(others, ("copy", "graph"), strict=True):
        if count:
            found.append(KernelUse(name, count / instances, time / instances, kind=kind))
    return _pooled(found)


def _pooled(uses: list[KernelUse]) -> list[KernelUse]:
    """A kernel on several devices is listed for each."""
    found: dict[str, KernelUse] = {}
    for use in uses:
        old = found.get(use.name)
        found[use.name] = (
            use if old is None else KernelUse(use.name, old.calls + use.calls, old.time_ns + use.time_ns, kind=use.kind)
        )
    return list(found.values())


def _whole(scope: Scope) -> RegionSide:
    """Results of ncu without ranges: all of them are one region."""
    total = scope.totals.gpu_time_ns or 0
    found = RegionSide(WHOLE, (WHOLE,), None, instances=1, recorded=1, busy_ns=float(total))
    _add_counted_time(found, total, 1)
    found.counts[KERNELS] = float(scope.totals.kernel_count)
    found._kernels = _pooled(
        [KernelUse(r.kernel_name, float(r.calls), (r.total_ms or 0.0) * 1e6) for r in scope.kernels]
    )
    return found
