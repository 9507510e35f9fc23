"""One region as plain values: times, instances, counters, kernels, lines and fixes.

`llm-perf show` prints it and `llm-perf mcp` serves it; the names are those of `report.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.model import KernelRecord, NCUProfileRegion, NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.regions.names import printable, visible
from llm_perf_opt.regions.ranking import evaluated_times, gpu_time
from llm_perf_opt.report.stages import counted_use
from llm_perf_opt.report.text import counter_title, interesting_metrics
from llm_perf_opt.spelling import nearest

_NAME = 200  # characters of a kernel's full name


def find_region(report: NCUProfileRegionReport, text: str) -> NCUProfileRegion:
    """The region that is meant: by its key, also as it is printed, or by its name where only one has it."""
    regions = report.main_scope.regions if report.main_scope else []
    named = [r for r in regions if text in (r.key, printable(r.key))]
    named = named or [r for r in regions if text in (r.name, r.key.rpartition("@")[2])]
    if len(named) == 1:
        return named[0]
    if named:
        keys = ", ".join(visible(region.key, 80) for region in named[:5])
        raise UserError(f"{len(named)} regions are called {text!r}.", f"Give the whole key, as in {keys}.")
    close = ", ".join(visible(key, 80) for key in nearest(text, (region.key for region in regions), 5))
    raise UserError(
        f"There is no region {text!r} in this report.",
        f"Did you mean one of {close}?" if close else "It has no regions at all.",
    )


def region_row(region: NCUProfileRegion) -> dict[str, Any]:
    """The region in a line."""
    known, timing = region.performance, region.timing
    wall, idle = evaluated_times(region)
    utilisation = {one.metric: one.value for one in reversed(counted_use(known))} if known else {}
    return {
        "key": region.key,
        "parent": region.parent,
        "instances": region.instances,
        "median_ns": timing.steady.median_ns if timing else None,
        "wall_ns": region.wall_ns,
        "steady_ns": None if wall is None else round(wall),
        "idle_share": round(idle / wall, 4) if wall and idle is not None else None,
        "gpu_busy_ns": region.gpu_busy_ns,
        "gpu_time_ns": gpu_time(region.inclusive),
        "kernel_count": region.inclusive.kernel_count,
        "verdict": known.verdict.bound if known else None,
        "confidence": known.verdict.confidence if known else None,
        "mfu": utilisation.get("mfu"),
        "mbu": utilisation.get("mbu"),
        "tokens_per_s": known.tokens.now.value if known and known.tokens else None,
    }


def kernel_rows(kernels: Sequence[KernelRecord], known: RegionPerformance | None) -> list[dict[str, Any]]:
    """Kernels with what launches them and what bounds them, as far as the recording says, most time first."""
    whole = sum(kernel.total_ms or 0.0 for kernel in kernels)
    sources = {source.kernel_name: source for source in known.sources} if known else {}
    bounds = {record.kernel_name: record.bound for record in reversed(known.signatures)} if known else {}
    rows = []
    for kernel in kernels:
        source = sources.get(kernel.kernel_name)
        rows.append(
            {
                "kernel": kernel.short_name or visible(kernel.kernel_name, _NAME),
                "family": kernel.family,
                "device": kernel.device,
                "calls": kernel.calls,
                "total_ms": kernel.total_ms,
                "mean_ms": kernel.mean_ms,
                "share": round(kernel.total_ms / whole, 4) if kernel.total_ms is not None and whole else None,
                "bound": bounds.get(kernel.kernel_name, ""),
                "operator": visible(source.operator, 120) if source and source.operator else "",
                "lines": [f"{line.file}:{line.line}" for line in source.lines[:3]] if source else [],
            }
        )
    return rows


def line_rows(known: RegionPerformance | None) -> list[dict[str, Any]]:
    """Lines of the program, most kernel time first."""
    return [
        {
            "file": line.file,
            "line": line.line,
            "function": line.function,
            "text": line.text,
            "calls": line.calls,
            "time_ns": line.time.value,
            "share": line.share,
            "idle_ns": line.idle.value if line.idle is not None else None,
            "kernels": line.kernels[:3],
            "operators": line.operators[:3],
        }
        for line in (known.lines if known else [])
    ]


def counter_rows(region: NCUProfileRegion) -> list[dict[str, Any]]:
    """Counters of a region, those to look at first before the others."""
    metrics = region.inclusive.metrics
    first = [name for name, _, _ in interesting_metrics(metrics)]
    names = [*first, *sorted(metrics.keys() - set(first))]
    fields = ("value", "unit", "rollup", "source", "samples", "coverage", "spread")
    return [
        {"counter": name, "title": counter_title(name)} | {field: getattr(metrics[name], field) for field in fields}
        for name in names
    ]


def region_detail(report: NCUProfileRegionReport, region: NCUProfileRegion) -> dict[str, Any]:
    """Everything about one region."""
    known, regions = region.performance, report.main_scope.regions if report.main_scope else []
    return {
        "region": region_row(region),
        "path": region.path,
        "domain": region.domain,
        "children": [other.key for other in regions if other.parent == region.key],
        "timing": attrs.asdict(region.timing) if region.timing else None,
        "verdict": attrs.asdict(known.verdict) if known else None,
        "gpu_verdict": attrs.asdict(known.gpu_verdict) if known else None,
        "time": attrs.asdict(known.time) if known else None,
        "work": attrs.asdict(known.work) if known else None,
        "idle": attrs.asdict(known.idle) if known and known.idle else None,
        "fixes": [attrs.asdict(fix) for fix in report.answer.fixes_of(region.key)],
        "kernels": kernel_rows(region.kernels, known),
        "kernels_omitted": region.kernels_omitted,
        "lines": line_rows(known),
        "counters": counter_rows(region),
    }
