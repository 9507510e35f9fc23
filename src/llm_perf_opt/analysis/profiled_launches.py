"""Single launches that ncu measured: those picked by hand, with their kernel's rank in the timeline; and kernels summed up.

Regions hold the results of their ranges only: what was launched outside of all ranges, or fits no launch of the
timeline, is in `measured_kernels` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_perf_opt.analysis.sample_matrix import Samples, rules_of
from llm_perf_opt.regions.columns import Action, CounterSet
from llm_perf_opt.regions.launch_records import LaunchCounter, ProfiledLaunch
from llm_perf_opt.regions.model import KernelRecord, MeasuredKernel
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter
from llm_perf_opt.regions.table import region_key

# Results of several kernels, or more than a person picks one by one, are a sample: the regions show them.
MOST_PICKED = 16
_MOST_VALUES = 300_000  # beyond that, launch configurations of a kernel are pooled


def profiled_launches(counter_sets: Sequence[CounterSet], kernels: Sequence[KernelRecord]) -> list[ProfiledLaunch]:
    """Every kernel result, where there are few and of one kernel; `kernels`: those of the timeline, empty where there is none."""
    picked = [(a, c) for c in counter_sets for a in c.actions if a.kind == "kernel"]
    if not 0 < len(picked) <= MOST_PICKED or len({action.name for action, _ in picked}) > 1:
        return []
    ranked = sorted((k for k in kernels if k.total_ms is not None), key=lambda k: -(k.total_ms or 0.0))
    total = sum(k.total_ms or 0.0 for k in ranked)
    return [_launch(action, counters, ranked, total) for action, counters in picked]


def _launch(action: Action, counters: CounterSet, ranked: Sequence[KernelRecord], total: float) -> ProfiledLaunch:
    names = {action.name, action.demangled}
    rank = next((n for n, k in enumerate(ranked, 1) if k.kernel_name in names), None)
    record = ranked[rank - 1] if rank else None
    units = {name: info.unit for name, info in counters.metric_info.items()}
    return ProfiledLaunch(
        kernel_name=action.name,
        short_name=short_kernel_name(action.name),
        grid=list(action.grid or ()),
        block=list(action.block or ()),
        device=action.device,
        regions=[region_key(domain, stack) for domain, stack in action.push_pop.items() if stack],
        rank=rank,
        kernels_ranked=len(ranked),
        share_of_gpu_time=(record.total_ms or 0.0) / total if record and total else None,
        calls=record.calls if record else None,
        total_ms=record.total_ms if record else None,
        mean_ms=record.mean_ms if record else None,
        passes=action.passes,
        metrics={name: LaunchCounter(value, units.get(name, "")) for name, value in sorted(action.metrics.items())},
    )


def measured_kernels(counter_sets: Sequence[CounterSet], kept: NameFilter) -> list[MeasuredKernel]:
    """Every result, alike ones pooled, those with the most time first. `kept`: kernels to show."""
    samples = Samples.of(counter_sets)
    found: dict[object, list[int]] = {}
    pooled: dict[object, list[int]] = {}
    for row, action in enumerate(samples.actions):
        if action.kind != "kernel" or kept.keeps(action.name, short_kernel_name(action.name)):
            what = (action.kind, action.name, action.device)
            found.setdefault((what, action.grid, action.block), []).append(row)
            pooled.setdefault(what, []).append(row)
    groups = found if len(found) * len(samples.metrics) <= _MOST_VALUES else pooled
    ordered = sorted(groups.values(), key=lambda rows: -float(samples.weights[rows].sum()))
    return [_measured(samples, rows) for rows in ordered]


def _measured(samples: Samples, rows: list[int]) -> MeasuredKernel:
    actions = [samples.actions[row] for row in rows]
    first, values = actions[0], samples.typical(rows).tolist()
    metrics = {name: value for name, value in zip(samples.metrics, values, strict=True) if not math.isnan(value)}
    alike = len({(action.grid, action.block) for action in actions}) == 1
    return MeasuredKernel(
        kernel_name=first.name,
        short_name=short_kernel_name(first.name),
        kind=first.kind,
        device=first.device,
        grid=list(first.grid or ()) if alike else [],
        block=list(first.block or ()) if alike else [],
        results=len(rows),
        metrics=metrics,
        rules=rules_of(samples, rows, {}),
    )
