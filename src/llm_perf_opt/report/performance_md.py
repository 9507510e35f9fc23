"""Verdicts, speed of light, families and opportunities in Markdown: parts of `report.md` and of region reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_perf_opt.metrics.families import label_of
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.labels import counted as count_of
from llm_perf_opt.regions.model import (
    NCUProfileRegion,
    NCUProfileRegionReport,
    RegionPerformance,
    RuleSummary,
    SignatureRecord,
    Verdict,
)
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.accounting import account_line
from llm_perf_opt.report.line_rows import known_words, launched_by, line_tables, measured_columns
from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.md_tables import stage_lines
from llm_perf_opt.report.stages import LIMITS, counted_use, evaluated, reached
from llm_perf_opt.report.text import NOT_MEASURED, full_label, percent
from llm_perf_opt.report.view import View

_FIXES = 10
_COMMAND = 1000  # a command that is cut cannot be typed
_SIGNATURES = 8
_LINES = 20
_MESSAGE = 600  # of one of ncu's rules


def verdict_words(verdict: Verdict) -> str:
    if not verdict.confidence:
        return verdict.title
    return f"{verdict.title} ({verdict.confidence} confidence)"


def verdict_table(view: View) -> list[str]:
    """The stages, and what holds each back."""
    found = evaluated(view.stages)
    if not found:
        return []
    lines = ["", "## Verdicts", "", *stage_lines(view), ""]
    for region, performance in found:
        lines += [f"- {code(full_label(region))} ({_confidence(performance.verdict)}): {_said(performance.verdict)}"]
        if performance.gpu_verdict.bound != performance.verdict.bound:
            lines.append(
                f"  While kernels run ({_confidence(performance.gpu_verdict)}): {_said(performance.gpu_verdict)}"
            )
        for verdict in dict.fromkeys(
            v.next_step for v in (performance.verdict, performance.gpu_verdict) if v.next_step
        ):
            lines.append(f"  → {code(verdict, _COMMAND)}")
    if told := account_line(view):
        lines += ["", plain(told)]
    return [*lines, "", denominators(found)]


def _confidence(verdict: Verdict) -> str:
    return f"{verdict.confidence} confidence" if verdict.confidence else "unknown"


def denominators(found: Sequence[tuple[NCUProfileRegion, RegionPerformance]]) -> str:
    """Against what MFU and bandwidth are given, and on which time."""
    peaks = {
        f"{kind.replace('_', ' ')} {shown(peak)} ({used.peak_basis})": None
        for _, performance in found
        for used in counted_use(performance)
        for kind, peak in used.peaks.items()
    }
    if not peaks:
        return "MFU and bandwidth need counters and known peaks of the GPU."
    return (
        f"Denominators: {', '.join(map(plain, peaks))}. MFU and bandwidth are over the time of the range (of the "
        "program alone where stage 1 timed it), *busy* over the time the GPU worked. Peaks are dense, without sparsity."
    )


def fix_lines(view: View) -> list[str]:
    """The fixes of the answer, what to do first on top."""
    fixes = view.answer.fixes
    if not fixes:
        return []
    lines = ["", "## What to fix first", ""]
    lines += [f"{number}. {plain(found.text)}" for number, found in enumerate(fixes[:_FIXES], 1)]
    lines += [
        "",
        "A gain is what would be saved if nothing waited and every kernel ran at its roof; the interval is what to expect.",
    ]
    hidden = len(fixes) - _FIXES
    return [*lines, f"{hidden} more are in `report.json`."] if hidden > 0 else lines


def speed_of_light_table(view: View) -> list[str]:
    if not any(performance.speed_of_light for _, performance in evaluated(view.stages)):
        return []
    note = (
        "At its roof a kernel takes the longest of FLOPs over peak and bytes over bandwidth; copies and kernels without "
        "counters count as measured."
    )
    return ["", "## Speed of light", "", *stage_lines(view, LIMITS), "", note]


def _by_stage(view: View, lines_of: Callable[[RegionPerformance], list[str]]) -> list[str]:
    """A part for each stage that has something to show."""
    parts = [(region, lines_of(performance)) for region, performance in evaluated(view.stages)]
    return [line for region, lines in parts if lines for line in (f"### {plain(full_label(region))}", "", *lines, "")]


def family_table(view: View) -> list[str]:
    lines = _by_stage(view, families)
    if not lines:
        return []
    unknown = view.report.unclassified_share
    note = [] if unknown is None else [f"Of all kernel time, {percent(unknown)} is in kernels of unknown kind."]
    return ["", "## Kinds of work", "", *lines, *note]


def families(performance: RegionPerformance) -> list[str]:
    head = ["kind", "calls", "time", "share", "at its roof", "recoverable"]
    rows = []
    for f in performance.families:
        amounts = [shown(f.time), percent(f.share), shown(f.time_at_roof), shown(f.recoverable)]
        rows.append([label_of(f.family), f"{f.calls:,}", *amounts])
    return table(head, rows, numbers=5) if rows else []


def signature_table(view: View) -> list[str]:
    lines = _by_stage(view, lambda performance: signatures(performance.signatures[:_SIGNATURES]))
    return ["", "## Kernels against the roofs", "", *lines] if lines else []


def signatures(records: Sequence[SignatureRecord]) -> list[str]:
    located = any(record.lines or record.operator for record in records)
    head = ["kernel", *(["launched by"] if located else []), "grid", "bound", "calls", "time", "FLOP/B", "FLOP/s"]
    head += ["DRAM", "of tensor", "of DRAM", "of L2", "recoverable"]
    rows = [
        [
            code(record.short_name),
            *([plain(launched_by(record))] if located else []),
            "×".join(map(str, record.grid)) or NOT_MEASURED,
            record.bound or NOT_MEASURED,
            f"{record.calls:,}",
            shown(record.time),
            shown(record.intensity).removesuffix(" FLOP/B"),
            shown(record.flop_rate),
            shown(record.dram_rate),
            *(percent(record.shares.get(roof)) for roof in ("tensor", "dram", "l2")),
            shown(record.recoverable),
        ]
        for record in records
    ]
    return table(head, rows, numbers=9) if rows else []


def line_table(view: View) -> list[str]:
    """Where in the program's source the time goes."""
    lines = []
    for region, performance, rows in line_tables(view, _LINES):
        head, numbers = measured_columns(rows)
        cells = [[code(row.where), plain(row.what), *values] for row, values in zip(rows, numbers, strict=True)]
        lines += [f"### {plain(full_label(region))}", "", *table(["line", "what it launches", *head], cells, len(head))]
        lines += ["", plain(known_words(performance)), ""]
    return ["", "## By line", "", *lines] if lines else []


