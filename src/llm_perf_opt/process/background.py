"""Background tasks of a run: tables that no step waits for, questions whose answers are needed later.

The work is done in threads, what came of it is noted by whoever owns the run, in the thread that writes its
manifest: `settle` notes what has ended, `wait` the rest too. Nothing outlives `end`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """Tasks that go on while the steps of a run do. All methods are for one thread, that of the run."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._stop = threading.Event()
        self._open: list[tuple[Future[Any], Callable[[Any], None]]] = []

    def start(self, work: Callable[[threading.Event], T], note: Callable[[T], None]) -> None:
        """Begin a task, which ends early when its event is set; `note` is called with what it returned."""
        if self._pool is None:  # a table that takes its time must not keep a question waiting
            self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="background")
        self._open.append((self._pool.submit(work, self._stop), note))

    def settle(self) -> None:
        """Note what has ended, without waiting."""
        for entry in [entry for entry in self._open if entry[0].done()]:
            self._open.remove(entry)
            future, note = entry
            # What fails here is something no step waits for: it has no result, and the run goes on.
            if not future.cancelled() and future.exception() is None:
                note(future.result())

    def wait(self) -> None:
        """Wait for everything, and note it."""
        for future, _ in list(self._open):
            future.exception()  # handled when it is noted
        self.settle()

    def end(self) -> None:
        """Stop what still goes on, and note how far it came. More work may be started afterwards."""
        self._stop.set()
        for future, _ in self._open:
            future.cancel()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._stop = threading.Event()
        self.settle()
