"""Opens and closes NVTX ranges of the default domain, through whatever this program has for it.

`torch` itself brings NVTX in its CUDA builds, so nothing has to be installed. LLM_PERF_ANNOTATE_SINK=FILE
writes every push and pop as a line of JSON instead of guessing: it shows what would be annotated, also on a
machine without a GPU.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from json.encoder import encode_basestring_ascii as quoted  # in C: torch.compile does not look into it
from typing import Any, Callable

from . import log
from .seen_ranges import ranges_seen

Push = Callable[[str], Any]
Pop = Callable[[], Any]


class Sink(threading.local):
    """Writes pushes and pops of the process to a file, in order, with the time on the monotonic clock.

    The file is opened anew for every line: slow, but right after a fork, a crash, or in a program that closes
    files it does not know.
    """

    path: str
    open_names: list[str]

    def __init__(self, path: str) -> None:  # threading.local: runs once in every thread
        self.path = path
        self.open_names = []

    def push(self, name: str) -> None:
        self.open_names.append(name)
        self._write("push", name)

    def pop(self) -> None:
        self._write("pop", self.open_names.pop() if self.open_names else None)

    def _write(self, event: str, name: str | None) -> None:
        who = f'"pid": {os.getpid()}, "thread": {threading.get_ident()}'
        what = f'"event": "{event}", "name": {"null" if name is None else quoted(name)}'
        try:
            log.append(self.path, f'{{"time_ns": {time.monotonic_ns()}, {who}, {what}}}')
        except OSError as error:
            log.trouble(f"{self.path} cannot be written: {error.strerror}.")


def choose(torch: Any) -> tuple[str, Push, Pop] | None:
    """What opens and closes ranges here, after its name; None where nothing can."""
    found = _of_torch(torch) or _of_package()
    seen = partial(ranges_seen.begin, ""), partial(ranges_seen.end, "")
    if found is None and os.environ.get("LLM_PERF_TIMERS"):  # they need no NVTX
        found = ("timers", *seen)
    path = os.environ.get("LLM_PERF_ANNOTATE_SINK")
    if not path:
        return found
    sink = Sink(path)
    source, push, pop = found or ("file", *seen)

    def push_both(name: str) -> None:
        push(name)  # first: it may end the program, and then no range stays open
        sink.push(name)

    def pop_both() -> None:
        pop()
        sink.pop()

    return f"{source} and file" if found else source, push_both, pop_both


def _of_torch(torch: Any) -> tuple[str, Push, Pop] | None:
    nvtx = getattr(torch._C, "_nvtx", None)
    return None if nvtx is None else ("torch", nvtx.rangePushA, nvtx.rangePop)


def _of_package() -> tuple[str, Push, Pop] | None:
    try:
        import nvtx
    except ImportError:
        return None
    return "nvtx", nvtx.push_range, nvtx.pop_range
