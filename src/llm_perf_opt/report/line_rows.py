"""The table "by line": where in the program's source the time of a stage goes. One definition for all outputs."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define

from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.fixes import KernelSource, LineRecord
from llm_perf_opt.regions.model import NCUProfileRegion, RegionPerformance, SignatureRecord
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.stages import evaluated
from llm_perf_opt.report.text import NOT_MEASURED, percent, place_words
from llm_perf_opt.report.view import View

HEAD = ("launches", "time", "share", "GPU idle", "FLOPs", "DRAM", "of its roof")
MOST_STAGES = 3
_WORTH = 0.001  # of the time and the waiting of all lines: a line with less is left out


@define(frozen=True)
class LineRow:
    """A line as it is shown."""

    where: str  # `train.py:33 step`
    file: str
    cells: tuple[str, ...]  # as in HEAD
    what: str  # operators, or else kernels
    text: str  # the line itself, where it is known


def line_tables(view: View, most: int) -> Iterator[tuple[NCUProfileRegion, RegionPerformance, list[LineRow]]]:
    """The stages whose lines are known, each with those that take most time or leave the GPU waiting."""
    stages = [(region, performance) for region, performance in evaluated(view.stages) if performance.lines]
    for region, performance in stages[:MOST_STAGES]:
        whole = sum(_weight(line) for line in performance.lines)
        rows = [_row(line) for line in performance.lines[:most] if _weight(line) >= _WORTH * whole]
        if rows:
            yield region, performance, rows


def measured_columns(rows: list[LineRow]) -> tuple[list[str], list[list[str]]]:
    """The titles of HEAD that some row has a value for, and the rows' cells below them: without counters no FLOPs."""
    numbers = [n for n in range(len(HEAD)) if any(row.cells[n] != NOT_MEASURED for row in rows)]
    return [HEAD[n] for n in numbers], [[row.cells[n] for n in numbers] for row in rows]


def known_words(performance: RegionPerformance) -> str:
    """How much of the kernel time the lines speak for."""
    if performance.lines_known is None:
        words = (
            "The recording does not show which line launched a kernel, only where the host was while the GPU waited."
        )
    else:
        words = f"The line is known for {percent(performance.lines_known)} of the kernel time."
    if performance.lines_are_functions:
        words += " PyTorch's profiler records functions: a line is where its function begins."
    return words


def launched_by(found: KernelSource | SignatureRecord) -> str:
    """`aten::linear 512×3072×1024, model.py:33`."""
    lines = [place_words(line.file, line.line) for line in found.lines]
    return ", ".join([*([found.operator] if found.operator else []), *lines]) or NOT_MEASURED


def _weight(line: LineRecord) -> float:
    return line.time.value + (line.idle.value if line.idle is not None else 0.0)


def _row(line: LineRecord) -> LineRow:
    launched = (f"{line.calls:,}", shown(line.time), percent(line.share)) if line.calls else (NOT_MEASURED,) * 3
    cells = (*launched, shown(line.idle), shown(line.flops), shown(line.dram), percent(line.of_roof))
    what = ", ".join(visible(name, 60) for name in (line.operators or line.kernels)[:2]) or NOT_MEASURED
    return LineRow(
        place_words(line.file, line.line, line.function),
        visible(line.file, 200),
        cells,
        what,
        visible(line.text, 160) if line.text else "",
    )
