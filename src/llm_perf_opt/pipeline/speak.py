"""What a run tells while it goes on, on standard error; nothing where a program is listening."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_perf_opt.profiling.capture import Captured
    from llm_perf_opt.profiling.progress import Progress
    from llm_perf_opt.regions.model import Diagnosis


class Speaker:
    """Lines for people; one of them is rewritten where it is a terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not quiet
        self._unfinished_line = False

    def __call__(self, text: str) -> None:
        from llm_perf_opt.regions.names import printable

        text = printable(text)
        self._print(f"\n{text}\n" if self._unfinished_line else f"{text}\n")
        self._unfinished_line = False

    def step(self, captured: Captured) -> None:
        self(f"  {captured.outcome.status} in {captured.ended.seconds:.1f} s")
        for diagnosis in captured.outcome.diagnoses:
            self.diagnosis(diagnosis)

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        from llm_perf_opt.regions.names import visible

        self(f"  {diagnosis.severity}: {visible(diagnosis.message, 400)}")
        if diagnosis.fix:
            self(f"    → {visible(diagnosis.fix, 400)}")

    def progress(self, state: Progress) -> None:
        if self._live:
            of = f" of {state.total:,}" if state.total else ""
            passes = f", {state.passes} passes each" if state.passes and state.passes > 1 else ""
            left = f", about {state.seconds_left:.0f} s left" if state.seconds_left is not None else ""
            told = f"\r  {state.kernels_done:,}{of} launches profiled{passes}{left}"
            self._print(f"{told:<78}")
            self._unfinished_line = True

    def _print(self, text: str) -> None:
        if self._quiet:
            return
        try:
            print(text, end="", file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone, or whoever read from us: no reason to lose a run
            self._quiet = True
