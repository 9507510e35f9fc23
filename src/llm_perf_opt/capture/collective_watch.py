"""Ends ncu where it replays a collective: that waits for ranks which call it only once.

Collectives are left out by the name of the kernel (`rank_options`). Where one comes through all the same, under a name
that nobody knows or in an ncu that takes the filter otherwise, ncu begins the line of its kernel and never ends it. Then
the run is cut after seconds, with what it has measured, and not when all its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from attrs import define

from llm_perf_opt.metrics.families import COLLECTIVE, family_of
from llm_perf_opt.nsight.progress import ProgressReader

_PATIENCE_S = 30.0  # a collective that is measured in one pass waits for the other ranks, too, and ends
_LONGEST_S = 180.0  # of any other kernel, whose passes take milliseconds
_LOOK_S = 1.0
_TAIL = 1 << 14  # bytes of the log: its last line


@define
class CollectiveWatch:
    """Looks at the line that ncu has begun."""

    log: Path
    clock: Callable[[], float] = time.monotonic
    kernel: str = ""  # the collective that did not end; empty: none
    _line: str = ""
    _since: float = 0.0
    _looked: float = float("-inf")

    def is_stuck(self) -> bool:
        """Asked again and again while ncu runs."""
        now = self.clock()
        if self.kernel or now - self._looked < _LOOK_S:
            return bool(self.kernel)
        self._looked = now
        line = _last_line(self.log)
        if line != self._line:
            self._line, self._since = line, now
        elif line and now - self._since >= _PATIENCE_S:
            state = ProgressReader().feed(line)
            if state is not None and state.phase == "profiling" and not state.kernels_done:
                most = _PATIENCE_S if family_of(state.kernel) == COLLECTIVE else _LONGEST_S
                self.kernel = state.kernel if now - self._since >= most else ""
        return bool(self.kernel)


def _last_line(log: Path) -> str:
    """What ncu has written of a line it has not ended; empty: it has ended all."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL, 0))
            return file.read(_TAIL).rpartition(b"\n")[2].decode("utf-8", "replace")
    except OSError:
        return ""
