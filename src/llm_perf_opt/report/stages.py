"""The stages of a run and the one stage table: what a stage takes, how near it is to the limits, what holds it back.

Markdown, the summary for stakeholders, the terminal and the cards of the page all show `STAGE_COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import NCUProfileRegion, RegionPerformance, SpeedOfLight, Utilisation
from llm_perf_opt.regions.ranking import roofs_known as roofs_known  # for all who show stages, from one place
from llm_perf_opt.regions.ranking import stage_regions as stage_regions
from llm_perf_opt.regions.ranking import stage_time as stage_time
from llm_perf_opt.report.columns import Column, count
from llm_perf_opt.report.text import (
    duration,
    evaluated_instances,
    evaluated_times,
    evaluated_work,
    gpu_time,
    percent,
    quantity,
    work_count,
)

MOST_STAGES = 12
LIMITS = "limits"  # the part of the table about how fast a stage could be
WAITING_BOUNDS = ("launch", "host", "other_work", "communication")  # the GPU is not what takes the time

StageColumn = Column[NCUProfileRegion]


def evaluated(stages: Sequence[NCUProfileRegion]) -> list[tuple[NCUProfileRegion, RegionPerformance]]:
    """The stages that have a verdict."""
    return [(region, region.performance) for region in stages if region.performance is not None][:MOST_STAGES]


def attainable(light: SpeedOfLight) -> Quantity:
    """The time without waiting: kernels at their roofs, or, where those are not known, as measured."""
    return light.limit if roofs_known(light) else light.limit + light.above_roof


def time_parts(region: NCUProfileRegion) -> list[tuple[str, str, float]]:
    """What the time of a stage consists of: kind, name, nanoseconds; parts of nothing are left out."""
    light = region.performance.speed_of_light if region.performance else None
    if light is not None:
        limit, above = light.limit.of("ns"), light.above_roof.of("ns")
        # Collectives have no roof here: they are counted as if they were at their limit.
        exposed = min(_exposed_collectives(region), limit)
        limit -= exposed
        work = [("light", "at the GPU's limit", limit), ("above", "slower than that", above)]
        parts = [
            *(work if roofs_known(light) else [("busy", "GPU work", limit + above)]),
            ("collectives", "collectives alone", exposed),
            ("idle", "GPU waiting", light.waiting_ns),
            ("others", "other regions' work", light.other_work.of("ns") if light.other_work is not None else 0.0),
        ]
        return [part for part in parts if part[2] > 0]
    if region.wall_ns is None or region.gpu_idle_ns is None:
        return []
    busy = region.wall_ns - region.gpu_idle_ns
    return [("busy", "GPU busy", float(busy)), ("idle", "GPU waiting", float(region.gpu_idle_ns))]


def _exposed_collectives(region: NCUProfileRegion) -> float:
    """Time in which the GPU did nothing but communicate, or wait for other ranks in a collective."""
    exposed = region.performance.time.exposed_collectives if region.performance else None
    return 0.0 if exposed is None else exposed.of("ns")


# -- values of columns -------------------------------------------------------------------------------


def of_performance(value: Callable[[RegionPerformance], Any]) -> Callable[[NCUProfileRegion], Any]:
    """A value that only evaluated regions have."""
    return lambda region: None if region.performance is None else value(region.performance)


def in_unit(amount: Quantity | None, unit: Any) -> float | None:
    return None if amount is None else amount.of(unit)


def used(metric: str, time_basis: str, *, calibrated: bool = False) -> Callable[[RegionPerformance], float | None]:
    """The part that was reached of the printed peak, or of the measured one."""

    def value(performance: RegionPerformance) -> float | None:
        for u in counted_use(performance):
            if (u.metric, u.time_basis, u.peak_basis == "calibrated") == (metric, time_basis, calibrated):
                return u.value
        return None

    return value


def counted_use(performance: RegionPerformance) -> list[Utilisation]:
    """The shares of peaks that rest on something counted in kernels.

    A stage with copies and no kernel moves what the copies move, which says nothing of its use of the memory.
    """
    work = performance.work
    copies_alone = work.dram is not None and work.dram == work.copied and work.dram_read is None
    return [u for u in performance.utilisation if not (copies_alone and u.metric == "mbu")]


def reached(performance: RegionPerformance, metric: str, time_basis: str) -> str | None:
    """`31.1 %`, and of the calibrated peak where there is one: `31.1 % (38.0 % cal.)`."""
    printed = used(metric, time_basis)(performance)
    measured = used(metric, time_basis, calibrated=True)(performance)
    if printed is None and measured is None:
        return None
    text = "–" if printed is None else percent(printed)
    return text if measured is None else f"{text} ({percent(measured)} cal.)"


def _gpu_busy(region: NCUProfileRegion) -> float | None:
    wall, idle = evaluated_times(region)
    return 1 - idle / wall if wall and idle is not None else None


def _mean_kernel(region: NCUProfileRegion) -> float | None:
    work = evaluated_work(region)
    time, kernels = gpu_time(work), work.kernel_count
    return time / kernels if time and kernels else None


def each_ns(region: NCUProfileRegion) -> float | None:
    """What one steady instance takes, where there are several."""
    side = region.performance.gpu_side if region.performance else None
    if side is not None:  # the stage's time is the GPU's then, too
        return side.step_ns if side.fills_steps else None
    steady = region.timing.steady if region.timing else None
    return steady.median_ns if steady is not None and steady.instances > 1 else None


def _warmup(region: NCUProfileRegion) -> float | None:
    return region.timing.warmup.total_ns or None if region.timing else None


def _kernel_verdict(performance: RegionPerformance) -> str | None:
    return None if performance.gpu_verdict.bound == "unknown" else performance.gpu_verdict.title


def _limit(performance: RegionPerformance) -> float | None:
    light = performance.speed_of_light
    return light.limit.of("ns") if light and roofs_known(light) else None


def _faster(region: NCUProfileRegion) -> str:
    light = region.performance.speed_of_light if region.performance else None
    if light is None or not light.limit.value:
        return ""
    factor = (light.now / light.limit).of("ratio")
    times = f"{factor:,.0f}×" if factor >= 100 else f"{factor:.3g}×"
    return f"{times} faster; counters cover {percent(light.analysed_share)} of the kernel time"


def _light(part: Callable[[SpeedOfLight], Quantity | None]) -> Callable[[NCUProfileRegion], float | None]:
    return of_performance(lambda p: in_unit(part(p.speed_of_light), "ns") if p.speed_of_light else None)


def _tokens(which: str) -> Callable[[NCUProfileRegion], float | None]:
    return of_performance(lambda p: in_unit(getattr(p.tokens, which), "token/s") if p.tokens else None)


def rate(value: float) -> str:
    """Tokens per second, without the unit."""
    return quantity(value, "") if value >= 1e6 else f"{value:,.0f}" if value >= 999.95 else f"{value:.4g}"


def _peaks(metric: str) -> Callable[[NCUProfileRegion], str]:
    def told(region: NCUProfileRegion) -> str:
        utilisation = counted_use(region.performance) if region.performance else []
        main = next((u for u in utilisation if u.metric == metric and u.peak_basis != "calibrated"), None)
        if main is None:
            return ""
        return f"{main.peak_basis}: " + ", ".join(f"{k} {quantity(p.value, p.unit)}" for k, p in main.peaks.items())

    return told


def _needs_counters(metric: str) -> Callable[[NCUProfileRegion], str]:
    def reason(region: NCUProfileRegion) -> str:
        if region.performance is None or any(u.metric == metric for u in counted_use(region.performance)):
            return ""
        if _no_kernels(region):
            return _WITHOUT_KERNELS
        work = region.performance.work
        about = "DRAM" if metric == "mbu" else "FLOPs"
        if lacking := [text for text in work.missing if text.startswith(about)]:
            return lacking[0]
        counted = bool(work.flops or work.dram or work.l2)
        return "the counters it needs were not collected" if counted else "needs ncu counters"

    return reason


_WITHOUT_KERNELS = "not measured: no kernels"


def _no_kernels(region: NCUProfileRegion) -> bool:
    work = evaluated_work(region)
    return not work.kernel_count and not work.graph_launches


def _limit_missing(region: NCUProfileRegion) -> str:
    if region.performance is None:
        return ""
    return _WITHOUT_KERNELS if _no_kernels(region) else "needs ncu counters and GPU peaks"


def _used_column(metric: str, title: str, hint: str, *, busy: bool, width: int | None = None) -> StageColumn:
    basis = "busy" if busy else "wall"
    return Column(
        f"{metric}_{basis}",
        of_performance(lambda p: reached(p, metric, basis)),
        f"{title}, busy" if busy else title,
        hint=f"{hint} in the time {'the GPU worked' if busy else 'of the stage'}",
        detail=_peaks(metric),
        missing=(lambda region: "") if busy else _needs_counters(metric),
        from_width=width,
    )


_BUSY = "of the wall time, the GPU ran something of this process"
_FLOPS = "FLOPs over what the peak allows"
_BYTES = "DRAM bytes over what the memory can move"

STAGE_COLUMNS: tuple[StageColumn, ...] = (
    Column("verdict", of_performance(lambda p: p.verdict.title), "verdict", words=True, from_width=0),
    Column("gpu_verdict", of_performance(_kernel_verdict), "its kernels", words=True),
    Column("instances", evaluated_instances, "inst.", count, "steady ones", from_width=130),
    Column("time_ns", stage_time, "time", duration, "of all steady instances", from_width=0),
    Column("each_ns", each_ns, "median", duration, "of one steady instance", from_width=120),
    Column("warmup_ns", _warmup, "warm-up", duration, "what it took before the program was warm"),
    Column("gpu_busy", _gpu_busy, "GPU busy", percent, _BUSY, from_width=0),
    Column("kernels", evaluated_work, "kernels", work_count, from_width=98),
    Column("mean_kernel_ns", _mean_kernel, "mean kernel", duration, hint="how long a launch takes on average"),
    _used_column("mfu", "MFU", _FLOPS, busy=False, width=76),
    _used_column("mfu", "MFU", _FLOPS, busy=True),
    _used_column("mbu", "bandwidth", _BYTES, busy=False, width=88),
    _used_column("mbu", "bandwidth", _BYTES, busy=True),
    Column(
        "limit_ns",
        of_performance(_limit),
        "at the limit",
        duration,
        hint="speed of light: every kernel at its roof",
        detail=_faster,
        missing=_limit_missing,
        from_width=66,
    ),
    Column(
        "tokens_per_s",
        _tokens("now"),
        "tokens/s",
        rate,
        detail=lambda r: r.performance.tokens.source if r.performance and r.performance.tokens else "",
        from_width=110,
    ),
    Column("tokens_at_limit", _tokens("limit"), "tokens/s at the limit", rate, from_width=160),
    Column("now_ns", _light(lambda light: light.now), "now", duration, where=LIMITS),
    Column("roofs_ns", _light(lambda light: light.limit), "= at the roofs", duration, where=LIMITS),
    Column("above_ns", _light(lambda light: light.above_roof), "+ kernels above", duration, where=LIMITS),
    Column("waiting_ns", _light(lambda light: light.waiting), "+ waiting", duration, where=LIMITS),
    Column("other_work_ns", _light(lambda light: light.other_work), "+ other work", duration, where=LIMITS),
    Column(
        "known",
        of_performance(lambda p: p.speed_of_light.analysed_share if p.speed_of_light else None),
        "kernels known",
        percent,
        where=LIMITS,
    ),
    Column("tokens_gpu_only", _tokens("gpu_only"), "tokens/s without waiting", rate, where=LIMITS),
)


def stage_columns(where: str = "", *, brief: bool = False) -> list[StageColumn]:
    """The columns of one part of the table; `brief`: those a reader in a hurry needs."""
    return [c for c in STAGE_COLUMNS if c.where == where and not (brief and c.from_width is None)]
