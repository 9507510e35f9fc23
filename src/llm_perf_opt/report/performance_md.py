"""Verdicts, speed of light, families and opportunities in Markdown: parts of `report.md` and of region reports."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.metrics.families import label_of
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.metrics.quantity import Quantity, shown
from llm_perf_opt.regions.model import (
    NCUProfileRegion,
    NCUProfileRegionReport,
    RegionPerformance,
    SignatureRecord,
    Utilisation,
    Verdict,
)
from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.text import NOT_MEASURED, full_label

_OPPORTUNITIES = 10
_COMMAND = 1000  # a command that is cut cannot be typed
_SIGNATURES = 8
_STAGES = 12


def stage_regions(report: NCUProfileRegionReport) -> list[tuple[NCUProfileRegion, RegionPerformance]]:
    """The stages that were judged, in the order of the recording."""
    scope = report.main_scope
    regions = {r.key: r for r in scope.regions} if scope else {}
    found = [(regions[k], regions[k].performance) for k in report.stages if k in regions]
    return [(region, judged) for region, judged in found if judged is not None][:_STAGES]


def percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{100 * value:.1f} %"


def reached(performance: RegionPerformance, metric: str, time_basis: str) -> str:
    """`31.1 %`, and of the calibrated peak where there is one: `31.1 % (38.0 % cal.)`."""
    found = {u.peak_basis: u for u in performance.utilisation if u.metric == metric and u.time_basis == time_basis}
    calibrated = found.pop("calibrated", None)
    printed = next(iter(found.values()), None)
    text = percent(printed.value if printed else None)
    return f"{text} ({percent(calibrated.value)} cal.)" if calibrated else text


def verdict_words(verdict: Verdict) -> str:
    if not verdict.confidence:
        return verdict.title
    return f"{verdict.title} ({verdict.confidence} confidence)"


def verdict_table(report: NCUProfileRegionReport) -> list[str]:
    """What holds each stage back."""
    found = stage_regions(report)
    if not found:
        return []
    head = ["stage", "verdict", "its kernels", "MFU wall", "MFU busy", "bandwidth wall", "bandwidth busy"]
    rows = [
        [
            code(full_label(region)),
            plain(verdict_words(judged.verdict)),
            plain(verdict_words(judged.gpu_verdict)),
            *(reached(judged, metric, basis) for metric in ("mfu", "mbu") for basis in ("wall", "busy")),
        ]
        for region, judged in found
    ]
    lines = ["", "## Verdicts", "", *table(head, rows, numbers=4), ""]
    for region, judged in found:
        lines += [f"- {code(full_label(region))}: {_said(judged.verdict)}"]
        if judged.gpu_verdict.bound != judged.verdict.bound:
            lines.append(f"  While kernels run: {_said(judged.gpu_verdict)}")
        for verdict in dict.fromkeys(v.next_step for v in (judged.verdict, judged.gpu_verdict) if v.next_step):
            lines.append(f"  → {code(verdict, _COMMAND)}")
    lines += ["", _denominators(report, found)]
    return lines


def _denominators(report: NCUProfileRegionReport, found: Sequence[tuple[NCUProfileRegion, RegionPerformance]]) -> str:
    peaks: dict[str, Utilisation] = {}
    for _, judged in found:
        for used in judged.utilisation:
            for kind in used.peaks:
                peaks.setdefault(f"{used.peak_basis}:{kind}", used)
    if not peaks:
        return "MFU and bandwidth need counters and known peaks of the GPU."
    told = [
        f"{kind.split(':')[1].replace('_', ' ')} {shown(used.peaks[kind.split(':')[1]])} ({used.peak_basis})"
        for kind, used in peaks.items()
    ]
    return (
        f"Denominators: {', '.join(plain(t) for t in told)}. *Wall* is the time of the range (of the program alone where stage 1 timed it), *busy* the time the GPU worked. "
        "Peaks are dense, without sparsity."
    )


def opportunity_lines(report: NCUProfileRegionReport, count: int = _OPPORTUNITIES) -> list[str]:
    if not report.opportunities:
        return []
    lines = ["", "## What to fix first", ""]
    for number, found in enumerate(report.opportunities[:count], 1):
        kernels = f" ({', '.join(map(code, found.kernels))})" if found.kernels else ""
        lines.append(f"{number}. **{shown(found.recoverable)}**: {plain(found.text)}{kernels}")
    hidden = len(report.opportunities) - count
    lines += ["", "Times are upper limits: what would be saved if nothing waited and every kernel ran at its roof."]
    return [*lines, f"{hidden} more are in `report.json`."] if hidden > 0 else lines


def speed_of_light_table(report: NCUProfileRegionReport) -> list[str]:
    found = [(r, p, p.speed_of_light) for r, p in stage_regions(report) if p.speed_of_light]
    if not found:
        return []
    head = [
        "stage",
        "now",
        "= at the roofs",
        "+ kernels above",
        "+ waiting",
        "+ other work",
        "kernels known",
        "tokens/s now",
        "without waiting",
        "at the limit",
    ]
    rows = []
    for region, judged, light in found:
        tokens = judged.tokens
        rates = (tokens.now, tokens.gpu_only, tokens.limit) if tokens else (None, None, None)
        rows.append(
            [
                code(full_label(region)),
                *(shown(part) for part in (light.now, light.limit, light.above_roof, light.waiting, light.other_work)),
                percent(light.analysed_share),
                *(shown(rate).removesuffix(" token/s") for rate in rates),
            ]
        )
    note = (
        "At its roof a kernel takes the longest of FLOPs over peak and bytes over bandwidth; copies and kernels without "
        "counters count as measured."
    )
    return ["", "## Speed of light", "", *table(head, rows, numbers=9), "", note]


def family_table(report: NCUProfileRegionReport) -> list[str]:
    lines: list[str] = []
    for region, judged in stage_regions(report):
        if judged.families:
            lines += [f"### {plain(full_label(region))}", "", *families(judged), ""]
    if not lines:
        return []
    unknown = report.unclassified_share
    note = [] if unknown is None else [f"Of all kernel time, {percent(unknown)} is in kernels of no known kind."]
    return ["", "## Kinds of work", "", *lines, *note]


def families(judged: RegionPerformance) -> list[str]:
    head = ["kind", "calls", "time", "share", "at its roof", "recoverable"]
    rows = [
        [
            label_of(f.family),
            f"{f.calls:,}",
            shown(f.time),
            percent(f.share),
            shown(f.time_at_roof),
            shown(f.recoverable),
        ]
        for f in judged.families
    ]
    return table(head, rows, numbers=5)


def signature_table(report: NCUProfileRegionReport) -> list[str]:
    lines: list[str] = []
    for region, judged in stage_regions(report):
        if judged.signatures:
            lines += [f"### {plain(full_label(region))}", "", *signatures(judged.signatures[:_SIGNATURES]), ""]
    return ["", "## Kernels against the roofs", "", *lines] if lines else []


def signatures(records: Sequence[SignatureRecord]) -> list[str]:
    head = [
        "kernel",
        "grid",
        "bound",
        "calls",
        "time",
        "FLOP/B",
        "FLOP/s",
        "DRAM",
        "of tensor",
        "of DRAM",
        "of L2",
        "recoverable",
    ]
    rows = []
    for record in records:
        rows.append(
            [
                code(record.short_name),
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
        )
    return table(head, rows, numbers=9)


def rule_lines(report: NCUProfileRegionReport) -> list[str]:
    """ncu's own rules, where it was asked to apply them."""
    lines = []
    for region, judged in stage_regions(report):
        for rule in judged.ncu_rules[:5]:
            promised = (
                ""
                if rule.weighted_speedup_percent is None
                else f", would speed it up by {rule.weighted_speedup_percent:.1f} % in all"
            )
            lines.append(
                f"- {code(full_label(region))} **{plain(rule.title)}**: {rule.kernels} kernels, "
                f"{percent(rule.share_of_gpu_time)} of the GPU time{promised}"
            )
    return ["", "## What ncu's rules say", "", *lines] if lines else []


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
    judged = region.performance
    if judged is None:
        return []
    lines = ["", "## Verdict", "", f"**{plain(verdict_words(judged.verdict))}**: {plain(judged.verdict.text)}"]
    if judged.verdict.advice:
        lines += ["", plain(judged.verdict.advice)]
    if judged.gpu_verdict.bound != judged.verdict.bound:
        lines += [
            "",
            f"While kernels run **{plain(verdict_words(judged.gpu_verdict))}**: {plain(judged.gpu_verdict.text)}",
        ]
    for verdict in (judged.verdict, judged.gpu_verdict):
        lines += [f"- {plain(e.text)}" for e in verdict.evidence] if verdict.evidence else []
    lines += _work_lines(judged)
    if judged.opportunities:
        lines += ["", "## What could be won", ""]
        lines += [f"- **{shown(o.recoverable)}**: {plain(o.text)}" for o in judged.opportunities[:5]]
    if judged.families:
        lines += ["", "## Kinds of work", "", *families(judged)]
    if judged.signatures:
        lines += ["", "## Kernels against the roofs", "", *signatures(judged.signatures)]
    return lines


def _work_lines(judged: RegionPerformance) -> list[str]:
    work, rows = judged.work, []
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
    if judged.intensity is not None:
        rows.append(["intensity", f"{shown(judged.intensity)} (the roof bends at {shown(judged.ridge)})"])
    for metric, title in (("mfu", "MFU"), ("mbu", "memory bandwidth used")):
        for basis in ("wall", "busy"):
            text = reached(judged, metric, basis)
            if text != NOT_MEASURED:
                rows.append([f"{title}, {basis} time", text])
    lines = ["", "## Work", "", *table(["", "value"], rows, numbers=1)] if rows else []
    if work.formula_note:
        lines += ["", plain(work.formula_note)]
    return [*lines, *(f"- not known: {plain(text)}" for text in work.missing)]


def gpu_share(judged: RegionPerformance) -> Quantity | None:
    """Part of the wall time in which the GPU worked."""
    if judged.time.wall is None or judged.time.idle is None or not judged.time.wall.value:
        return None
    return Quantity(1 - (judged.time.idle / judged.time.wall).of("ratio"), "ratio")


def _said(verdict: Verdict) -> str:
    """A verdict with its advice, where there is some."""
    return " ".join(plain(text) for text in (verdict.text, verdict.advice) if text)
