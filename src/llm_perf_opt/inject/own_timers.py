"""The timers of measured programs, for a program of our own: stage 1 is timed as any program is.

They are the very module that is loaded into other programs (`payload/_llm_perf_annotate/timers.py`).
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any, Protocol

_MODULE = "llm_perf_opt.inject.payload._llm_perf_annotate.timers"


class OwnTimers(Protocol):
    """What is asked of them here."""

    def write_to(self, folder: str) -> None:
        """From now on, the times of ranges go to files in this folder."""

    def begin(self, domain: str, name: str) -> None: ...

    def end(self, domain: str) -> None: ...

    def finish(self) -> None:
        """Wait for the GPU, and write what is not written yet."""


def own_timers(folder: Path, torch: Any) -> OwnTimers:
    """The timers of this process, writing to `folder`. `torch`: None where there is no GPU to be timed."""
    timers = _timers(torch)
    timers.write_to(str(folder))
    return timers


@cache
def _timers(torch: Any) -> OwnTimers:
    """One for all jobs of a process: they take the place of functions of torch."""
    timers: OwnTimers = importlib.import_module(_MODULE).Timers("", torch)
    return timers
