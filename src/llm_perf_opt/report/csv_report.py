"""CSV: regions, kernels and counters as tables for spreadsheets and programs. Values unscaled, units in the header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.report.csv_cells import cell
from llm_perf_opt.report.renderers import File, Renderer
from llm_perf_opt.report.tables import KERNEL_COLUMNS, METRIC_COLUMNS, Table, flat_table, regions_table
from llm_perf_opt.report.view import View


def render(view: View) -> Iterator[File]:
    yield File("regions.csv", render_table(regions_table(view.report)))
    # All kernels of each scope, in regions or not.
    pairs = [(scope.scope, kernel) for scope in view.report.scopes for kernel in scope.kernels]
    yield File("kernels.csv", render_table(flat_table(("scope",), pairs, KERNEL_COLUMNS)))


def render_region(view: View, region: NCUProfileRegion) -> Iterator[File]:
    """The kernels of one region, and its counters, inclusive and exclusive."""
    yield File("kernels.csv", render_table(flat_table((), [(kernel,) for kernel in region.kernels], KERNEL_COLUMNS)))
    both = (("inclusive", region.inclusive.metrics), ("exclusive", region.exclusive.metrics))
    found = [(name, which, value) for which, metrics in both for name, value in sorted(metrics.items())]
    yield File("metrics.csv", render_table(flat_table(("metric", "which"), found, METRIC_COLUMNS)))


def render_table(table: Table) -> str:
    out = io.StringIO()
    write_table(table, out)
    return out.getvalue()


def write_table(table: Table, out: io.TextIOBase) -> None:
    """A table as CSV; no cell is a formula to a spreadsheet."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(map(cell, values) for values in table.values()), strict=True))


RENDERER = Renderer(
    "`regions.csv`, `kernels.csv`: tables; `kernels.csv`, `metrics.csv` of each region", render, render_region
)
