"""Replays of CUDA graphs: no module is called then, so the stage is the one that was captured.

Ranges open at capture are found again by nsys in the graph's nodes; this adds the range around the replay.
"""

from __future__ import annotations

import functools
from typing import Any

from .stages import Stages, state

_STAGE = "_llm_perf_stage"


class Capture:
    """A graph that is being captured."""

    def __init__(self) -> None:
        self.stage: str | None = None


def annotate(graph_class: Any, stages: Stages) -> None:
    begin, end, replay = graph_class.capture_begin, graph_class.capture_end, graph_class.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = begin(self, *args, **kwargs)
        state.graph = Capture()
        return began

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        captured, state.graph = state.graph, None
        if captured is not None and captured.stage is not None:
            setattr(self, _STAGE, captured.stage)
        return end(self, *args, **kwargs)

    @functools.wraps(replay)
    def marked_replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        stage = getattr(self, _STAGE, None)
        if stage is None or state.model is not None or state.generation is not None or state.step is not None:
            return replay(self, *args, **kwargs)
        return stages.run(stage, replay, self, *args, **kwargs)

    graph_class.capture_begin, graph_class.capture_end, graph_class.replay = capture_begin, capture_end, marked_replay
