"""What a person sees in the terminal: tables, a progress bar on long reads, the answer. Plain where it is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from llm_perf_opt.readers.open import Observer
    from llm_perf_opt.regions.model import NCUProfileRegionReport
    from llm_perf_opt.report.columns import Column
    from llm_perf_opt.report.view import View

_FIXES = 5
_LINES = 5
_NUMBERS = 40  # characters of their columns
_TABLE_ROWS = 40
_WIDTH_WITHOUT_TERMINAL = 150
_SECONDS_A_REFRESH = 0.1
_SECONDS_A_LINE = 5.0  # of progress, where it is no terminal


def console() -> Console:
    """Standard output; wide where nobody's window limits it."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False)


class _Bar:
    """A bar per input, on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, source: str, total: int | None) -> Callable[[int], None]:
        from rich.markup import escape

        from llm_perf_opt.regions.names import visible

        task = self._progress.add_task(f"reading {escape(visible(source, 60))}", total=total)
        shown = 0.0

        def advance(rows: int) -> None:
            nonlocal shown
            self._progress.advance(task, rows)
            if time.monotonic() - shown >= _SECONDS_A_REFRESH:
                shown = time.monotonic()
                self._progress.refresh()

        advance(0)
        return advance


class _Lines:
    """A line every few seconds on standard error, for logs; nothing where reading is quick."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._number = 0
        self._said = time.monotonic()

    def begin(self, source: str, total: int | None) -> Callable[[int], None]:
        from llm_perf_opt.regions.names import visible

        self._number += 1
        which = f" (file {self._number:,} of {self._files:,})" if self._files > 1 else ""
        done = 0

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            if time.monotonic() - self._said >= _SECONDS_A_LINE:
                self._said = time.monotonic()
                part = f": {min(done / total, 1):.0%} of {total:,} rows" if total else f": {done:,} results"
                print(f"reading {visible(source, 60)}{which}{part}", file=sys.stderr, flush=True)

        return advance


@contextlib.contextmanager
def reading(quiet: bool, files: int = 1) -> Iterator[Observer]:
    """Shows what is being read: a bar where somebody is looking, a line now and then where not."""
    if quiet:
        from llm_perf_opt.readers.open import Silent

        yield Silent()
        return
    if not sys.stderr.isatty():
        yield _Lines(files)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Refreshed as rows are read: with a thread for it, no reader could be forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        yield _Bar(progress)


def show_report(view: View, *, brief: bool = False) -> None:
    """The answer, the stages, what to fix first and the diagnostics; where it is not brief, the regions too."""
    from rich.markup import escape

    from llm_perf_opt.report.text import launch_headline, launch_place

    out, report = console(), view.report
    unmatched = any(d.code == "NO_MATCHING_KERNELS" for d in report.diagnostics)
    if not view.regions or unmatched:
        # Why there is nothing, and what to type next, comes before anything else.
        show_diagnostics(report, out)
    lines = [] if unmatched else view.answer.lines
    labelled(out, [(f"{line.name}:", line.text) for line in lines])
    for sentence in view.answer.sentences if not (lines and view.regions and (brief or view.host_only)) else ():
        out.print(f"• {escape(sentence)}", soft_wrap=True)
    for launch in report.launches:
        out.print(f"• {escape(launch.short_name)}: {escape(launch_place(launch))}", soft_wrap=True)
        if told := "; ".join(f"{title} {value}" for title, value in launch_headline(launch)):
            out.print(f"  {escape(told)}", soft_wrap=True)
    if view.regions:
        if not view.host_only:
            out.print()
            out.print(stage_table(view, out.width))
            _show_account(view, out)
            out.print()
        if view.host_only or not brief:
            _show_regions(view, out)
        if view.host_only:
            _show_account(view, out)
        show_steps(view, out)
        show_verification(report, out)
        if not unmatched:  # of nothing there is nothing to fix
            show_fixes(view, out)
            show_lines(view, out)
            show_diagnostics(report, out, brief=brief)


def labelled(out: Console, lines: list[tuple[str, str]]) -> None:
    """Labels and sentences; wrapped below each other in a window, a line each in a file or a pipe."""
    from rich.table import Table
    from rich.text import Text

    if not out.is_terminal:
        for label, text in lines:
            out.print(f"{label} {text}", markup=False, soft_wrap=True)
        return
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(label, Text(text))
    out.print(table)


def show_verification(report: NCUProfileRegionReport, out: Console) -> None:
    """Estimates against the same regions measured as wholes, where the run was asked for it."""
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.report.text import verified_rows

    if not report.verification:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("region", "counter"):
        table.add_column(name, overflow="fold")
    for name in ("estimate", "measured", "ratio", "stated"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for *words, agrees in verified_rows(report):
        table.add_row(*map(Text, words), Text("agrees") if agrees else Text("differs", style="yellow"))
    out.print("[bold]estimates against range replay[/]")
    out.print(table)


def show_steps(view: View, out: Console) -> None:
    """The steps of a server by phase and size, where the run is one of a server."""
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.report.step_rows import HEAD, step_rows, step_sentence

    if not (rows := step_rows(view)):
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(HEAD):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=number > 0)
    for row in rows[:_TABLE_ROWS]:
        table.add_row(*map(Text, row))
    out.print()
    out.print(table)
    if sentence := step_sentence(view):
        out.print(sentence, markup=False, soft_wrap=True)


