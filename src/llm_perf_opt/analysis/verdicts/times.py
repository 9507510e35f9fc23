"""Where the time of a region goes, from the fields of the timeline.

The speed of light is the time it would take if every kernel ran at its roof, so that the parts add up to the time it
takes. Tokens per second are known where the instances of decode steps tell how many tokens were made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import evolve

from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.columns import FIRST_USE
from llm_perf_opt.regions.idle import GpuSide, IdleTime
from llm_perf_opt.regions.model import NCUProfileRegion, SpeedOfLight, TimeSplit, TokenRate
from llm_perf_opt.regions.timing import SteadyTime, Steps, Timing

# Names that tell how many tokens a step makes, as SGLang and vLLM write them: `step[DECODE bs=64]`,
# `execute_context_0(0)_generation_64(64)`; or how many it reads: `step[EXTEND bs=1 toks=4096]`.
_TOKENS_IN_NAME = (
    (re.compile(r"\bdecode\b.*?\b(?:bs|batch(?:_size)?)[ =:]+(\d{1,7})\b", re.IGNORECASE), "sequences a step"),
    (re.compile(r"_generation_(\d{1,7})\("), "sequences a step"),
    (re.compile(r"\b(?:toks|tokens|num_tokens)[ =:]+(\d{1,9})\b", re.IGNORECASE), "tokens a step"),
)

_SLOWEST = 0.7  # of the pace of the undisturbed GPU: power limits cost no more


def gpu_pace(region: NCUProfileRegion, alone: Quantity) -> float:
    """What part of its recorded time the GPU's work takes without a profiler; 1 where that cannot be told.

    Work that took longer in the recording than all of the region takes by itself ran at a lower clock there: near the
    power limit, the next run may be a fifth slower. `alone`: timed on the GPU, so that it holds all of that work.
    """
    pace = alone.of("ns") / region.gpu_busy_ns if region.gpu_busy_ns else 1.0
    return pace if _SLOWEST <= pace < 1.0 else 1.0  # less is work of other streams, which the time does not hold


def time_split(
    region: NCUProfileRegion, alone: Quantity | None = None, *, measured: bool = False, pace: float = 1.0
) -> TimeSplit:
    """`alone`: the wall time of the same instances without a profiler, where it is known.

    A profiler makes the host slower, most of all its launches, and leaves the kernels as they are: what it adds to
    the wall time is waiting that the program by itself does not have. `measured`: from inside the program, on the GPU
    where there is one, so that it holds the work of the region, whether the host waited for that or not. `pace`: see
    `gpu_pace`.
    """
    values = region.inclusive
    timeline = region.time_source == "timeline"
    kernels = None if values.gpu_time_ns is None else nanoseconds(values.gpu_time_ns * pace)
    wall, idle = (None if v is None else nanoseconds(v) for v in (region.wall_ns, region.gpu_idle_ns))
    busy = None if region.gpu_busy_ns is None else nanoseconds(region.gpu_busy_ns * pace)
    split = TimeSplit(wall=wall, busy=busy, idle=idle, kernels=kernels)
    # What the host has to launch: a CUDA graph once, however many kernels it holds.
    single = values.kernel_count - region.graph_kernels
    split.launches = single + region.graph_replays + values.graph_launches + values.memory.count
    split.launches -= values.memory.migration_count  # pages move by themselves
    if timeline and kernels is not None:
        split.copies = nanoseconds(values.memory.time_ns * pace)
        split.host_copies = nanoseconds(values.memory.host_time_ns * pace)
        split.graphs = nanoseconds(values.graph_time_ns * pace)
        split.collectives, split.exposed_collectives = (
            None if v is None else nanoseconds(v * pace) for v in (region.collective_ns, region.exposed_collective_ns)
        )
    if busy is not None and kernels is not None:
        summed = kernels.value + (values.memory.time_ns + values.graph_time_ns) * pace
        split.overlap = nanoseconds(max(summed - busy.value, 0.0))
    if wall is not None and alone is not None and (measured or alone < wall or idle is None):
        if idle is not None:
            working = max(wall - idle, busy) if measured and busy is not None else wall - idle
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


def once_warm(split: TimeSplit, idle: IdleTime) -> TimeSplit:
    """The time of a whole recording without its first uses, which its idle time leaves out."""
    if split.wall is None or split.idle is None or idle.total_ns >= split.idle.of("ns"):
        return split
    left = nanoseconds(idle.total_ns)
    each = left / split.launches if split.launches else None
    return evolve(split, wall=split.wall - (split.idle - left), idle=left, gap_per_launch=each)


def timing_once_warm(timing: Timing, wall: Quantity | None) -> Timing:
    """The times of a whole recording, whose first uses are its warm-up. `wall`: what it takes without them."""
    steady = timing.steady
    if wall is None or (first := steady.total_ns - round(wall.of("ns"))) <= 0:
        return timing
    left = steady.total_ns - first
    each = (left,) * 3 if steady.instances == 1 else (None,) * 3
    return evolve(
        timing,
        warmup=evolve(timing.warmup, total_ns=timing.warmup.total_ns + first, why=timing.warmup.why or FIRST_USE),
        steady=SteadyTime(steady.instances, left, *each),
    )


def from_gpu_side(split: TimeSplit, side: GpuSide) -> TimeSplit:
    """The same by the work on the GPU: for ranges that are closed before it is done."""
    return evolve(
        split,
        basis="gpu",
        wall=nanoseconds(side.time_ns),
        profiled_wall=None,
        idle=nanoseconds(side.idle_ns),
        gap_per_launch=nanoseconds(side.idle_ns) / split.launches if split.launches else None,
    )


def gpu_time(split: TimeSplit) -> Quantity | None:
    """The time utilisation is measured on while the GPU works: the union, else the kernels' sum."""
    return split.busy if split.busy is not None else split.kernels


