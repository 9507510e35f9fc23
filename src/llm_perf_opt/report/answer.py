"""The answer: which stage is the problem, why, what to do first; then the same stage by stage in sentences.

Every output shows this first, whichever command made the report. Plain text; names in it are already safe to show.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from llm_perf_opt.metrics.catalogue import with_roles
from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Opportunity, Scope
from llm_perf_opt.regions.table import WHOLE
from llm_perf_opt.report.region_table import is_host_only
from llm_perf_opt.report.stages import roofs_known, stage_regions, stage_time
from llm_perf_opt.report.text import (
    counted,
    duration,
    evaluated_times,
    evaluated_work,
    full_label,
    gpu_time,
    label,
    quantity,
    share,
    warmup_note,
    weight,
    without_profiler,
)

LEFT_OUT = (
    "No GPU work is in the recording, so this report leaves out kernels, idle time and what a GPU could do: "
    "times are those of the ranges on the host. On a machine with a GPU, llm-perf profile -- CMD tells the rest."
)
MEASURED = (
    "These are the times of the program by itself, with no profiler. "
    "Where inside them they go, on the GPU and on the host, llm-perf profile -- CMD tells."
)
_WAITING = 0.5  # idle share above which the GPU is said to wait for the host
_LATE = 0.1  # GPU work after the end of the range, as a share of its wall time, above which it returns early
_REGIONS = 6
_PARTS = 4


@define(frozen=True)
class Line:
    """One line of the answer: what it is about, and what it says."""

    name: str
    text: str
    lead: str = ""  # what the text begins with and the eye should find first


@define(frozen=True)
class Answer:
    """What an output shows first."""

    lines: Sequence[Line]  # Where, Why, Do first; none where no stage could be evaluated
    sentences: Sequence[str]  # stage by stage, most important first
    fixes: Sequence[Opportunity]  # most recoverable time first


def answer_of(report: NCUProfileRegionReport) -> Answer:
    return Answer(headline(report), answer(report), report.opportunities)


def headline(report: NCUProfileRegionReport) -> list[Line]:
    """Three lines; none where no stage could be evaluated."""
    stages = stage_regions(report)
    if not stages or stages[0].performance is None:
        return []
    if is_host_only(report):
        first, *_, last = _host_sentences(report)
        return [Line("Where", first), Line("Next" if last == MEASURED else "Not here", last)]
    worst, scope = stages[0], report.main_scope
    title = worst.performance.verdict.title if worst.performance else ""
    return [
        _line("Where", _where(stages, scope.regions if scope else []), _subject(worst)),
        _line("Why", _why(worst), f"{title}."),
        _line("Do first", _first(report, worst), _best_advice(report)),
    ]


def _line(name: str, text: str, lead: str) -> Line:
    """The lead counts only where the text really begins with it."""
    found = text[: len(lead)]
    return Line(name, text, found if lead and found.lower() == lead.lower() else "")


def _best_advice(report: NCUProfileRegionReport) -> str:
    return report.opportunities[0].advice.rstrip(".") if report.opportunities else ""


def _where(stages: list[NCUProfileRegion], regions: list[NCUProfileRegion]) -> str:
    worst, whole = stages[0], sum(stage_time(r) or 0 for r in stages)
    took = stage_time(worst)
    takes = f"{_subject(worst)} takes {duration(took)}{_steadily(worst)}"
    if len(stages) == 1:
        return f"{takes}.{_once(worst, regions)}"
    others = ", ".join(f"{full_label(r)} {duration(stage_time(r))}" for r in stages[1:3])
    rest = f", and {len(stages) - 3} more" if len(stages) > 3 else ""
    return f"{takes}, {share(took, whole)} of the time of all stages ({others}{rest}).{_once(worst, regions)}"


def _once(region: NCUProfileRegion, regions: list[NCUProfileRegion]) -> str:
    """What to say of a stage that ran a single time and does not repeat itself: nobody can tell whether it was warm."""
    if region.timing is None or region.timing.instances != 1 or _is_whole(region):
        return ""
    if any(inner.parent == region.key and (inner.instances or 0) > 2 for inner in regions):
        return ""
    return " It ran once, so that may be warm-up: run it several times in the program to know."


def _is_whole(region: NCUProfileRegion) -> bool:
    return (region.domain, region.path) == ("", [WHOLE])


def _subject(region: NCUProfileRegion) -> str:
    """A region as a sentence begins with it."""
    return f"The {WHOLE}" if _is_whole(region) else full_label(region)


def _steadily(region: NCUProfileRegion) -> str:
    """` in 61 instances, median 2.4 ms, after 16.5 s of warm-up`."""
    steady = region.timing.steady if region.timing else None
    each = (
        f" in {steady.instances:,} instances, median {duration(steady.median_ns)}"
        if steady and steady.instances > 1
        else ""
    )
    warmup = warmup_note(region)
    return f"{each},{warmup}" if each and warmup else each + warmup


def _why(region: NCUProfileRegion) -> str:
    performance = region.performance
    assert performance is not None
    title, text = performance.verdict.title, performance.verdict.text
    return text if text.lower().startswith(title.lower()) else f"{title[:1].upper()}{title[1:]}. {text}"


def _first(report: NCUProfileRegionReport, worst: NCUProfileRegion) -> str:
    performance = worst.performance
    assert performance is not None
    if performance.verdict.bound == "unknown" and performance.verdict.next_step:
        return f"Find out more: {performance.verdict.next_step}"
    best = next(iter(report.opportunities), None)
    if best is None:
        return performance.verdict.advice or "Nothing that was measured stands out."
    advice = best.advice[:1].upper() + best.advice[1:]
    region = next((r for r in stage_regions(report) if r.key == best.region), worst)
    text = (
        f"{advice.rstrip('.')}: that can win back up to {duration(best.recoverable.of('ns'))} of the "
        f"{duration(best.of.of('ns'))} of {'the ' if _is_whole(region) else ''}{full_label(region)}."
    )
    light = region.performance.speed_of_light if region.performance else None
    if light is not None and light.limit.value > 0:
        busy = light.limit + light.above_roof
        text += f" Its GPU work alone takes {duration(busy.of('ns'))}"
        text += (
            f"; at the limit of the GPU it would be {duration(light.limit.of('ns'))}." if roofs_known(light) else "."
        )
    return text


def answer(report: NCUProfileRegionReport) -> list[str]:
    """Plain sentences, most important first."""
    scope = report.main_scope
    if scope is None:
        return ["There is nothing in the recording to report."]
    if not scope.regions:
        words = "No matching regions." if report.available_ranges else "The recording has no NVTX ranges."
        return [words, *_whole(scope)]
    if is_host_only(report):
        return _host_sentences(report)
    outer, more = _outermost(scope)
    return [*map(_sentence, outer), *more, *_whole(scope)]


def _outermost(scope: Scope) -> tuple[list[NCUProfileRegion], list[str]]:
    """The outermost regions, the longest first, and what to say of those beyond the first few."""
    reported = {region.key for region in scope.regions}
    outer = sorted((r for r in scope.regions if r.parent not in reported), key=weight, reverse=True)
    left = len(outer) - _REGIONS
    return outer[:_REGIONS], [f"{left:,} more outermost regions are in the report."] if left > 0 else []


def _sentence(region: NCUProfileRegion) -> str:
    return f"{full_label(region)}: {_verdict(region)}{_time(region)}{_rates(region)}{_uncounted(region)}"


def _verdict(region: NCUProfileRegion) -> str:
    performance = region.performance
    if performance is None or performance.verdict.bound == "unknown":
        return ""
    return f"{performance.verdict.title}. "


def _time(region: NCUProfileRegion) -> str:
    """Where the time of a region goes."""
    work = _work(region)
    wall, idle = evaluated_times(region)
    if not wall or idle is None:
        time = gpu_time(region.inclusive)
        if region.wall_ns is not None and time is None:
            return f"{duration(region.wall_ns)} wall time; what the GPU did is not in the recording."
        return f"{work}." if time is None else f"{duration(time)} of GPU time in {work}."
    inside = wall - idle
    words = f"{duration(wall)} wall time{without_profiler(region)}{warmup_note(region)}"
    text = f"{words}, GPU working {share(inside, wall)} of it ({work})."
    if region.gpu_busy_ns and region.gpu_busy_ns - inside > _LATE * wall:
        # The range launches and returns: idle time inside it says little about the stage.
        return (
            f"{duration(wall)} wall time, launches {duration(region.gpu_busy_ns)} of GPU work ({work}) "
            "and returns before it is done; look at the range around it, or synchronise."
        )
    if idle > _WAITING * wall and region.gpu_busy_ns:
        text += f" The GPU waits for the host: {duration(idle)} idle."
    return text


def _work(region: NCUProfileRegion) -> str:
    values = evaluated_work(region)
    parts = [counted(values.kernel_count, "kernel")]
    if values.gpu_time_ns and values.kernel_count:
        parts[0] += f" of {duration(values.gpu_time_ns / values.kernel_count)} on average"
    if values.memory.count:
        parts.append("1 copy or fill" if values.memory.count == 1 else f"{values.memory.count:,} copies and fills")
    if values.graph_launches:
        parts.append(counted(values.graph_launches, "CUDA graph"))
    return ", ".join(parts)


def _rates(region: NCUProfileRegion) -> str:
    """Bytes and FLOPs, and how fast they went while kernels ran."""
    work = evaluated_work(region)
    metrics, time = work.metrics, work.gpu_time_ns
    found = []
    moved = [metrics[c.name].value for c in with_roles(metrics, ("dram_read", "dram_write"))]
    if moved:
        found.append((sum(moved), "B", "DRAM traffic"))
    flops = [metrics[c.name].value for c in with_roles(metrics, ("tensor_ops",))]
    if any(flops):
        found.append((sum(flops), "FLOP", "tensor work"))
    words = []
    for value, unit, what in found:
        rate = f" ({quantity(value / time * 1e9, unit + '/s')} while kernels run)" if time else ""
        words.append(f"{quantity(value, unit)} of {what}{rate}")
    return f" {', '.join(words)}." if words else ""


def _uncounted(region: NCUProfileRegion) -> str:
    """What the counters leave open: it is not zero."""
    work = region.performance.work if region.performance is not None else None
    if work is None or not region.inclusive.metrics:
        return ""
    operations = "tensor work" if work.cuda_core else "FLOPs"
    known = {operations: bool(work.tensor) or work.flops is not None, "DRAM traffic": work.dram is not None}
    lacking = " and ".join(what for what, is_known in known.items() if not is_known)
    return f" Not counted: {lacking}." if lacking else ""


def _whole(scope: Scope) -> list[str]:
    totals = scope.totals
    sentences = []
    if totals.kernel_count or totals.graph_launches:
        graphs = f" and {counted(totals.graph_launches, 'CUDA graph')}" if totals.graph_launches else ""
        text = f"In all: {counted(totals.kernel_count, 'kernel')}{graphs}"
        text += f", {duration(gpu_time(totals))} of GPU time" if totals.gpu_time_ns is not None else ""
        if totals.unattributed_kernel_count:
            outside = share(totals.unattributed_gpu_time_ns, gpu_time(totals))
            text += (
                f"; {counted(totals.unattributed_kernel_count, 'kernel')} ({outside} of the time) outside every range"
            )
        sentences.append(text + ".")
    if totals.memory.count:
        sentences.append(
            f"Copies and fills: {totals.memory.count:,}, {duration(totals.memory.time_ns)} "
            f"({share(totals.memory.time_ns, totals.gpu_busy_ns)} of the GPU's busy time), {quantity(totals.memory.bytes, 'B')}."
        )
    if totals.adopted_kernel_count:
        sentences.append(
            f"{counted(totals.adopted_kernel_count, 'kernel')} came from threads with no range open (autograd, workers) "
            "and count to the ranges of their process."
        )
    return sentences


# -- without a GPU: the times of the ranges are all there is ------------------------------------------


def _host_sentences(report: NCUProfileRegionReport) -> list[str]:
    """Where the time goes, and what is left out."""
    scope = report.main_scope
    assert scope is not None
    outer, more = _outermost(scope)
    left_out = MEASURED if any(given.get("kind") == "measured" for given in report.inputs) else LEFT_OUT
    return [*(_host_sentence(region, scope.regions) for region in outer), *more, left_out]


def _host_sentence(region: NCUProfileRegion, regions: list[NCUProfileRegion]) -> str:
    parts = sorted((r for r in regions if r.parent == region.key), key=weight, reverse=True)
    (whole, _), times = evaluated_times(region), [evaluated_times(r)[0] for r in parts[:_PARTS]]
    text = f"{_subject(region)} takes {duration(whole)}{without_profiler(region) or _steadily(region)}"
    if not parts:
        return f"{text}.{_once(region, regions)}"
    told = [f"{label(r)} {duration(t)} ({share(t, whole)}{_rate(r)})" for r, t in zip(parts, times, strict=False)]
    more = f" and {counted(len(parts) - _PARTS, 'more region')}" if len(parts) > _PARTS else ""
    return f"{text}: {', '.join(told)}{more}."


def _rate(region: NCUProfileRegion) -> str:
    tokens = region.performance.tokens if region.performance else None
    return "" if tokens is None else f", {shown(tokens.now).removesuffix(' token/s')} tokens/s"
