"""Regions, kernels, counters, launches and ranges as flat tables: for data frames, CSV and Parquet.

A table is columns of equal length, units in their names. What was not measured is None.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.budget import in_rows
from llm_perf_opt.regions.columns import UNKNOWN, Timeline, Work
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.table import ROOT
from llm_perf_opt.report.files import begins_with, make_folder, replaced
from llm_perf_opt.report.region_table import PROGRAM_COLUMNS, all_rows
from llm_perf_opt.report.renderers import Exporter, ExportSource

Table = dict[str, Sequence[Any]]

KERNEL_COLUMNS = ("kernel_name", "short_name", "device", "calls", "total_ms", "mean_ms", "min_ms", "max_ms", "family")
METRIC_COLUMNS = ("value", "unit", "rollup", "source", "samples", "launches", "coverage", "spread")


def regions_table(report: NCUProfileRegionReport) -> Table:
    """One row per scope and region."""
    rows = list(all_rows(report))
    return {column.name: [column.value(row) for row in rows] for column in PROGRAM_COLUMNS}


def flat_table(labels: Sequence[str], rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> Table:
    """Rows of labels with a record at their end: a column for each label, and for each of these fields of the record."""
    table: Table = {label: [row[n] for row in rows] for n, label in enumerate(labels)}
    return table | {name: [getattr(row[-1], name) for row in rows] for name in columns}


def kernels_table(report: NCUProfileRegionReport) -> Table:
    """One row per scope, region, kernel and device; rows with no region count the whole scope."""
    found = [
        (scope.scope, region, kernel)
        for scope in report.scopes
        for region, kernels in [(None, scope.kernels), *((r.key, r.kernels) for r in scope.regions)]
        for kernel in kernels
    ]
    return flat_table(("scope", "region"), found, KERNEL_COLUMNS)


def metrics_table(report: NCUProfileRegionReport) -> Table:
    """One row per scope, region and counter, inclusive."""
    found = [
        (scope.scope, region.key, name, value)
        for scope in report.scopes
        for region in scope.regions
        for name, value in sorted(region.inclusive.metrics.items())
    ]
    return flat_table(("scope", "region", "metric"), found, METRIC_COLUMNS)


def measured_table(report: NCUProfileRegionReport) -> Table:
    """One row per kernel and launch configuration that ncu measured; a column per counter, of one launch."""
    rows = [("×".join(map(str, m.grid)), "×".join(map(str, m.block)), m) for m in report.measured]
    found = flat_table(("grid", "block"), rows, ("kernel_name", "short_name", "kind", "device", "results"))
    used = [name for name in report.counter_units if any(name in m.metrics for m in report.measured)]
    for name in used:
        unit = report.counter_units[name]
        found[f"{name} [{unit}]" if unit else name] = [m.metrics.get(name) for m in report.measured]
    return found


def launches_table(timeline: Timeline, attribution: Attribution) -> Table:
    """One row per piece of GPU work, in order of start."""
    kinds = (
        ("kernel", timeline.kernels, attribution.kernels),
        ("copy", timeline.copies, attribution.copies),
        ("graph", timeline.graphs, attribution.graphs),
    )
    start = np.concatenate([work.start for _, work, _ in kinds])
    order = np.argsort(start, kind="stable")

    def column(value: Callable[[Work], Any]) -> list[Any]:
        return [*np.concatenate([np.asarray(value(work)) for _, work, _ in kinds])[order].tolist()]

    def or_none(values: list[int]) -> list[int | None]:
        return [None if value == UNKNOWN else value for value in values]

    innermost = []
    for _, work, membership in kinds:
        found = np.full(len(work), ROOT, dtype=np.int64)
        for regions in membership.by_domain:
            found = np.where(found == ROOT, regions, found)
        innermost.append(found)
    regions = np.concatenate(innermost)[order]
    keys = in_rows(attribution.table.keys(), regions)
    named = np.concatenate([work.name for _, work, _ in kinds])[order]
    names, strings = named.tolist(), in_rows(timeline.strings, named)
    starts = column(lambda work: work.start)
    return {
        "kind": [kinds[number][0] for number in np.repeat([0, 1, 2], [len(w) for _, w, _ in kinds])[order].tolist()],
        "name": [strings[number] for number in names],
        "short_name": [short_kernel_name(strings[number]) for number in names],
        "start_ns": starts,
        "duration_ns": column(lambda work: work.end - work.start),
        "launched_ns": or_none(column(lambda work: work.host_time)),
        "process_id": [timeline.processes[number].pid for number in column(lambda work: work.process)],
        "device": column(lambda work: work.device),
        "stream": or_none(column(lambda work: np.full(len(work), UNKNOWN) if work.stream is None else work.stream)),
        "bytes": column(lambda w: np.zeros(len(w), dtype=np.int64) if w.bytes is None else w.bytes),
        "region": [None if n == ROOT else keys[n] for n in regions.tolist()],
    }


def ranges_table(timeline: Timeline, attribution: Attribution) -> Table:
    """One row per range instance, in order of start."""
    ranges = timeline.ranges
    order = np.lexsort((-ranges.end, ranges.start))
    keys = in_rows(attribution.table.keys(), attribution.range_region)
    strings, domains = in_rows(timeline.strings, ranges.recorded_name), in_rows(timeline.domains, ranges.domain)
    return {
        "region": [None if n == ROOT else keys[n] for n in attribution.range_region[order].tolist()],
        "name": [strings[number] for number in ranges.recorded_name[order].tolist()],
        "domain": [domains[number] for number in ranges.domain[order].tolist()],
        "start_ns": ranges.start[order].tolist(),
        "duration_ns": (ranges.end - ranges.start)[order].tolist(),
        "process_id": [timeline.processes[number].pid for number in ranges.process[order].tolist()],
        "thread": [None if number == UNKNOWN else number for number in ranges.thread[order].tolist()],
        "range_kind": [
            "recording" if number in attribution.table.whole else "start_end" if flag else "push_pop"
            for number, flag in zip(
                attribution.range_region[order].tolist(), ranges.start_end[order].tolist(), strict=True
            )
        ],
    }


def tables_of(source: ExportSource) -> dict[str, Table]:
    """All tables that can be made of what there is."""
    report = source.report()
    found = {"regions": regions_table(report), "kernels": kernels_table(report), "metrics": metrics_table(report)}
    if source.timeline is not None:
        found["launches"] = launches_table(source.timeline, source.attribution())
        found["ranges"] = ranges_table(source.timeline, source.attribution())
    return found


def _write_csv(source: ExportSource, folder: Path) -> list[Path]:
    from llm_perf_opt.report.csv_report import write_table

    make_folder(folder)
    written = []
    for name, table in tables_of(source).items():
        path = folder / f"{name}.csv"
        with replaced(path) as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)
            write_table(table, text)
            text.detach()
        written.append(path)
    return written


def table_files(folder: Path, ending: str) -> list[Path]:
    """Where tables may be written."""
    return [folder / f"{name}{ending}" for name in ("regions", "kernels", "metrics", "launches", "ranges")]


EXPORTER = Exporter(
    _write_csv,
    lambda folder: table_files(folder, ".csv"),
    lambda path: begins_with(path, b"scope,region,", b"kind,name,short_name,", b"region,name,domain,"),
)
