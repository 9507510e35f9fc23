"""Watches a session: marks its stages for profilers, and has their times taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llm_perf_opt.inject.own_timers import OwnTimers
from llm_perf_opt.workloads.device import waiter
from llm_perf_opt.workloads.marks import DOMAIN, mark


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
    """Marks stages, and has each of them and the steps inside timed as ranges of a measured program are."""

    def __init__(self, device: Any, timers: OwnTimers) -> None:
        self._wait = waiter(device)
        self._timers = timers

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self._timed(name, wait=True)

    def step(self, name: str) -> AbstractContextManager[None]:
        return self._timed(name, wait=False)

    @contextmanager
    def _timed(self, name: str, wait: bool) -> Iterator[None]:
        with mark(name):
            self._timers.begin(DOMAIN, name)
            try:
                yield
            finally:
                self._timers.end(DOMAIN)
            if wait:  # behind the end: the GPU says when the work was done, not when the host has noticed
                self._wait()
