"""Where the time of a region goes, from the fields of the timeline.

The speed of light is the time it would take if every kernel ran at its roof, so that the parts add up to the time it
takes. Tokens per second are known where the instances of decode steps tell how many tokens were made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.model import NCUProfileRegion, SpeedOfLight, TimeSplit, TokenRate


def time_split(region: NCUProfileRegion, alone: Quantity | None = None) -> TimeSplit:
    """`alone`: the wall time of the same instances without a profiler, where it is known.

    A profiler makes the host slower, most of all its launches, and leaves the kernels as they are: what it adds to
    the wall time is waiting that the program by itself does not have.
    """
    values = region.inclusive
    timeline = region.time_source == "timeline"
    kernels = None if values.gpu_time_ns is None else nanoseconds(values.gpu_time_ns)
    wall, busy, idle = (
        None if v is None else nanoseconds(v) for v in (region.wall_ns, region.gpu_busy_ns, region.gpu_idle_ns)
    )
    split = TimeSplit(wall=wall, busy=busy, idle=idle, kernels=kernels)
    # What the host has to launch: a CUDA graph once, however many kernels it holds.
    single = values.kernel_count - region.graph_kernels
    split.launches = single + region.graph_replays + values.graph_launches + values.memory.count
    if timeline and kernels is not None:
        split.copies = nanoseconds(values.memory.time_ns)
        split.host_copies = nanoseconds(values.memory.host_time_ns)
        split.graphs = nanoseconds(values.graph_time_ns)
        split.collectives, split.exposed_collectives = (
            None if v is None else nanoseconds(v) for v in (region.collective_ns, region.exposed_collective_ns)
        )
    if busy is not None and kernels is not None:
        summed = kernels.value + values.memory.time_ns + values.graph_time_ns
        split.overlap = nanoseconds(max(summed - busy.value, 0.0))
    if wall is not None and alone is not None and (alone < wall or idle is None):
        if idle is not None:
            working = wall - idle
            idle = split.idle = nanoseconds(max(alone.of("ns") - working.of("ns"), 0.0))
        split.profiled_wall, split.wall, wall = wall, alone, alone
    if wall is not None and idle is not None and busy is not None:
        # What the GPU did within the wall time may be of other regions too; more than that came later.
        split.after_return = nanoseconds(max(busy.value - (wall.value - idle.value), 0.0))
        if split.launches:
            split.gap_per_launch = idle / split.launches
    if kernels is not None and values.kernel_count:
        split.mean_kernel = kernels / values.kernel_count
    return split


def gpu_time(split: TimeSplit) -> Quantity | None:
    """The time utilisation is measured on while the GPU works: the union, else the kernels' sum."""
    return split.busy if split.busy is not None else split.kernels


def returns_early(split: TimeSplit) -> bool:
    """Is the range closed on the host long before its GPU work is done? Then its wall time says nothing."""
    if split.after_return is None or split.wall is None or not split.wall.value:
        return False
    return (split.after_return / split.wall).of("ratio") > verdict_rules().thresholds["returns_early"]


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


def token_count(region: NCUProfileRegion, below: Sequence[NCUProfileRegion]) -> tuple[int, str] | None:
    """Tokens a region made for each sequence, and what says so. `below`: all regions inside it."""
    step = re.compile(verdict_rules().token_step)
    if step.search(region.name):
        return (region.instances, f"instances of {region.name}") if region.instances else None
    steps = [r for r in below if step.search(r.name) and r.instances]
    if not steps:
        return None
    outermost = min(r.depth for r in steps)
    chosen = [r for r in steps if r.depth == outermost]
    return sum(r.instances or 0 for r in chosen), f"instances of {chosen[0].name} inside"


def token_rate(counted: tuple[int, str] | None, light: SpeedOfLight | None, now: Quantity | None) -> TokenRate | None:
    if counted is None or now is None or not now.value:
        return None
    tokens = Quantity(float(counted[0]), "token")
    rate = TokenRate(tokens=tokens, now=tokens / now, source=counted[1])
    if light is not None:
        working = light.now - light.waiting
        rate.gpu_only = tokens / working if working.value > 0 else None
        rate.limit = tokens / light.limit if light.limit.value and light.analysed_share > 0.5 else None
    return rate