def rule_lines(view: View) -> list[str]:
    """ncu's own rules, where it was asked to apply them."""
    lines = []
    for region, performance in evaluated(view.stages):
        for rule in performance.ncu_rules[:5]:
            gain = rule.weighted_speedup_percent
            promised = "" if gain is None else f", would speed it up by {gain:.1f} % in all"
            lines.append(
                f"- {code(full_label(region))} **{plain(rule.title)}**: {count_of(rule.kernels, 'kernel')}, "
                f"{percent(rule.share_of_gpu_time)} of the GPU time{promised}{_message(rule)}"
            )
    return ["", "## What ncu's rules say", "", *lines] if lines else []


def _message(rule: RuleSummary) -> str:
    return f": {plain(visible(rule.message, _MESSAGE))}" if rule.message else ""


def hardware_lines(report: NCUProfileRegionReport) -> list[str]:
    if not report.hardware:
        return []
    lines = ["", "## The GPU", ""]
    for gpu in report.hardware:
        lines.append(f"- {plain(gpu.name or 'unknown GPU')} (device {gpu.device}): {plain(hardware_words(gpu))}")
        lines += [f"  {plain(note)}" for note in gpu.notes]
    return lines


def hardware_words(gpu: GpuHardware) -> str:
    if gpu.basis == "unknown":
        return "its peaks are not known."
    main = {k: gpu.peaks[k] for k in ("tensor_bf16", "tensor_fp16", "tensor_fp8", "cuda_fp32") if k in gpu.peaks}
    parts = [f"{k.replace('_', ' ')} {shown(v)}" for k, v in main.items()]
    parts.append(f"memory {shown(gpu.bandwidth)}")
    if gpu.l2_bandwidth is not None:
        parts.append(f"L2 at most {shown(gpu.l2_bandwidth)}")
    words = f"{', '.join(parts)}; {gpu.source}."
    if gpu.calibration:
        measured = [f"{k.replace('_', ' ')} {shown(v)}" for k, v in gpu.calibrated_peaks.items()]
        words += f" Calibrated: {', '.join(measured)}, memory {shown(gpu.calibrated_bandwidth)}; {gpu.calibration}."
    return words


