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
    from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport, RegionPerformance

_OPPORTUNITIES = 5
_STAGES = 12
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


def show_report(report: NCUProfileRegionReport, *, brief: bool = False) -> None:
    """The answer, the stages, what to fix first and the diagnostics; where it is not brief, the regions too."""
    from rich.markup import escape

    from llm_perf_opt.report.answer import answer
    from llm_perf_opt.report.headline import headline
    from llm_perf_opt.report.host_only import is_host_only
    from llm_perf_opt.report.text import gpu_time, heaviest, launch_headline, launch_place

    out = console()
    scope = report.main_scope
    unmatched = any(d.code == "NO_MATCHING_KERNELS" for d in report.diagnostics)
    if scope is None or not scope.regions or unmatched:
        # Why there is nothing, and what to type next, comes before anything else.
        show_diagnostics(report, out)
    lines = headline(report) if brief and not unmatched else []
    labelled(out, [(f"{line.name}:", line.text) for line in lines])
    for sentence in answer(report) if not lines else ():
        out.print(f"• {escape(sentence)}", soft_wrap=True)
    for launch in report.launches:
        out.print(f"• {escape(launch.short_name)}: {escape(launch_place(launch))}", soft_wrap=True)
        if told := "; ".join(f"{title} {value}" for title, value in launch_headline(launch)):
            out.print(f"  {escape(told)}", soft_wrap=True)
    if scope is not None and scope.regions:
        shown = heaviest(scope.regions, _TABLE_ROWS)
        if is_host_only(report):
            out.print(host_table(shown))
        elif brief:
            out.print()
            out.print(stage_table(report, out.width))
            out.print()
        else:
            out.print(region_table(shown, gpu_time(scope.totals), out.width))
        if len(scope.regions) > len(shown) and not brief:
            out.print(f"{len(scope.regions) - len(shown):,} more regions are in the report.")
        show_verification(report, out)
        if not unmatched:  # of nothing there is nothing to fix
            show_opportunities(report, out)
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


def show_opportunities(report: NCUProfileRegionReport, out: Console) -> None:
    """What to fix first."""
    first = report.opportunities[:_OPPORTUNITIES]
    labelled(out, [(f"fix {number}", found.text) for number, found in enumerate(first, 1)])
    if (more := len(report.opportunities) - _OPPORTUNITIES) > 0:
        out.print(f"{more:,} more in the report.")


def show_diagnostics(report: NCUProfileRegionReport, out: Console, *, brief: bool = False) -> None:
    """What the reader must know, and where nothing matched, what could have been asked for.

    Brief: without what is only good to know, which a run has said already and the report keeps.
    """
    from rich.markup import escape

    from llm_perf_opt.regions.names import visible

    for key in report.available_ranges[:10]:
        out.print(f"  exists: {escape(visible(key, 120))}", soft_wrap=True)
    colours = {"error": "red", "warning": "yellow", "info": "cyan"}
    for diagnosis in report.diagnostics:
        if brief and diagnosis.severity == "info":
            continue
        colour = colours.get(diagnosis.severity, "cyan")
        out.print(f"[{colour}]{diagnosis.severity}[/] {escape(visible(diagnosis.message, 500))}", soft_wrap=True)
        if diagnosis.fix:
            out.print(f"  → {escape(visible(diagnosis.fix, 500))}", soft_wrap=True)


def stage_table(report: NCUProfileRegionReport, width: int) -> Table:
    """A line a stage: its time, how busy the GPU is, how near to its limits, and what holds it back."""
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.report.headline import roofs_known, stage_regions
    from llm_perf_opt.report.performance_md import reached
    from llm_perf_opt.report.text import NOT_MEASURED, duration, full_label, gpu_time, judged_times, share

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", overflow="fold", min_width=12)
    names = ["time", "GPU busy", "kernels", "MFU", "bandwidth", "at the limit", "tokens/s", "verdict"]
    # A narrow window gets fewer columns, the least needed go first.
    for name, needed in (("tokens/s", 110), ("kernels", 98), ("bandwidth", 88), ("MFU", 76), ("at the limit", 66)):
        if width < needed:
            names.remove(name)
    for name in names:
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for region in stage_regions(report)[:_STAGES]:
        judged = region.performance
        light = judged.speed_of_light if judged else None
        wall, idle = judged_times(region)
        busy = None if wall is None or idle is None else wall - idle
        tokens = judged.tokens if judged else None
        cells: dict[str, str | Text] = {
            "time": duration(wall if wall is not None else gpu_time(region.inclusive)),
            "GPU busy": share(busy, wall),
            "kernels": f"{region.inclusive.kernel_count:,}",
            "MFU": reached(judged, "mfu", "wall") if judged else NOT_MEASURED,
            "bandwidth": reached(judged, "mbu", "wall") if judged else NOT_MEASURED,
            "at the limit": duration(light.limit.of("ns")) if light and roofs_known(light) else NOT_MEASURED,
            "tokens/s": f"{tokens.now.value:,.4g}" if tokens else NOT_MEASURED,
            "verdict": Text(judged.verdict.title if judged else NOT_MEASURED, style=_tone(judged)),
        }
        table.add_row(Text(full_label(region)), *(cells[name] for name in names))
    return table


def _tone(judged: RegionPerformance | None) -> str:
    """Yellow where the GPU waits."""
    waits = judged is not None and judged.verdict.bound in ("launch", "host", "other_work", "communication")
    return "yellow" if waits else ""


def host_table(regions: list[NCUProfileRegion]) -> Table:
    """Times on the host alone, of a recording without GPU work."""
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.report.host_only import HEAD, region_cells
    from llm_perf_opt.report.text import rows

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("region", overflow="fold", min_width=20)
    for name in HEAD:
        table.add_column(name, justify="right", no_wrap=True)
    by_key = {region.key: region for region in regions}
    for indent, text, region in rows(regions):
        table.add_row(Text("  " * min(indent, 20) + text), *region_cells(region, by_key))
    return table


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
