"""Ranges of the stages (prefill, decode, forward, …), counted by name."""

from __future__ import annotations

from .ranges import Pop, Push


class Stages:
    """Opens and closes stage ranges. Every `open` is followed by its `close` on the same thread, innermost first."""

    def __init__(self, push: Push, pop: Pop) -> None:
        self.counts: dict[str, int] = {}
        self._push = push
        self._pop = pop

    def open(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self._push(name)

    def close(self) -> None:
        self._pop()
