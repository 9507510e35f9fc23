"""`stakeholder_summary.md`: one page for people who decide. Every sentence is made from this run's numbers."""

from __future__ import annotations

from llm_perf_opt.metrics.families import label_of
from llm_perf_opt.metrics.quantity import Quantity, shown, total
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.md_tables import answer_lines, diagnosis_words, region_lines, stage_lines
from llm_perf_opt.report.performance_md import denominators, verdict_words
from llm_perf_opt.report.stages import evaluated
from llm_perf_opt.report.text import NOT_MEASURED, full_label, percent
from llm_perf_opt.report.view import View
from llm_perf_opt.version import __version__

_KERNELS = 6
_RECOMMENDATIONS = 5
_KINDS = 6
Stage = tuple[NCUProfileRegion, RegionPerformance]


def render_stakeholder(view: View) -> str:
    report, found = view.report, evaluated(view.stages)
    lines = ["# Performance summary", "", _environment(view), ""]
    if view.host_only:
        lines += [*answer_lines(view), "", "## Stages", "", *region_lines(view)]
        return "\n".join([*lines, *_not_known(report, [])]) + "\n"
    if not found:
        return "\n".join([*lines, "No stage could be evaluated.", "", *answer_lines(view), ""])
    lines += [*answer_lines(view), "", _headline(found), "", "## Stages", "", *stage_lines(view, brief=True), ""]
    lines += [denominators(found), ""]
    lines += ["## What holds them back", "", *_verdicts(found)]
    lines += _recommendations(view)
    lines += ["", "## Where the GPU's time goes", "", *_kinds(found), "", *_kernels(found)]
    lines += _not_known(report, found)
    return "\n".join(lines) + "\n"


def _environment(view: View) -> str:
    report = view.report
    gpus = {g.name for g in report.hardware if g.name} or set(report.environment.get("gpus", {}).values())
    facts = report.environment.get("recordings", [])
    drivers = sorted({str(f["driver"]) for f in facts if f.get("driver")})
    tools = sorted({" ".join(str(f.get(k, "")) for k in ("tool", "tool_version")).strip() for f in facts} - {""})
    parts = [", ".join(map(plain, sorted(gpus))) or ("no GPU" if view.host_only else "unknown GPU")]
    parts += [f"driver {plain(d)}" for d in drivers]
    parts += [plain(t) for t in tools]
    parts.append(f"inputs {', '.join(code(str(i.get('path', ''))) for i in report.inputs)}")
    return f"{' · '.join(parts)} · {report.generated_at[:10]} · llm-perf {__version__}"


def _headline(found: list[Stage]) -> str:
    """How much of the time of all stages could be won back."""
    lights = [(region, performance.speed_of_light) for region, performance in found if performance.speed_of_light]
    if not lights:
        if any(region.wall_ns is not None for region, _ in found):
            return "The recording has no GPU work of the stages, so it is not known what could be gained on the GPU."
        return "There is no timeline, so it is not known how long the stages take."
    now = total([light.now for _, light in lights], "ns")
    waiting = total([light.waiting for _, light in lights if light.waiting is not None], "ns")
    above = total([light.above_roof for _, light in lights], "ns")
    share = "" if not now.value else f" ({shown(waiting / now)})"
    text = f"The stages take {shown(now)}."
    if any(light.waiting is not None for _, light in lights):
        text += f" For {shown(waiting)}{share} of it the GPU waits."
    if any(light.analysed_share > 0.5 for _, light in lights):
        limit = now - waiting - above
        text += (
            f" Kernels run {shown(above)} longer than the hardware needs; at the limit of the GPU the same work takes "
            f"{shown(limit)}, {_times(now, limit)} faster."
        )
    return text


def _times(now: Quantity, limit: Quantity) -> str:
    return f"{(now / limit).of('ratio'):.1f} times" if limit.value > 0 else "many times"


def _verdicts(found: list[Stage]) -> list[str]:
    lines = []
    for region, performance in found:
        lines.append(
            f"- {code(full_label(region))} is **{plain(verdict_words(performance.verdict))}**. {plain(performance.verdict.text)}"
        )
        if performance.gpu_verdict.bound not in (performance.verdict.bound, "unknown"):
            lines.append(
                f"  Its kernels are {plain(performance.gpu_verdict.title)}. {plain(performance.gpu_verdict.text)}"
            )
    return lines


def _recommendations(view: View) -> list[str]:
    fixes = view.answer.fixes[:_RECOMMENDATIONS]
    lines = [f"{number}. {plain(found.text)}" for number, found in enumerate(fixes, 1)]
    return ["", "## Recommendations", "", *lines] if lines else []


def _kinds(found: list[Stage]) -> list[str]:
    """Share of the GPU's time by kind of work, one column a stage."""
    names: dict[str, float] = {}
    for _, performance in found:
        for family in performance.families:
            names[family.family] = names.get(family.family, 0.0) + family.time.of("ns")
    chosen = sorted(names, key=lambda n: -names[n])[:_KINDS]
    rows = []
    for name in chosen:
        cells = [label_of(name)]
        for _, performance in found:
            own = next((f for f in performance.families if f.family == name), None)
            cells.append(NOT_MEASURED if own is None else f"{shown(own.time)} ({percent(own.share)})")
        rows.append(cells)
    return table(["kind of work", *(code(full_label(region)) for region, _ in found)], rows, numbers=len(found))


def _kernels(found: list[Stage]) -> list[str]:
    """The longest kernels of all stages."""
    kernels = [(region, performance, k) for region, performance in found for k in region.kernels[:_KERNELS]]
    rows = []
    for region, performance, kernel in sorted(kernels, key=lambda row: -(row[2].total_ms or 0.0))[:_KERNELS]:
        signature = next((s for s in performance.signatures if s.kernel_name == kernel.kernel_name), None)
        part = signature.time_at_roof if signature and signature.time.value else None
        rows.append(
            [
                code(kernel.short_name or kernel.kernel_name),
                code(full_label(region)),
                label_of(kernel.family) if kernel.family else NOT_MEASURED,
                f"{kernel.calls:,}",
                NOT_MEASURED if kernel.total_ms is None else shown(Quantity(kernel.total_ms * 1e6, "ns")),
                percent((part / signature.time).of("ratio") if part is not None and signature else None),
            ]
        )
    return table(["kernel", "stage", "kind", "calls", "time", "of its roof"], rows, numbers=3) if rows else []


def _not_known(report: NCUProfileRegionReport, found: list[Stage]) -> list[str]:
    """What was not measured, and the command that would tell."""
    told: dict[str, None] = {}
    for region, performance in found:
        for verdict in (performance.verdict, performance.gpu_verdict):
            if verdict.bound == "unknown":
                told[f"- {code(full_label(region))}: {plain(verdict.text)} Run: {code(verdict.next_step, 1000)}"] = None
    for diagnosis in report.diagnostics:
        if diagnosis.severity in ("warning", "error"):
            told[f"- {diagnosis_words(diagnosis)}"] = None
    return ["", "## What is not known", "", *told] if told else []