def show_fixes(view: View, out: Console) -> None:
    """What to fix first."""
    fixes = view.answer.fixes
    labelled(out, [(f"fix {number}", found.text) for number, found in enumerate(fixes[:_FIXES], 1)])
    if (more := len(fixes) - _FIXES) > 0:
        out.print(f"{more:,} more in the report.")


def show_lines(view: View, out: Console) -> None:
    """The lines of the program that take most time in the longest stage."""
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.report.line_rows import HEAD, line_tables
    from llm_perf_opt.report.text import full_label

    for region, _, rows in line_tables(view, _LINES):
        table = Table(box=None, pad_edge=False, header_style="bold")
        longest = min(max(len(row.where) for row in rows), out.width // 2)
        table.add_column(f"line of {full_label(region)}", overflow="fold", min_width=longest)
        for title in HEAD[:4]:
            table.add_column(title, justify="right", no_wrap=True)
        # As much as is left of the width: it would take from the others else.
        left = max(out.width - longest - _NUMBERS, 20)
        table.add_column("what it launches", overflow="ellipsis", no_wrap=True, max_width=left)
        for row in rows:
            table.add_row(Text(row.where), *map(Text, row.cells[:4]), Text(row.what))
        out.print()
        out.print(table)
        return


def show_diagnostics(report: NCUProfileRegionReport, out: Console, *, brief: bool = False) -> None:
    """What the reader must know, and where nothing matched, what could have been asked for.

    Brief: without what is only good to know, which a run has said already and the report keeps.
    """
    from rich.markup import escape

    from llm_perf_opt.regions.names import visible

    colours = {"error": "red", "warning": "yellow", "info": "cyan"}
    for diagnosis in report.diagnostics:
        if brief and diagnosis.severity == "info":
            continue
        colour = colours.get(diagnosis.severity, "cyan")
        out.print(f"[{colour}]{diagnosis.severity}[/] {escape(visible(diagnosis.message, 500))}", soft_wrap=True)
        if diagnosis.fix:
            out.print(f"  → {escape(visible(diagnosis.fix, 500))}", soft_wrap=True)
    for key in report.available_ranges[:10]:
        out.print(f"  exists: {escape(visible(key, 120))}", soft_wrap=True)


def _fitting(columns: Sequence[Column[Any]], width: int) -> list[Column[Any]]:
    """A narrow window gets fewer columns, never half a number: the least needed go first."""
    return [column for column in columns if column.from_width is not None and column.from_width <= width]


def _table(first: str, least: int, columns: Sequence[Column[Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold", min_width=least)
    for column in columns:
        table.add_column(column.title, justify="left" if column.is_bar or column.words else "right", no_wrap=True)
    return table


def stage_table(view: View, width: int) -> Table:
    """A line a stage: its time, how busy the GPU is, how near to its limits, and what holds it back."""
    from rich.text import Text

    from llm_perf_opt.report.stages import MOST_STAGES, WAITING_BOUNDS, stage_columns
    from llm_perf_opt.report.text import NOT_MEASURED, full_label

    known = [c for c in stage_columns(brief=True) if any(c.text(r) != NOT_MEASURED for r in view.stages)]
    columns = _fitting(known, width)
    table = _table("stage", 12, columns)
    for region in view.stages[:MOST_STAGES]:
        # Yellow where the GPU waits.
        waits = region.performance is not None and region.performance.verdict.bound in WAITING_BOUNDS
        cells = [Text(c.text(region), style="yellow" if waits and c.words else "") for c in columns]
        table.add_row(Text(full_label(region)), *cells)
    return table


def _show_account(view: View, out: Console) -> None:
    from llm_perf_opt.report.accounting import account_line

    if told := account_line(view):
        out.print(told, markup=False, soft_wrap=not out.is_terminal)


def _show_regions(view: View, out: Console) -> None:
    out.print(region_table(view, out.width))
    if (hidden := len(view.regions) - _TABLE_ROWS) > 0:
        out.print(f"{hidden:,} more regions are in the report.")


def region_table(view: View, width: int) -> Table:
    """The tree of regions, the heaviest."""
    from rich.text import Text

    from llm_perf_opt.report.region_table import shown_columns, shown_rows

    columns = _fitting(shown_columns(view.report), width)
    table = _table("region", 20, columns)
    for row in shown_rows(view.scope, _TABLE_ROWS) if view.scope else ():
        cells = [Text(c.text(row), style="yellow" if c.is_bar else "") for c in columns]
        table.add_row(Text("  " * min(row.indent, 20) + row.text), *cells)
    return table
