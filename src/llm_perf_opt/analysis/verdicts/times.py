"""Where the time of a region goes, from the fields of the timeline."""

from __future__ import annotations

from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds
from llm_perf_opt.regions.model import NCUProfileRegion, TimeSplit


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
    if busy is not None and kernels is not None:
        summed = kernels.value + values.memory.time_ns + values.graph_time_ns
        split.overlap = nanoseconds(max(summed - busy.value, 0.0))
    if wall is not None and idle is not None and alone is not None and alone < wall:
        working = wall - idle
        split.profiled_wall, wall = wall, alone
        split.wall, split.idle = wall, nanoseconds(max(wall.of("ns") - working.of("ns"), 0.0))
        idle = split.idle
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
