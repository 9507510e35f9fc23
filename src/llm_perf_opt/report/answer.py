"""The answer as people read it: the lines of the report's own answer, its fixes, and all stages in sentences.

Every output shows this first, whichever command made the report. Plain text; names in it are already safe to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import define

from llm_perf_opt.metrics.catalogue import with_roles
from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.fixes import AlsoIn, Answer, Fix
from llm_perf_opt.regions.labels import host_sentence, subject
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, Scope
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.ranking import is_host_only, stage_regions
from llm_perf_opt.report.text import (
    counted,
    duration,
    evaluated_instances,
    evaluated_times,
    evaluated_work,
    full_label,
    gpu_time,
    percent,
    place_words,
    quantity,
    share,
    warmup_note,
    weight,
    without_profiler,
)
from llm_perf_opt.report.tried_words import tried_in_words

_WAITING = 0.5  # idle share above which the GPU is said to wait for the host
_LATE = 0.1  # GPU work after the end of the range, as a share of its wall time, above which it returns early
_TOGETHER = 0.05  # of the summed time of GPU work, above which work is said to overlap
_REGIONS = 6
_LINES = 2  # named with a fix
_STAGES = 3  # others


@define(frozen=True)
class Line:
    """One line of the answer: what it is about, and what it says."""

    name: str
    text: str
    lead: str = ""  # what the text begins with and the eye should find first


@define(frozen=True)
class ShownFix:
    """A fix with the name of its stage as people read it."""

    fix: Fix
    where: str
    gain: str  # what one instance of the stage would save at most
    also: str = ""  # the other stages it gains in
    callers: Sequence[str] = ()  # the user's own lines that lead to those of the fix, where these are in libraries

    @property
    def text(self) -> str:
        """All of it in one line."""
        tried = f" {self.tried}" if self.tried else ""
        also = f" {self.also}" if self.also else ""
        gain = f"{self.gain.removeprefix('up to ')}, expected {self.interval}" if self.interval else self.gain
        return f"{self.where}: {self.fix.action.rstrip('.')}: {gain}. {self.fix.because}.{self.at}{also}{tried}"

    @property
    def interval(self) -> str:
        """What the gain may be instead: `8.67 ms to 14.6 ms`."""
        return " to ".join(map(duration, self.fix.gain_interval_ns or ()))

    @property
    def tried(self) -> str:
        """What became of it."""
        return tried_in_words(self.fix.tried)

    @property
    def at(self) -> str:
        """The lines of the program it is about."""
        lines = [place_words(line.file, line.line, line.function) for line in self.fix.lines[:_LINES]]
        callers = f", called from {', '.join(self.callers[:_LINES])}" if self.callers else ""
        return f" At {', '.join(lines)}{callers}." if lines else ""


@define(frozen=True)
class ShownAnswer:
    """What an output shows first: the answer of the report, made ready for people."""

    lines: Sequence[Line]  # Where, Why, Do first
    sentences: Sequence[str]  # stage by stage, most important first
    fixes: Sequence[ShownFix]  # in the order of the answer


def answer_of(report: NCUProfileRegionReport) -> ShownAnswer:
    stages = {region.key: region for region in stage_regions(report)}
    regions = report.main_scope.regions if report.main_scope else []
    return ShownAnswer(
        _headline(report.answer, next((r for r in (*stages.values(), *regions) if r.key == report.answer.stage), None)),
        answer(report),
        [_shown_fix(fix, stages) for fix in report.answer.fixes],
    )


def _headline(found: Answer, stage: NCUProfileRegion | None) -> list[Line]:
    """The three lines, and where each begins with what the eye should find."""
    performance = stage.performance if stage is not None else None
    titles = [v.title for v in (performance.verdict, performance.gpu_verdict)] if performance else []
    leads = {
        "Where": [subject(stage)] if stage is not None else [],
        "Why": [f"{title}." for title in titles],
        "Do first": [fix.action.rstrip(".") for fix in found.fixes[:1]],
    }
    return [Line(name, text, _lead(text, leads[name])) for name, text in found.lines]


def _lead(text: str, candidates: Iterable[str]) -> str:
    """The lead counts only where the text really begins with it."""
    return next((text[: len(lead)] for lead in candidates if text[: len(lead)].lower() == lead.lower()), "")


def _shown_fix(fix: Fix, stages: Mapping[str, NCUProfileRegion]) -> ShownFix:
    stage = stages.get(fix.stage)
    elsewhere = [f"in {_stage_name(one.stage, stages)}: {_gain(one, stages)}" for one in fix.also]
    also = f"Also {', '.join(elsewhere[:_STAGES])}" if elsewhere else ""
    also += f", and in {more} more" if (more := len(elsewhere) - _STAGES) > 0 else ""
    known = stage.performance.lines if stage is not None and stage.performance is not None else []
    callers = {(line.file, line.line): line.called_from for line in known if line.called_from is not None}
    leading = (callers.get((line.file, line.line)) for line in fix.lines)
    places = [place_words(line.file, line.line, line.function) for line in leading if line is not None]
    also += "." if also else ""
    return ShownFix(fix, _stage_name(fix.stage, stages), _gain(fix, stages), also, list(dict.fromkeys(places)))


def _stage_name(key: str, stages: Mapping[str, NCUProfileRegion]) -> str:
    return full_label(stages[key]) if key in stages else visible(key, 60)


def _gain(found: Fix | AlsoIn, stages: Mapping[str, NCUProfileRegion]) -> str:
    several = found.stage in stages and (evaluated_instances(stages[found.stage]) or 1) > 1
    return f"up to {duration(found.gain_ns)}{' of each instance' if several else ''} ({percent(found.gain_share)})"


def answer(report: NCUProfileRegionReport) -> list[str]:
    """Plain sentences, most important first; what the three lines say already is left out."""
    scope = report.main_scope
    if scope is None:
        return []
    outer, more = _outermost(scope)
    if is_host_only(report):
        others = [region for region in outer if region.key != report.answer.stage]
        return [*(host_sentence(region, scope.regions) for region in others), *more]
    one_gpu = sum(other.scope.startswith("device:") for other in report.scopes) <= 1
    told = [_sentence(region) + (_overlap(region) if one_gpu else "") for region in outer]
    return [*told, *more, *_whole(scope)]


def time_sentences(report: NCUProfileRegionReport) -> list[str]:
    """What each of the outermost regions takes, and its longest parts, by the times of ranges alone."""
    scope = report.main_scope
    if scope is None:
        return []
    outer, more = _outermost(scope)
    return [*(host_sentence(region, scope.regions) for region in outer), *more]


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
    words = f"{duration(wall)} {_clock(region)}{without_profiler(region)}{warmup_note(region)}"
    text = f"{words}, GPU working {share(inside, wall)} of it ({work})."
    launched = region.gpu_busy_ns
    if launched and region.performance is not None and region.performance.steady is not None:
        launched = min(launched, evaluated_work(region).gpu_time_ns or 0)  # without that of the warm-up
    if launched and launched - inside > _LATE * wall:
        # The range launches and returns: idle time inside it says little about the stage.
        return (
            f"{duration(wall)} wall time, launches {duration(launched)} of GPU work ({work}) "
            "and returns before it is done; look at the range around it, or synchronise."
        )
    if idle > _WAITING * wall and region.gpu_busy_ns:
        text += f" The GPU waits for the host: {duration(idle)} idle."
    return text


def _clock(region: NCUProfileRegion) -> str:
    """Whose time it is: of ranges that end before their work does, the GPU's."""
    if region.performance is None or region.performance.time.basis == "host" or region.wall_ns is None:
        return "wall time"
    steady = region.timing.steady if region.timing is not None and region.timing.warmup.instances else None
    return f"on the GPU (its ranges take {duration(steady.total_ns if steady is not None else region.wall_ns)})"


