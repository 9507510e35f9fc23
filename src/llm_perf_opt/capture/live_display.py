"""The line that moves while a step of a run goes on: how far it is, how long it has taken, how long it will."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from llm_perf_opt.capture.progress_reporter import progress_words, remaining
from llm_perf_opt.nsight.progress import Progress
from llm_perf_opt.regions.names import visible

_NEARLY = 0.99  # a step that takes longer than expected is nearly done, never done


def _by_clock(task: Task) -> bool:
    """Is the clock all there is to go by?"""
    return task.fields["state"].phase != "report" and not task.fields["state"].total and bool(task.fields["expected_s"])


class _Bar(BarColumn):
    """Launches done of those planned; without such a number, time passed of the time expected."""

    def render(self, task: Task) -> ProgressBar:
        if _by_clock(task):
            expected = task.fields["expected_s"]
            task.total, task.completed = expected, min(task.elapsed or 0.0, _NEARLY * expected)
        return super().render(task)


class _Words(ProgressColumn):
    max_refresh = 0.2

    def render(self, task: Task) -> Text:
        state: Progress = task.fields["state"]
        elapsed = task.elapsed or 0.0
        words = progress_words(state, task.fields["later_s"])
        if not words or state.seconds_left is None:
            left = (task.fields["expected_s"] or 0.0) - elapsed
            words = ", ".join(filter(None, [words, f"about {remaining(left)} left" if left >= 1 else ""]))
        return Text(words, style="dim")


class _Elapsed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_clock(task.elapsed or 0.0))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def live_line(
    name: str, expected_s: float | None, later_s: float
) -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """What takes the progress, and what prints above the line."""
    out = Console(stderr=True, highlight=False)
    whole = Column(no_wrap=True)
    columns = (
        SpinnerColumn(table_column=whole),
        TextColumn("{task.description}", table_column=whole),
        _Bar(bar_width=20, table_column=whole),
        _Elapsed(table_column=whole),
        _Words(table_column=Column(no_wrap=True, overflow="ellipsis")),  # the one that is cut where it is narrow
    )
    with Bars(*columns, console=out, transient=True) as bars:
        task = bars.add_task(
            escape(visible(name, 40)), total=None, state=Progress(), expected_s=expected_s, later_s=later_s
        )

        def update(state: Progress) -> None:
            bars.update(task, state=state)
            if state.total:
                bars.update(task, total=state.total, completed=state.kernels_done)

        yield update, lambda text: out.print(text, markup=False, soft_wrap=True)