def returns_early(split: TimeSplit) -> bool:
    """Is the range closed on the host long before its GPU work is done? Then its wall time says nothing."""
    if split.basis == "gpu" or split.after_return is None or split.wall is None or not split.wall.value:
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
    """now = limit + above_roof + waiting + other_work; the last two are not known where the wall time says nothing."""
    whole = now(split)
    if whole is None or not whole.value:
        return None
    working = split.busy or split.kernels or whole
    above = nanoseconds(float(roofed.recoverable_ns.sum()) * overlap_scale(split))
    not_working = whole - working
    waiting = not_working if split.idle is None else min(not_working, split.idle)
    limit = working - above
    # Its work alone takes longer than its range: the gaps in the range are no part of that.
    unknown = not not_working.value and split.idle is not None and split.idle.value > 0
    return SpeedOfLight(
        now=whole,
        limit=limit,
        above_roof=above,
        waiting=None if unknown else waiting,
        other_work=None if unknown else not_working - waiting,
        analysed_share=roofed.analysed_share,
        limit_over_now=(limit / whole).of("ratio"),
    )


def is_token_step(region: NCUProfileRegion) -> bool:
    """Whether each instance of a region makes a token."""
    return re.search(verdict_rules().token_step, region.name) is not None


def token_count(
    region: NCUProfileRegion, steps: Sequence[NCUProfileRegion], told: Steps | None = None
) -> tuple[int, str] | None:
    """Tokens a region made, for each sequence where its name does not tell the batch; and what says so.

    `steps`: all regions inside it that make tokens. `told`: what the names of its instances say of each.
    """
    for pattern, what in _TOKENS_IN_NAME:
        found = pattern.search(region.name)
        if found and region.instances and (count := int(found[1])):
            return region.instances * count, f"{count:,} {what}, by the name"
    if told is not None and region.instances:
        each, what = told.counted
        return round(region.instances * each), f"{each:,.4g} {what} a step, by the engine"
    if is_token_step(region):
        return (region.instances, f"instances of {region.name}") if region.instances else None
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
        working = light.now - nanoseconds(light.waiting_ns)
        rate.gpu_only = tokens / working if working.value > 0 else None
        rate.limit = tokens / light.limit if light.limit.value and light.analysed_share > 0.5 else None
    return rate
