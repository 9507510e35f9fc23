"""Watches a session: marks its stages for profilers, and takes their times.

On a GPU the times come from CUDA events, which are stamped by the GPU where the work is and cost the host
little; on a CPU from the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from attrs import define

from llm_perf_opt.workloads.device import import_torch, waiter
from llm_perf_opt.workloads.marks import mark


@define(frozen=True)
class Timed:
    """One range instance: how long it took and, for the time to the first token, when it ended."""

    path: str  # names from the outermost range on, as in `generate/decode/decode_step`
    seconds: float
    end_s: float  # since the outermost range began


class MarkingWatch:
    """Marks stages and waits for the device at their end."""

    def __init__(self, device: Any) -> None:
        self._wait = waiter(device)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with mark(name):
            yield
            self._wait()

    def step(self, name: str) -> AbstractContextManager[None]:
        return mark(name)


class TimingWatch:
    """Marks stages, and takes the time of each of them and of the steps inside."""

    def __init__(self, device: Any) -> None:
        self._wait = waiter(device)
        self._stamp: Callable[[], Any] = time.perf_counter
        self._between: Callable[[Any, Any], float] = lambda start, end: float(end - start)
        if device.type == "cuda":
            event = import_torch().cuda.Event

            def stamp() -> Any:
                stamped = event(enable_timing=True)
                stamped.record()
                return stamped

            self._stamp = stamp
            self._between = lambda start, end: float(start.elapsed_time(end)) / 1000
        self.clock = "CUDA events" if device.type == "cuda" else "host clock"
        self._open: list[str] = []
        self._first: Any = None
        self._stamps: list[tuple[str, Any, Any]] = []

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self._timed(name, wait=True)

    def step(self, name: str) -> AbstractContextManager[None]:
        return self._timed(name, wait=False)

    @contextmanager
    def _timed(self, name: str, wait: bool) -> Iterator[None]:
        self._open.append(name)
        path = "/".join(self._open)
        try:
            with mark(name):
                start = self._stamp()
                if self._first is None:
                    self._first = start
                yield
                self._stamps.append((path, start, self._stamp()))
                if wait:  # behind the stamp: the GPU sets it when the work is done, not when the host has noticed
                    self._wait()
        finally:
            self._open.pop()

    def times(self) -> list[Timed]:
        """Every range instance since the last call, in the order they ended."""
        self._wait()
        between = self._between
        taken = [Timed(path, between(start, end), between(self._first, end)) for path, start, end in self._stamps]
        self._stamps, self._first = [], None
        return taken
