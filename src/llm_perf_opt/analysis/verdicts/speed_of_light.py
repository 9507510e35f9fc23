"""The time a region would take if every kernel ran at its roof, so that the parts add up to the time it takes."""

from __future__ import annotations

from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.model import SpeedOfLight, TimeSplit


def now(split: TimeSplit) -> Quantity | None:
    """What the region takes: its wall time, or the GPU's where the range returns before the work is done."""
    if split.wall is not None and split.busy is not None:
        return max(split.wall, split.busy)
    return split.busy or split.kernels


def overlap_scale(split: TimeSplit) -> float:
    """Busy time over the sum of durations: what a saved nanosecond of one kernel saves the region."""
    summed = sum(part.value for part in (split.kernels, split.copies, split.graphs) if part is not None)
    return split.busy.value / summed if split.busy is not None and summed else 1.0


def speed_of_light(split: TimeSplit, roofed: Roofed) -> SpeedOfLight | None:
    """now = limit + above_roof + waiting + other_work."""
    whole = now(split)
    if whole is None or not whole.value:
        return None
    working = split.busy or split.kernels or whole
    above = nanoseconds(float(roofed.recoverable_ns.sum()) * overlap_scale(split))
    not_working = whole - working
    waiting = not_working if split.idle is None else min(not_working, split.idle)
    limit = working - above
    return SpeedOfLight(
        now=whole,
        limit=limit,
        above_roof=above,
        waiting=waiting,
        other_work=not_working - waiting,
        analysed_share=roofed.analysed_share,
        limit_over_now=(limit / whole).of("ratio"),
    )
