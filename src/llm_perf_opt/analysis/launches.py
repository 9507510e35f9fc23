"""Launches that were picked by hand: what ncu measured of each, and its kernel's place in the timeline."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.regions.columns import Action, CounterSet
from llm_perf_opt.regions.model import KernelRecord, LaunchCounter, ProfiledLaunch
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.table import region_key

# Results of several kernels, or more than a person picks one by one, are a sample: the regions show them.
MOST_PICKED = 16


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