def _overlap(region: NCUProfileRegion) -> str:
    """That work runs side by side, where it does: its times add up to more than the GPU is busy."""
    split = region.performance.time if region.performance else None
    if split is None or split.overlap is None or split.busy is None:
        return ""
    summed = split.busy + split.overlap
    if split.overlap.value <= _TOGETHER * summed.value:
        return ""
    return f" GPU work overlaps: it adds up to {shown(summed)}, and the GPU is busy for {shown(split.busy)}."


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
        text = f"In total: {counted(totals.kernel_count, 'kernel')}{graphs}"
        text += f", {duration(gpu_time(totals))} of GPU time" if totals.gpu_time_ns is not None else ""
        if totals.unattributed_kernel_count:
            outside = share(totals.unattributed_gpu_time_ns, gpu_time(totals))
            text += (
                f"; {counted(totals.unattributed_kernel_count, 'kernel')} ({outside} of the time) outside every range"
            )
        sentences.append(text + ".")
    if totals.memory.count:
        took, busy = totals.memory.time_ns, totals.gpu_busy_ns
        # Those that run at once add up to more than that.
        part = f" ({share(took, busy)} of the GPU's busy time)" if busy is None or took <= busy else ", added up"
        amounts = f"{totals.memory.count:,}, {duration(took)}{part}, {quantity(totals.memory.bytes, 'B')}"
        sentences.append(f"Copies and fills: {amounts}.")
    if totals.adopted_kernel_count:
        sentences.append(
            f"{counted(totals.adopted_kernel_count, 'kernel')} came from threads with no range open (autograd, workers) "
            "and count towards the ranges of their process."
        )
    return sentences
