"""Regions and their times in words, as every output and the answer name them; names in them are safe to show."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.model import NCUProfileRegion, TokenRate
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.ranking import evaluated_times, unrecorded_whole, weight
from llm_perf_opt.regions.table import WHOLE
from llm_perf_opt.regions.timing import SteadyTime

_WARMUP_SHARE = 0.05  # of the steady time: less warm-up is not worth a word
_UNEVEN = 1.25  # times the median: a mean of so much says another thing
_PARTS = 4  # regions inside another that a sentence names


def counted(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`, `1,200 launches`."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def label(region: NCUProfileRegion) -> str:
    """The region's own name."""
    return visible(region.name, 80)


def full_label(region: NCUProfileRegion) -> str:
    """The whole path on one line."""
    path = "/".join(visible(name, 60) for name in region.path)
    text = f"{visible(region.domain, 40)}@{path}" if region.domain else path
    return f"{text} (start/end)" if region.range_kind == "start_end" else text


def warmup_note(region: NCUProfileRegion) -> str:
    """` after 178 ms of warm-up`; empty where there was none worth a word."""
    timing = region.timing
    if timing is None or timing.warmup.total_ns <= _WARMUP_SHARE * timing.steady.total_ns:
        return ""
    why = f" ({timing.warmup.why})" if timing.warmup.why not in (None, "other") else ""
    return f" after {shown(nanoseconds(timing.warmup.total_ns))} of warm-up{why}"


def subject(region: NCUProfileRegion) -> str:
    """A region as a sentence begins with it."""
    return f"The {WHOLE}" if region.is_whole_recording else full_label(region)


def steadily(region: NCUProfileRegion) -> str:
    """` in 61 instances, median 2.4 ms, after 16.5 s of warm-up`; the mean, too, where it is far from the median."""
    timing, each = region.timing, ""
    instances = timing.steady.instances // timing.runs if timing else 0
    side = region.performance.gpu_side if region.performance else None
    if side is not None and side.step_ns is not None:  # its times are the GPU's: those of the ranges say nothing
        each = f" in {side.instances:,} steps, {side.each}"
    elif timing and instances > 1 and timing.steady.median_ns is not None:
        each = f" in {instances:,} instances, median {_time(timing.steady.median_ns)}{_mean(timing.steady)}"
    warmup = warmup_note(region)
    return f"{each},{warmup}" if each and warmup else each + warmup


def _mean(steady: SteadyTime) -> str:
    """Where a few instances take most of the time, as steps do of which every tenth evaluates."""
    mean = steady.total_ns / steady.instances
    return f", mean {_time(mean)}" if mean > _UNEVEN * (steady.median_ns or mean) else ""


def once_note(region: NCUProfileRegion, regions: Sequence[NCUProfileRegion]) -> str:
    """What to say of a region that ran a single time, with nothing that repeats inside: it may not have been warm."""
    if region.timing is None or region.timing.instances != 1 or region.is_whole_recording:
        return ""
    steps = (r for r in regions if r.parent == region.key and r.timing is not None and r.timing.instances > 1)
    return "" if any(steps) else " It ran once, so that may be warm-up: run it several times in the program to know."


def without_profiler(region: NCUProfileRegion) -> str:
    """What to say of a wall time that is not the timeline's; empty where it is."""
    wall = region.performance.time.profiled_wall if region.performance else None
    whole = unrecorded_whole(region)
    more = "" if whole is None else f"; all steady instances take {_time(whole)}"
    return "" if wall is None else f" without a profiler ({shown(wall)} under it{more})"


def host_sentence(region: NCUProfileRegion, regions: Sequence[NCUProfileRegion]) -> str:
    """Where the time of a region goes, by the times of ranges alone. `regions`: all of its scope."""
    inside = sorted((r for r in regions if r.parent == region.key), key=weight, reverse=True)
    parts = [r for r in inside if not _is_warmup(r)]
    whole, _ = evaluated_times(region)
    text = f"{subject(region)} takes {_time(whole)}{without_profiler(region) or steadily(region)}"
    once = [f"{label(r)} {_time(r.timing.warmup.total_ns)}" for r in inside if r.timing and _is_warmup(r)][:_PARTS]
    note = (f" In its warm-up alone: {', '.join(once)}." if once else "") + once_note(region, regions)
    if not parts:
        return f"{text}.{note}"
    told = [_part(part, whole) for part in parts[:_PARTS]]
    more = f" and {counted(len(parts) - _PARTS, 'more region')}" if len(parts) > _PARTS else ""
    return f"{text}: {', '.join(told)}{more}.{note}"


def _is_warmup(region: NCUProfileRegion) -> bool:
    """Does it run while the region around it warms up, and never again? Its time is no part of a steady one."""
    return region.timing is not None and not region.timing.steady.instances and region.timing.instances > 0


def _part(region: NCUProfileRegion, whole: float | None) -> str:
    time, _ = evaluated_times(region)
    share = "–" if time is None or not whole else shown(Quantity(time / whole, "ratio"))
    tokens = region.performance.tokens if region.performance else None
    rate = "" if tokens is None else f", {shown(tokens.now).removesuffix(' token/s')} {token_unit(tokens)}"
    return f"{label(region)} {_time(time)} ({share}{_each(region)}{rate})"


def token_unit(tokens: TokenRate) -> str:
    """Steps that are only counted make a token for each sequence of a batch whose size is not known."""
    return "tokens/s per sequence" if tokens.source.startswith("instances of ") else "tokens/s"


def _each(region: NCUProfileRegion) -> str:
    """The instances that the time of a region is of: of a recording, those that it has."""
    steady = region.timing.steady if region.timing else None
    count = region.instances if region.timing and region.timing.profiled_median_ns else steady and steady.instances
    return f", {count:,} instances, median {_time(steady.median_ns)}" if steady and count and count > 1 else ""


def _time(value: float | None) -> str:
    return shown(None if value is None else nanoseconds(value))
