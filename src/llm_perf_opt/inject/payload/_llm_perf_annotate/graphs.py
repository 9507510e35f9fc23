"""Replays of CUDA graphs: no module is called then, so the stage is the one that was captured.

Ranges open at capture are found again by nsys in the graph's nodes; this adds the range around the replay.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .stages import Stages
from .state import state

_STAGE = "_llm_perf_stage"


class Capture:
    """A graph that is being captured."""

    def __init__(self) -> None:
        self.stage: str | None = None


def annotate(graph_class: Any, stages: Stages) -> None:
    graph_class.capture_begin = _beginning(graph_class.capture_begin)
    graph_class.capture_end = _ending(graph_class.capture_end)
    graph_class.replay = _replaying(graph_class.replay, stages)


def _beginning(capture_begin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(capture_begin)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = capture_begin(self, *args, **kwargs)
        state.graph = Capture()
        return began

    return marked


def _ending(capture_end: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(capture_end)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        captured, state.graph = state.graph, None
        if captured is not None and captured.stage is not None:
            setattr(self, _STAGE, captured.stage)
        return capture_end(self, *args, **kwargs)

    return marked


def _replaying(replay: Callable[..., Any], stages: Stages) -> Callable[..., Any]:
    @functools.wraps(replay)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        stage = getattr(self, _STAGE, None)
        if stage is None or state.model is not None or state.generation is not None:
            return replay(self, *args, **kwargs)
        stages.open(stage)
        try:
            return replay(self, *args, **kwargs)
        finally:
            stages.close()

    return marked