def region_performance(region: NCUProfileRegion) -> list[str]:
    """The part of a region's own report."""
    performance = region.performance
    if performance is None:
        return []
    lines = [
        "",
        "## Verdict",
        "",
        f"**{plain(verdict_words(performance.verdict))}**: {plain(performance.verdict.text)}",
    ]
    if performance.verdict.advice:
        lines += ["", plain(performance.verdict.advice)]
    if performance.gpu_verdict.bound != performance.verdict.bound:
        lines += [
            "",
            f"While kernels run **{plain(verdict_words(performance.gpu_verdict))}**: {plain(performance.gpu_verdict.text)}",
        ]
    for verdict in (performance.verdict, performance.gpu_verdict):
        lines += [f"- {plain(e.text)}" for e in verdict.evidence]
    lines += _work_lines(performance)
    if performance.opportunities:
        lines += ["", "## What could be won", ""]
        lines += [f"- **{shown(o.recoverable)}**: {plain(o.text)}" for o in performance.opportunities[:5]]
    if performance.families:
        lines += ["", "## Kinds of work", "", *families(performance)]
    if performance.signatures:
        lines += ["", "## Kernels against the roofs", "", *signatures(performance.signatures)]
    return lines


def _work_lines(performance: RegionPerformance) -> list[str]:
    work, rows = performance.work, []
    for kind, amount in {**work.tensor, **work.cuda_core}.items():
        if amount.value:
            rows.append([f"FLOPs, {kind.replace('_', ' ')}", shown(amount)])
    if work.formula is not None:
        ratio = "" if work.counted_over_formula is None else f" (counted: {work.counted_over_formula:.2f} times)"
        rows.append(["FLOPs by formula", f"{shown(work.formula)}{ratio}"])
    if work.torch_counter is not None:
        rows.append(["FLOPs by torch's counter, masks ignored", shown(work.torch_counter)])
    for title, value in (("DRAM read", work.dram_read), ("DRAM written", work.dram_written), ("L2", work.l2)):
        if value is not None:
            rows.append([title, shown(value)])
    if performance.intensity is not None:
        rows.append(["intensity", f"{shown(performance.intensity)} (the roof bends at {shown(performance.ridge)})"])
    for metric, title in (("mfu", "MFU"), ("mbu", "memory bandwidth used")):
        for basis in ("wall", "busy"):
            text = reached(performance, metric, basis)
            if text is not None:
                rows.append([f"{title}, {basis} time", text])
    lines = ["", "## Work", "", *table(["", "value"], rows, numbers=1)] if rows else []
    if work.formula_note:
        lines += ["", plain(work.formula_note)]
    return [*lines, *(f"- not known: {plain(text)}" for text in work.missing)]


def _said(verdict: Verdict) -> str:
    """A verdict with its advice, where there is some."""
    return " ".join(plain(text) for text in (verdict.text, verdict.advice) if text)
