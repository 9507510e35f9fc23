"""What a program did that only comes once: compilation, graph capture, first use. Noted as it happens.

Lines of JSON, `{"why": …, "from": …, "to": …}`, in nanoseconds of the monotonic clock: what the report says the
warm-up was. Nothing here is called while ranges of a warm program open and close.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from time import monotonic_ns
from typing import Any

from . import log

COMPILATION, CAPTURE, FIRST_USE = "compilation", "graph capture", "first use"


def cpu_times() -> tuple[int, int] | None:
    """Nanoseconds that the threads of the process ran, and waited for a CPU that others had; None: not known here."""
    ran = waited = 0
    with contextlib.suppress(OSError):  # another system
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - pathlib is slow to import
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:  # noqa: PTH123 - as above
                    numbers = file.read().split()
                ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
    return (ran, waited) if ran else None


class Evidence:
    """Of one process; a forked child goes on with a file of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.capturing = 0  # graphs that are being captured by whichever thread
        self._captured_from = self._compiled_from = 0
        self._compiling = 0

    def note(self, **facts: Any) -> None:
        with contextlib.suppress(Exception):  # it explains times, and must not cost them
            log.append(self.path, json.dumps(facts))

    def watch(self, torch: Any) -> None:
        """Be told of graph capture, and of compilation once somebody compiles."""
        try:
            self._watch_capture(torch.cuda.CUDAGraph)
        except Exception as error:
            log.failed("watching for graph capture", error, of="ranges")
        from . import imports  # this file is read where nothing of torch is, too

        imports.when_imported({"torch._dynamo.callback": self._watch_compilation})

    def _watch_capture(self, graph_class: Any) -> None:
        begin, end = graph_class.capture_begin, graph_class.capture_end

        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.capturing:
                self._captured_from = monotonic_ns()
            self.capturing += 1
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                self.capturing -= 1
                raise

        @functools.wraps(end)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return end(graph, *args, **kwargs)
            finally:
                self.capturing = max(self.capturing - 1, 0)
                self.note(why=CAPTURE, **{"from": self._captured_from, "to": monotonic_ns()})

        graph_class.capture_begin, graph_class.capture_end = capture_begin, capture_end

    def _watch_compilation(self, callbacks: Any) -> None:
        def started(*_: Any) -> None:
            if not self._compiling:
                self._compiled_from = monotonic_ns()
            self._compiling += 1

        def ended(*_: Any) -> None:
            self._compiling = max(self._compiling - 1, 0)
            if not self._compiling:
                self.note(why=COMPILATION, **{"from": self._compiled_from, "to": monotonic_ns()})

        callbacks.callback_handler.register_start_callback(started)
        callbacks.callback_handler.register_end_callback(ended)

    # -- the first instance of a range ------------------------------------------------------------

    def first_use(self, memory: Any) -> tuple[int, int | None]:
        """What grows when things are used for the first time: modules of Python, memory taken from the system."""
        return len(sys.modules), 0 if memory is None else memory.mapped()

    def end_first_use(self, before: tuple[int, int | None], start: int, end: int, memory: Any) -> None:
        modules, mapped = self.first_use(memory)
        took_memory = mapped is not None and before[1] is not None and mapped > before[1]
        if modules > before[0] or took_memory:
            self.note(why=FIRST_USE, **{"from": start, "to": end})
