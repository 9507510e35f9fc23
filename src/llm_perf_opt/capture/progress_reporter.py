"""The progress of a run, on standard error; nothing where a program reads the output.

On a terminal the step that runs has a line that moves; elsewhere lines are only added, and now and then one says
how far a long step is.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from llm_perf_opt.capture.commands import Captured
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.nsight.outcome import Status
from llm_perf_opt.nsight.progress import Progress
from llm_perf_opt.planning import CounterPlan, spoken_seconds
from llm_perf_opt.planning.plan import SampleTable
from llm_perf_opt.regions.names import printable, visible

_CAPTURED: dict[Status, str] = {"captured": "captured", "partial": "captured a part", "nothing": "captured nothing"}
_SECONDS_BETWEEN_LINES = 30.0  # of a long step, where nothing can be rewritten


def can_redraw() -> bool:
    """Is standard error a terminal on which a line can be written again?"""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


class ProgressReporter:
    """Prints lines for people. `silent`: none at all, a program reads the output. `quiet`: errors only.

    `label`: before each line, where the ranks of a job share a terminal.
    """

    def __init__(self, *, quiet: bool = False, silent: bool = False, label: str = "") -> None:
        self._label = f"[{label}] " if label else ""
        self._quiet = quiet or silent
        self._silent = silent
        self._live = can_redraw() and not self._quiet and not label
        self._above: Callable[[str], None] | None = None  # prints above the line that moves, while there is one

    def __call__(self, text: str) -> None:
        if not self._quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        text = self._label + text
        try:
            if self._above is not None:
                self._above(printable(text))
            else:
                print(printable(text), file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone, or whoever read from us: no reason to lose a run
            self._quiet = self._silent = True

    @contextlib.contextmanager
    def work(
        self, title: str, name: str, *, expected_s: float | None = None, later_s: float = 0.0
    ) -> Iterator[Callable[[Progress], None]]:
        """A step that takes a while; what comes back takes its progress.

        `expected_s`: what it is expected to take. `later_s`: what steps after it will.
        """
        about = f", about {spoken_seconds(expected_s)}" if expected_s else ""
        self(f"{title}{about} …")
        if not self._live:
            yield self._lines(later_s)
            return
        from llm_perf_opt.capture.live_display import live_line

        try:
            with live_line(name, expected_s, later_s) as (update, above):
                self._above = above
                yield update
        finally:
            self._above = None

    def _lines(self, later_s: float) -> Callable[[Progress], None]:
        printed = time.monotonic()

        def update(state: Progress) -> None:
            nonlocal printed
            if state.phase == "profiling" and time.monotonic() - printed > _SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                self(f"  {progress_words(state, later_s)}")

        return update

    def plan(self, plan: CounterPlan, table: SampleTable) -> None:
        """What will be captured, and what it costs."""
        captures = plan.captures
        error = f", expected error {table.error:.1%}" if table.error is not None else ""
        self(
            f"plan: counters of {plan.results:,} of {table.launches:,} launches in {len(captures)} "
            f"capture{'s' if len(captures) != 1 else ''}, about {spoken_seconds(plan.seconds)}; "
            f"they stand for {table.coverage:.1%} of the GPU time in the regions{error}"
        )
        for number, capture in enumerate(captures, 1):
            self(
                f"  capture {number} of {len(captures)}: {capture.expected:,} launches, {capture.passes}, "
                f"about {spoken_seconds(capture.seconds or 0.0)} ({capture.why})"
            )

    def step(self, captured: Captured) -> None:
        self(f"  {_CAPTURED[captured.outcome.status]} in {spoken_seconds(captured.ended.seconds)}")
        for diagnosis in captured.outcome.diagnoses:
            self.diagnosis(diagnosis)

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        if self._silent or (self._quiet and diagnosis.severity != "error"):
            return
        self._print(f"  {diagnosis.severity}: {visible(diagnosis.message, 400)}")
        if diagnosis.fix:
            self._print(f"    → {visible(diagnosis.fix, 400)}")


def remaining(seconds: float) -> str:
    """A time that is still to come: whole seconds are exact enough."""
    return f"{seconds:.0f} s" if seconds < 10 else spoken_seconds(seconds)


def progress_words(state: Progress, later_s: float = 0.0) -> str:
    """How far a step is: `57 of 143 launches, 1 pass each, 20 s left`."""
    if state.phase == "report":
        percent = f" {state.percent} %" if state.percent is not None else ""
        return f"the report is written{percent}"
    if state.phase != "profiling":
        return ""
    # More results than the timeline let expect: then how many there will be is not known.
    known = state.total is not None and state.kernels_done <= state.total
    parts = [f"{state.kernels_done:,}{f' of {state.total:,}' if known else ''} launches"]
    if state.passes:
        parts.append(f"{state.passes} pass{'es' if state.passes > 1 else ''} each")
    if state.seconds_left is not None and known:
        after = f" + {remaining(later_s)}" if later_s else ""
        parts.append(f"{remaining(state.seconds_left)}{after} left")
    return ", ".join(parts)
