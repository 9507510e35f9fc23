"""Steps that a server marks itself, by ranges of its own: they are counted, and the model's calls in them are no stages.

The names are those that `regions/step_numbers.py` knows. Only the outermost range of a step counts.
"""

from __future__ import annotations

import threading
from typing import Any

from .ranges import DOMAIN
from .seen_ranges import SeenRanges
from .stages import STEPS, state
from .ticker import ticker

_GRAMMARS = ("step[", "[Executor] _forward_step", "execute_")  # of SGLang, TensorRT-LLM, and vLLM
_OF_DRAFTS = "step[DRAFT"


def is_step(name: Any) -> bool:
    """Does the name of a range say that it is a step?"""
    if not isinstance(name, str):
        return False
    if name.startswith(_GRAMMARS):
        return not name.startswith(_OF_DRAFTS) and (name[0] != "e" or "context_" in name)
    return name.partition(", batch = ")[0] in STEPS


class _Open(threading.local):
    """The step that is open on a thread."""

    domain: Any = None
    inside = 0  # ranges of its domain that are open inside it


class ProgramSteps:
    """Stands before what sees the ranges of the process."""

    def __init__(self, ranges_seen: SeenRanges) -> None:
        self.count = 0
        self._open = _Open()
        self._begin, self._end, self._undo = ranges_seen.begin, ranges_seen.end, ranges_seen.undo
        ranges_seen.begin, ranges_seen.end, ranges_seen.undo = self.begin, self.end, self.undo  # type: ignore[method-assign]

    def begin(self, domain: Any, name: Any) -> None:
        self._begin(domain, name)  # first: it may end the program, and then the range does not open
        if not ticker.runs:
            ticker.start()
        around = self._open
        if around.domain is not None:
            around.inside += domain == around.domain
        elif state.step is None and domain != DOMAIN and isinstance(domain, str) and is_step(name):
            around.domain, around.inside = domain, 0
            state.step = name
            self.count += 1

    def end(self, domain: Any) -> None:
        self._leave(domain)
        self._end(domain)

    def undo(self, domain: Any) -> None:
        self.count -= self._leave(domain)
        self._undo(domain)

    def _leave(self, domain: Any) -> bool:
        """Whether it was the step that ended."""
        around = self._open
        if around.domain is None or domain != around.domain:
            return False
        around.inside -= 1
        if around.inside >= 0:
            return False
        around.domain = state.step = None
        return True


active: ProgramSteps | None = None  # None: the steps of this process are not counted


def install(ranges_seen: SeenRanges) -> bool:
    """After all that watches ranges, once in a process: torch and the nvtx package may both be there."""
    global active
    if active is not None:
        return False
    active = ProgramSteps(ranges_seen)
    return True
