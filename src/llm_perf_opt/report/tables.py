"""Regions, kernels, counters, launches and ranges as flat tables: for data frames, CSV and Parquet.

A table is columns of equal length, units in their names. What was not measured is None.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.errors import MissingTool
from llm_perf_opt.metrics.quantity import Quantity, Unit
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Timeline, Work
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionPerformance
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.table import ROOT
from llm_perf_opt.report.csv_cells import cell
from llm_perf_opt.report.files import make_folder, replaced
from llm_perf_opt.report.text import gpu_time

Table = dict[str, Sequence[Any]]

_Region = Callable[[NCUProfileRegion], Any]


def _in(amount: Quantity | None, unit: Unit) -> float | None:
    return None if amount is None else amount.of(unit)


def _judged(value: Callable[[RegionPerformance], Any]) -> _Region:
    return lambda region: None if region.performance is None else value(region.performance)


def _used(metric: str, time_basis: str) -> _Region:
    """A utilisation against the peak of the data sheet (or the computed one)."""

    def value(performance: RegionPerformance) -> float | None:
        for u in performance.utilisation:
            if (u.metric, u.time_basis) == (metric, time_basis) and u.peak_basis != "calibrated":
                return u.value
        return None

    return _judged(value)


_REGION_COLUMNS: dict[str, _Region] = {
    "region": lambda r: r.key,
    "name": lambda r: r.name,
    "domain": lambda r: r.domain,
    "parent": lambda r: r.parent,
    "depth": lambda r: r.depth,
    "range_kind": lambda r: r.range_kind,
    "instances": lambda r: r.instances,
    "wall_ns": lambda r: r.wall_ns,
    "gpu_busy_ns": lambda r: r.gpu_busy_ns,
    "gpu_idle_ns": lambda r: r.gpu_idle_ns,
    "gpu_time_ns": lambda r: gpu_time(r.inclusive),
    "own_gpu_time_ns": lambda r: gpu_time(r.exclusive),
    "kernels": lambda r: r.inclusive.kernel_count,
    "own_kernels": lambda r: r.exclusive.kernel_count,
    "copies": lambda r: r.inclusive.memory.count,
    "copy_time_ns": lambda r: r.inclusive.memory.time_ns,
    "copied_bytes": lambda r: r.inclusive.memory.bytes,
    "graph_launches": lambda r: r.inclusive.graph_launches,
    "adopted_kernels": lambda r: r.adopted_kernels,
    "graph_kernels": lambda r: r.graph_kernels,
    "verdict": _judged(lambda p: p.verdict.title),
    "confidence": _judged(lambda p: p.verdict.confidence),
    "flops": _judged(lambda p: _in(p.work.flops, "FLOP")),
    "dram_bytes": _judged(lambda p: _in(p.work.dram, "B")),
    "intensity_flop_per_byte": _judged(lambda p: _in(p.intensity, "FLOP/B")),
    "mfu_wall": _used("mfu", "wall"),
    "mfu_busy": _used("mfu", "busy"),
    "mbu_wall": _used("mbu", "wall"),
    "mbu_busy": _used("mbu", "busy"),
    "speed_of_light_ns": _judged(lambda p: _in(p.speed_of_light.limit, "ns") if p.speed_of_light else None),
    "time_source": lambda r: r.time_source,
    "nvtx_include": lambda r: r.nvtx_include,
}


def regions_table(report: NCUProfileRegionReport) -> Table:
    """One row per scope and region."""
    pairs = [(scope.scope, region) for scope in report.scopes for region in scope.regions]
    table: Table = {"scope": [scope for scope, _ in pairs]}
    return table | {name: [value(region) for _, region in pairs] for name, value in _REGION_COLUMNS.items()}


def kernels_table(report: NCUProfileRegionReport) -> Table:
    """One row per scope, region, kernel and device; rows with no region count the whole scope."""
    found = [
        (scope.scope, region, kernel)
        for scope in report.scopes
        for region, kernels in [(None, scope.kernels), *((r.key, r.kernels) for r in scope.regions)]
        for kernel in kernels
    ]
    table: Table = {"scope": [scope for scope, _, _ in found], "region": [region for _, region, _ in found]}
    names = ("kernel_name", "short_name", "family", "device", "calls", "total_ms", "mean_ms", "min_ms", "max_ms")
    return table | {name: [getattr(kernel, name) for _, _, kernel in found] for name in names}


def metrics_table(report: NCUProfileRegionReport) -> Table:
    """One row per scope, region and counter, inclusive."""
    found = [
        (scope.scope, region.key, name, value)
        for scope in report.scopes
        for region in scope.regions
        for name, value in sorted(region.inclusive.metrics.items())
    ]
    table: Table = {
        "scope": [row[0] for row in found],
        "region": [row[1] for row in found],
        "metric": [row[2] for row in found],
    }
    names = ("value", "unit", "rollup", "source", "samples", "launches", "coverage", "spread")
    return table | {name: [getattr(row[3], name) for row in found] for name in names}


def launches_table(timeline: Timeline, attribution: Attribution) -> Table:
    """One row per piece of GPU work, in order of start."""
    kinds = (
        ("kernel", timeline.kernels, attribution.kernels),
        ("copy", timeline.copies, attribution.copies),
        ("graph", timeline.graphs, attribution.graphs),
    )
    start = np.concatenate([work.start for _, work, _ in kinds])
    order = np.argsort(start, kind="stable")
    keys = [attribution.table.key(number) for number in range(len(attribution.table))]

    def column(value: Callable[[Work], Any]) -> list[Any]:
        return [*np.concatenate([np.asarray(value(work)) for _, work, _ in kinds])[order].tolist()]

    def or_none(values: list[int]) -> list[int | None]:
        return [None if value == UNKNOWN else value for value in values]

    def no_stream(work: Work) -> Int32s:
        return np.full(len(work), UNKNOWN, dtype=np.int32)

    innermost = []
    for _, work, membership in kinds:
        found = np.full(len(work), ROOT, dtype=np.int64)
        for regions in membership.by_domain:
            found = np.where(found == ROOT, regions, found)
        innermost.append(found)
    names = column(lambda work: work.name)
    starts = column(lambda work: work.start)
    return {
        "kind": [kinds[number][0] for number in np.repeat([0, 1, 2], [len(w) for _, w, _ in kinds])[order].tolist()],
        "name": [timeline.strings[number] for number in names],
        "short_name": [short_kernel_name(timeline.strings[number]) for number in names],
        "start_ns": starts,
        "duration_ns": column(lambda work: work.end - work.start),
        "launched_ns": or_none(column(lambda work: work.host_time)),
        "process_id": [timeline.processes[number].pid for number in column(lambda work: work.process)],
        "device": column(lambda work: work.device),
        "stream": or_none(column(lambda work: work.stream if work.stream is not None else no_stream(work))),
        "bytes": column(lambda w: w.bytes if w.bytes is not None else np.zeros(len(w), dtype=np.int64)),
        "region": [None if n == ROOT else keys[n] for n in np.concatenate(innermost)[order].tolist()],
    }


def ranges_table(timeline: Timeline, attribution: Attribution) -> Table:
    """One row per range instance, in order of start."""
    ranges = timeline.ranges
    order = np.lexsort((-ranges.end, ranges.start))
    keys = [attribution.table.key(number) for number in range(len(attribution.table))]
    return {
        "region": [None if n == ROOT else keys[n] for n in attribution.range_region[order].tolist()],
        "name": [timeline.strings[number] for number in ranges.name[order].tolist()],
        "domain": [timeline.domains[number] for number in ranges.domain[order].tolist()],
        "start_ns": ranges.start[order].tolist(),
        "duration_ns": (ranges.end - ranges.start)[order].tolist(),
        "process_id": [timeline.processes[number].pid for number in ranges.process[order].tolist()],
        "thread": [None if number == UNKNOWN else number for number in ranges.thread[order].tolist()],
        "range_kind": ["start_end" if flag else "push_pop" for flag in ranges.start_end[order].tolist()],
    }


# -- files -----------------------------------------------------------------------------------------


def write_csv(tables: dict[str, Table], folder: Path) -> list[Path]:
    make_folder(folder)
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        with replaced(path) as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(table)
            writer.writerows(zip(*(map(cell, values) for values in table.values()), strict=True))
            text.detach()
        written.append(path)
    return written


def write_parquet(tables: dict[str, Table], folder: Path) -> list[Path]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingTool(
            "Parquet needs pyarrow, which is not installed here.", "pip install pyarrow, or use --csv DIR."
        ) from error
    make_folder(folder)
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.parquet"
        arrays = {column: _arrow_values(values) for column, values in table.items()}
        with replaced(path) as raw:
            pyarrow.parquet.write_table(pyarrow.table(arrays), raw, compression="zstd")
        written.append(path)
    return written


def _arrow_values(values: Sequence[Any]) -> Sequence[Any]:
    """UTF-8 has no form for half of a surrogate pair: it is kept as an escape."""
    if not any(isinstance(value, str) for value in values):
        return values
    return [v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values]
