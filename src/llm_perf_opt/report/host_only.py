"""Reports of a run that used no GPU: what such a recording can say, and one sentence about what it cannot.

A model on a CPU, or a recording without CUDA: times of the ranges are all there is. Tables of kernels, idle time
and limits would be full of dashes, so they are left out rather than shown empty.
"""

from __future__ import annotations

from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.text import bar, counted, duration, full_label, heaviest, label, rows, share, weight

LEFT_OUT = (
    "No GPU work is in the recording, so this report leaves out kernels, idle time and what a GPU could do: "
    "times are those of the ranges on the host. On a machine with a GPU, llm-perf profile -- CMD tells the rest."
)
_OUTERMOST = 6
_PARTS = 4
_TABLE_REGIONS = 300


def is_host_only(report: NCUProfileRegionReport) -> bool:
    """Ranges with wall times, and neither GPU work nor counters anywhere."""
    scope = report.main_scope
    if scope is None or not scope.regions or scope.totals.gpu_time_ns is not None:
        return False
    return not any(r.inclusive.metrics for r in scope.regions) and any(r.wall_ns for r in scope.regions)


def mean_ns(region: NCUProfileRegion) -> float | None:
    """How long one instance takes."""
    return region.wall_ns / region.instances if region.wall_ns is not None and region.instances else None


def sentences(report: NCUProfileRegionReport) -> list[str]:
    """Where the time goes, and what is left out."""
    scope = report.main_scope
    regions = scope.regions if scope else []
    keys = {region.key for region in regions}
    outer = sorted((r for r in regions if r.parent not in keys), key=weight, reverse=True)
    told = [_sentence(region, regions) for region in outer[:_OUTERMOST]]
    if len(outer) > _OUTERMOST:
        told.append(f"{len(outer) - _OUTERMOST:,} more outermost regions are in the report.")
    return [*told, LEFT_OUT]


def _sentence(region: NCUProfileRegion, regions: list[NCUProfileRegion]) -> str:
    parts = sorted((r for r in regions if r.parent == region.key), key=weight, reverse=True)
    text = f"{full_label(region)} takes {duration(region.wall_ns)}{_each(region)}"
    if not parts:
        return f"{text}."
    told = [f"{label(r)} {duration(r.wall_ns)} ({share(r.wall_ns, region.wall_ns)}{_rate(r)})" for r in parts[:_PARTS]]
    more = f" and {counted(len(parts) - _PARTS, 'more region')}" if len(parts) > _PARTS else ""
    return f"{text}: {', '.join(told)}{more}."


def _each(region: NCUProfileRegion) -> str:
    if region.instances is None or region.instances < 2:
        return ""
    return f" in {counted(region.instances, 'instance')} of {duration(mean_ns(region))}"


def _rate(region: NCUProfileRegion) -> str:
    tokens = region.performance.tokens if region.performance else None
    return "" if tokens is None else f", {shown(tokens.now).removesuffix(' token/s')} tokens/s"


def region_cells(region: NCUProfileRegion, by_key: dict[str, NCUProfileRegion]) -> list[str]:
    """Instances, wall time, time of one instance, share of the region around it."""
    around = by_key.get(region.parent) if region.parent is not None else None
    return [
        "–" if region.instances is None else f"{region.instances:,}",
        duration(region.wall_ns),
        duration(mean_ns(region)),
        share(region.wall_ns, around.wall_ns if around is not None else None),
    ]


HEAD = ("inst.", "wall", "each", "of the region around")


def region_table(report: NCUProfileRegionReport) -> list[str]:
    """The regions as lines of Markdown."""
    scope = report.main_scope
    regions = scope.regions if scope else []
    by_key = {region.key: region for region in regions}
    listed = heaviest(regions, _TABLE_REGIONS)
    longest = max((r.wall_ns or 0 for r in regions), default=0)
    cells = [
        [
            "&nbsp;&nbsp;" * (2 * min(indent, 30)) + code(text),
            *region_cells(region, by_key),
            bar(region.wall_ns, longest, 10),
        ]
        for indent, text, region in rows(listed)
    ]
    lines = table(["region", *HEAD, ""], cells, numbers=5)
    hidden = len(regions) - len(listed)
    return [*lines, "", f"{hidden:,} more regions are in `report.json` and `regions.csv`."] if hidden > 0 else lines


def summary(report: NCUProfileRegionReport) -> list[str]:
    """The body of `stakeholder_summary.md`."""
    first, *_ = told = sentences(report)
    lines = [plain(first), "", plain(told[-1]), "", "## Stages", "", *region_table(report)]
    known = [d for d in report.diagnostics if d.severity in ("warning", "error")]
    if known:
        lines += ["", "## What is not known", ""]
        lines += [f"- {plain(d.message)}" + (f" → {plain(d.fix)}" if d.fix else "") for d in known]
    return lines
