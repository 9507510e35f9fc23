"""Ranges of the stages (prefill, decode, forward, …): counted, and open to others who want to act on them.

A listener is called with the name of the stage, its number in this process (from 1) and whether it begins
(before the range opens) or has ended (after it closed). That is the place to switch a profiler on and off
around, say, the fifth decode step.
"""

from __future__ import annotations

from typing import Callable

from . import tell
from .ranges import Pop, Push

Listener = Callable[[str, int, bool], None]


class Stages:
    """Opens and closes stage ranges. Every `open` is followed by its `close` on the same thread, innermost first."""

    def __init__(self, push: Push, pop: Pop) -> None:
        self.counts: dict[str, int] = {}
        self.listeners: list[Listener] = []
        self._push = push
        self._pop = pop

    def open(self, name: str) -> int:
        """Begin a stage; its number, for `close`."""
        number = self.counts[name] = self.counts.get(name, 0) + 1
        if self.listeners:
            self._tell(name, number, True)
        self._push(name)
        return number

    def close(self, name: str, number: int) -> None:
        self._pop()
        if self.listeners:
            self._tell(name, number, False)

    def _tell(self, name: str, number: int, begins: bool) -> None:
        for listener in list(self.listeners):
            try:
                listener(name, number, begins)
            except Exception as error:
                self.listeners.remove(listener)
                tell.failed("acting on a stage", error)
