"""CSV: regions, kernels and counters as tables for spreadsheets and programs. Values unscaled, units in the header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from llm_perf_opt.regions.model import (
    KernelRecord,
    MetricValue,
    NCUProfileRegion,
    NCUProfileRegionReport,
    RegionPerformance,
)
from llm_perf_opt.report.csv_cells import cell

_KERNEL_COLUMNS = ("kernel_name", "short_name", "device", "calls", "total_ms", "mean_ms", "min_ms", "max_ms", "family")


def render_regions(report: NCUProfileRegionReport) -> str:
    """One row per scope and region."""
    header = [
        "scope",
        "domain",
        "path",
        "name",
        "range_kind",
        "depth",
        "instances",
        "wall_ns",
        "gpu_busy_ns",
        "gpu_idle_ns",
        "kernel_count",
        "gpu_time_ns",
        "exclusive_kernel_count",
        "exclusive_gpu_time_ns",
        "memory_count",
        "memory_time_ns",
        "memory_bytes",
        "graph_launches",
        "graph_time_ns",
        "adopted_kernels",
        "graph_kernels",
        "time_source",
        "nvtx_include",
        "verdict",
        "kernel_verdict",
        "mfu_wall",
        "mfu_busy",
        "mbu_wall",
        "mbu_busy",
    ]

    def row(scope: str, r: NCUProfileRegion) -> Sequence[object]:
        return (
            scope, r.domain, r.key, r.name, r.range_kind, r.depth, r.instances, r.wall_ns, r.gpu_busy_ns, r.gpu_idle_ns,
            r.inclusive.kernel_count, r.inclusive.gpu_time_ns, r.exclusive.kernel_count, r.exclusive.gpu_time_ns,
            r.inclusive.memory.count, r.inclusive.memory.time_ns, r.inclusive.memory.bytes,
            r.inclusive.graph_launches, r.inclusive.graph_time_ns,
            r.adopted_kernels, r.graph_kernels, r.time_source, r.nvtx_include, *_judgement(r.performance),
        )  # fmt: skip

    return _table(header, (row(s.scope, r) for s in report.scopes for r in s.regions))


def _judgement(judged: RegionPerformance | None) -> Sequence[object]:
    """Verdicts and utilisation against the printed peaks; empty where the region was not judged."""
    if judged is None:
        return [None] * 6
    used = {(u.metric, u.time_basis): u.value for u in judged.utilisation if u.peak_basis != "calibrated"}
    shares = [used.get((metric, basis)) for metric in ("mfu", "mbu") for basis in ("wall", "busy")]
    return [judged.verdict.bound, judged.gpu_verdict.bound, *shares]


def render_kernels(report: NCUProfileRegionReport) -> str:
    """One row per scope, kernel and device: all kernels, in regions or not."""
    rows = ((s.scope, *_kernel_row(k)) for s in report.scopes for k in s.kernels)
    return _table(("scope", *_KERNEL_COLUMNS), rows)


def render_region_kernels(region: NCUProfileRegion) -> str:
    return _table(_KERNEL_COLUMNS, map(_kernel_row, region.kernels))


def render_region_metrics(region: NCUProfileRegion) -> str:
    """Inclusive and exclusive counters of one region."""
    header = (
        "metric",
        "which",
        "value",
        "unit",
        "rollup",
        "source",
        "samples",
        "launches",
        "coverage",
        "spread",
    )

    def rows(which: str, metrics: dict[str, MetricValue]) -> Iterable[Sequence[object]]:
        for name, v in sorted(metrics.items()):
            yield (
                name,
                which,
                v.value,
                v.unit,
                v.rollup,
                v.source,
                v.samples,
                v.launches,
                v.coverage,
                v.spread,
            )

    both = (("inclusive", region.inclusive.metrics), ("exclusive", region.exclusive.metrics))
    return _table(header, (row for which, metrics in both for row in rows(which, metrics)))


def _kernel_row(kernel: KernelRecord) -> Sequence[object]:
    return [getattr(kernel, column) for column in _KERNEL_COLUMNS]


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(cell, row) for row in rows)
    return out.getvalue()
