"""Stages inside `generate()` of transformers: generate, and in it prefill, then decode with a range for each step.

Prefill lasts from the first call of the model until the second begins, so it holds the choice of the first
token; a decode step lasts until the next call begins. What a loop written by hand would mark as forward plus
argmax is therefore in the same range here. The smaller model of assisted decoding, which is asked to generate
while another one does, gets one range, `draft`, whenever it is asked.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .stages import Stages, state


class Generation:
    """One `generate()` that runs. Its ranges open and close on its thread, innermost first."""

    def __init__(self, model: Any, stages: Stages) -> None:
        self.model = model
        self.in_pieces = False  # calls of the model are pieces of one prompt
        self.prefilling = True  # the first token has not been asked for yet
        self._stages = stages
        self._open = 0  # stages of this generation that are open
        self._before = (state.generation, state.model)
        self._drafts = state.generation is not None and state.generation.model is not model

    def begin(self) -> None:
        self._begin("draft" if self._drafts else "generate")
        # Inside, the model is outermost again, even where generate() is called by a module.
        state.generation, state.model = self, None

    def before_call(self) -> None:
        """The model itself is about to be called."""
        if self._drafts:
            return
        if self.prefilling:
            if self._open == 1:
                self._begin("prefill")
            self.prefilling = self.in_pieces
            return
        self._end()
        if self._open == 1:
            self._begin("decode")
        self._begin("decode_step")

    def end(self) -> None:
        while self._open:
            self._end()
        state.generation, state.model = self._before

    def _begin(self, name: str) -> None:
        self._stages.open(name)
        self._open += 1

    def _end(self) -> None:
        self._stages.close()
        self._open -= 1


def annotate(mixin: Any, stages: Stages) -> None:
    """Mark `generate()` of transformers' GenerationMixin."""
    generate = mixin.generate

    @functools.wraps(generate)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        generation = Generation(self, stages)
        generation.begin()
        try:
            return generate(self, *args, **kwargs)
        finally:
            generation.end()

    mixin.generate = marked
    # The names of its prefill differ: the later one holds the call that gives the first token, the earlier one
    # leaves the last token of the prompt to the loop.
    for name, complete in (("_prefill", True), ("_prefill_chunking", False)):
        if hasattr(mixin, name):
            setattr(mixin, name, _in_pieces(getattr(mixin, name), complete=complete))


def _in_pieces(prefill: Callable[..., Any], complete: bool) -> Callable[..., Any]:
    """Every call of the model inside `prefill` belongs to the prefill."""

    @functools.wraps(prefill)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        generation = state.generation
        if generation is None or generation.model is not self:
            return prefill(self, *args, **kwargs)
        generation.in_pieces = True
        try:
            return prefill(self, *args, **kwargs)
        finally:
            generation.in_pieces = False
            if complete:
                generation.prefilling = False

    return marked
