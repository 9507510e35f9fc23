"""Ranges of the stages (prefill, decode, forward, …), counted by name; and what is known of each thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable

from .ranges import Pop, Push
from .ticker import ticker

if TYPE_CHECKING:
    from .generation import Generation
    from .model import Model


STEPS = frozenset(("prefill", "decode_step", "mixed_step", "verify", "step"))  # of a server, or of a loop by hand


class Stages:
    """Opens and closes stage ranges. Every `open` is followed by its `close` on the same thread, innermost first."""

    def __init__(self, push: Push, pop: Pop) -> None:
        self.counts: dict[str, int] = {}
        self._push = push
        self.close = pop

    def open(self, name: str, numbers: str = "") -> None:
        """`numbers`: of this instance, behind its name."""
        self.counts[name] = self.counts.get(name, 0) + 1
        self._push(name + numbers)
        if not ticker.runs:
            ticker.start()

    def run(self, stage: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function as a stage."""
        self.open(stage)
        try:
            return function(*args, **kwargs)
        finally:
            self.close()


class State(threading.local):
    """One of these exists for every thread."""

    model: Model | None = None  # the outermost module of the call that runs; None: the next call is outermost
    generation: Generation | None = None  # the innermost generate() that runs
    in_backward: bool = False
    step: str | None = None  # what a serving engine runs
    graph: Any = None  # the CUDA graph that is being captured


state = State()
# Threads with a step of a serving engine: others that it starts meanwhile run parts of the same step (vLLM's ubatches).
engine_threads: set[int] = set()
