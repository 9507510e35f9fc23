"""A thread that looks a few times a second, in a process of a server that runs steps.

A server that has nothing to do opens no range: what came last would be told and written with the next request, or be
lost where the server is killed. The thread begins with the first range, so that processes that run nothing have none,
and anew in a child that is forked.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

from . import log

_EVERY_S = 0.2


class Ticker:
    """Calls its actions again and again, until one fails."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self.runs = not is_asked()  # nothing is to be started, then
        self._every_s = every_s
        self._actions: list[Callable[[], Any]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_anew)

    def add(self, action: Callable[[], Any]) -> None:
        self._actions.append(action)

    def start(self) -> None:
        """Costs nothing where it `runs`."""
        self.runs = True
        try:
            threading.Thread(target=self._run, name="llm-perf", daemon=True).start()
        except RuntimeError as error:  # no more threads may be started
            log.failed("looking at an idle server", error)

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)
            for action in list(self._actions):
                try:
                    action()
                except Exception as error:
                    self._actions.remove(action)
                    log.failed("looking at an idle server", error)

    def _begin_anew(self) -> None:
        self.runs = not is_asked()


def is_asked() -> bool:
    """Is this a server, whose steps are counted from outside?"""
    return os.environ.get("LLM_PERF_STEPS") == "1"


ticker = Ticker()
