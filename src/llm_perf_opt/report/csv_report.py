"""CSV: regions, kernels and counters as tables for spreadsheets and programs. Values unscaled, units in the header."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.names import printable
from llm_perf_opt.report.renderers import File, Renderer
from llm_perf_opt.report.tables import KERNEL_COLUMNS, METRIC_COLUMNS, Table, flat_table, measured_table, regions_table
from llm_perf_opt.report.view import View

_PLAIN = re.compile(r"((?:\t|\r?\n)+)")
# The full-width forms count as well in some languages' spreadsheets.
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


def render(view: View) -> Iterator[File]:
    yield File("regions.csv", render_table(regions_table(view.report)))
    # All kernels of each scope, in regions or not.
    pairs = [(scope.scope, kernel) for scope in view.report.scopes for kernel in scope.kernels]
    yield File("kernels.csv", render_table(flat_table(("scope",), pairs, KERNEL_COLUMNS)))
    if view.report.measured:
        yield File("kernels.counters.csv", render_table(measured_table(view.report)))


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
    writer.writerow(map(cell, table))
    writer.writerows(zip(*(map(cell, values) for values in table.values()), strict=True))


def cell(value: Any) -> Any:
    r"""A value that no spreadsheet takes for a formula, and no terminal for an order.

    A text that begins like a formula is one there, and names come from anybody: `=HYPERLINK(…)` as a range would send
    what stands beside it away at a click. Such a text gets an apostrophe in front, which spreadsheets take as the sign
    for text. People also look at such files in a terminal, where an escape sequence would act, and some readers stop at a
    zero byte: control characters are written as in `\x1b`, but for the ends of lines and tabs. A carriage return by itself is
    none: Python does not quote it, and a spreadsheet would begin a row there, with a formula perhaps. The name as it was recorded is
    in `report.json`. Numbers are left alone.
    """
    if not isinstance(value, str) or not value:
        return value
    if not value.isprintable():  # a quick look
        value = "".join(part if _PLAIN.fullmatch(part) else printable(part) for part in _PLAIN.split(value))
    # Some leave out spaces in front when they open a file.
    return f"'{value}" if value[:1] in _FORMULA or value.lstrip()[:1] in _FORMULA else value


RENDERER = Renderer(
    "`regions.csv`, `kernels.csv`, `kernels.counters.csv`: tables; `kernels.csv`, `metrics.csv` of each region",
    render,
    render_region,
)
