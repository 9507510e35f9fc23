"""What a person sees in the terminal: tables, a progress bar on long reads, the answer. Plain where it is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from llm_perf_opt.readers.open import Observer
    from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport

_OPPORTUNITIES = 3
_TABLE_ROWS = 40
_WIDTH_WITHOUT_TERMINAL = 150
_SECONDS_A_LINE = 5.0  # of progress, where it is no terminal


def console() -> Console:
    """Standard output; wide where nobody's window limits it."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            # The reader of our output (head, less) has gone; rich would exit with 1.
            raise BrokenPipeError

    return PipeConsole(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False)


class _Bar:
    """A bar per input, on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, source: str, total: int | None) -> Callable[[int], None]:
        from rich.markup import escape

        from llm_perf_opt.regions.names import visible

        task = self._progress.add_task(f"reading {escape(visible(source, 60))}", total=total)
        return lambda rows: self._progress.advance(task, rows)


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
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress)


def show_report(report: NCUProfileRegionReport) -> None:
    """The answer, the region table and the diagnostics."""
    from rich.markup import escape

    from llm_perf_opt.report.answer import answer
    from llm_perf_opt.report.text import gpu_time, heaviest, launch_headline, launch_place

    out = console()
    scope = report.main_scope
    unmatched = any(d.code == "NO_MATCHING_KERNELS" for d in report.diagnostics)
    if scope is None or not scope.regions or unmatched:
        # Why there is nothing, and what to type next, comes before anything else.
        show_diagnostics(report, out)
    for sentence in answer(report):
        out.print(f"• {escape(sentence)}", soft_wrap=True)
    for launch in report.launches:
        out.print(f"• {escape(launch.short_name)}: {escape(launch_place(launch))}", soft_wrap=True)
        if told := "; ".join(f"{title} {value}" for title, value in launch_headline(launch)):
            out.print(f"  {escape(told)}", soft_wrap=True)
    if scope is not None and scope.regions:
        shown = heaviest(scope.regions, _TABLE_ROWS)
        out.print(region_table(shown, gpu_time(scope.totals), out.width))
        if len(scope.regions) > len(shown):
            out.print(f"{len(scope.regions) - len(shown):,} more regions are in the report.")
        if not unmatched:  # of nothing there is nothing to fix
            show_opportunities(report, out)
            show_diagnostics(report, out)


def show_opportunities(report: NCUProfileRegionReport, out: Console) -> None:
    """What to fix first."""
    from rich.markup import escape

    for number, found in enumerate(report.opportunities[:_OPPORTUNITIES], 1):
        out.print(f"[bold]fix {number}[/] {escape(found.text)}", soft_wrap=True)


def show_diagnostics(report: NCUProfileRegionReport, out: Console) -> None:
    """What the reader must know, and where nothing matched, what could have been asked for."""
    from rich.markup import escape

    from llm_perf_opt.regions.names import visible

    for key in report.available_ranges[:10]:
        out.print(f"  exists: {escape(visible(key, 120))}", soft_wrap=True)
    colours = {"error": "red", "warning": "yellow", "info": "cyan"}
    for diagnosis in report.diagnostics:
        colour = colours.get(diagnosis.severity, "cyan")
        out.print(f"[{colour}]{diagnosis.severity}[/] {escape(visible(diagnosis.message, 500))}", soft_wrap=True)
        if diagnosis.fix:
            out.print(f"  → {escape(visible(diagnosis.fix, 500))}", soft_wrap=True)


def region_table(regions: list[NCUProfileRegion], total_ns: int | None, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.report.text import bar, duration, gpu_time, idle_share, rows, share, work_count

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("region", overflow="fold", min_width=20)
    # A narrow window gets fewer columns, never half a number: the least needed go first.
    names = ["inst.", "wall", "GPU idle", "", "kernels", "GPU time", "own", "of all"]
    for name, needed in (("own", 100), ("", 92), ("of all", 82), ("inst.", 72), ("kernels", 62)):
        if width < needed:
            names.remove(name)
    for name in names:
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for indent, text, region in rows(regions):
        cells: dict[str, str | Text] = {
            "inst.": "–" if region.instances is None else f"{region.instances:,}",
            "wall": duration(region.wall_ns),
            "GPU idle": share(region.gpu_idle_ns, region.wall_ns),
            "": Text(bar(idle_share(region), 1.0, 8), style="yellow"),
            "kernels": work_count(region.inclusive),
            "GPU time": duration(gpu_time(region.inclusive)),
            "own": duration(gpu_time(region.exclusive)),
            "of all": share(gpu_time(region.inclusive), total_ns),
        }
        table.add_row(Text("  " * min(indent, 20) + text), *(cells[name] for name in names))
    return table
