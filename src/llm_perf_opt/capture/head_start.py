"""The program under ncu, started while nsys still writes the timeline: it imports, loads, and waits at its first range.

What it is started with is a guess (`planning/likely.py`). Where the plan asks for the very same, its windows are written
and the program goes on; else it is ended, and started again as planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import define

from llm_perf_opt.inject.capture_windows import AWAITED
from llm_perf_opt.process.supervise import Guarded


@define
class HeadStart:
    """A command that has begun, and what it was asked for."""

    argv: list[str]
    environment: Mapping[str, str]
    logs: Sequence[Path]
    command: Guarded

    def fits(self, argv: list[str], environment: Mapping[str, str]) -> bool:
        """Is it what is asked for now, and still waiting?"""
        mine = {name: value for name, value in self.environment.items() if name != AWAITED}
        return self.argv == argv and mine == environment and self.command.is_running

    def discard(self) -> None:
        """End it, and leave no trace."""
        self.command.discard()
        for log in self.logs:
            with contextlib.suppress(OSError):
                log.unlink(missing_ok=True)
