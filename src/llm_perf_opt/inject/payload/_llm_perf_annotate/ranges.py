"""Opens and closes NVTX ranges, through whatever this program has for it.

Those of the annotation are of domain `LLM`, like the ranges of the built-in models: the same patterns find them. `torch`
itself brings NVTX in its CUDA builds, so nothing has to be installed, but knows the default domain only: where nothing
else is there, the domain stands in the name, `LLM@prefill`. LLM_PERF_ANNOTATE_SINK=FILE
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
from .nvtx_library import open_domain
from .seen_ranges import ranges_seen

Push = Callable[[str], Any]
Pop = Callable[[], Any]
Ways = tuple[str, Push, Pop]  # after the name of what opens and closes ranges

DOMAIN = "LLM"


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


def choose(torch: Any, domain: str = "") -> Ways | None:
    """What opens and closes ranges of a domain here; None where nothing can."""
    found = _of_torch(torch) or _of_package()
    seen = partial(ranges_seen.begin, domain), partial(ranges_seen.end, domain)
    if domain:
        found = _of_domain(domain, found)
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


def _of_torch(torch: Any) -> Ways | None:
    nvtx = getattr(torch._C, "_nvtx", None)
    return None if nvtx is None else ("torch", nvtx.rangePushA, nvtx.rangePop)


def _of_package() -> Ways | None:
    try:
        import nvtx
    except ImportError:
        return None
    return "nvtx", nvtx.push_range, nvtx.pop_range


def _of_domain(domain: str, default: Ways | None) -> Ways | None:
    """`default`: what opens ranges of the default domain."""
    found = _domain_of_package(domain)
    if found is not None:
        return found
    opened = open_domain(domain)
    if opened is not None:
        return "NVTX library", *_counted(domain, *opened)
    if default is None:
        return None
    # Nobody may be watching; counted as what they are all the same, and not under the name they get here.
    source, push, pop = default
    plain_push, plain_pop = getattr(push, "__wrapped__", push), getattr(pop, "__wrapped__", pop)
    return source, *_counted(domain, lambda name: plain_push(f"{domain}@{name}"), plain_pop)


def _domain_of_package(name: str) -> Ways | None:
    """Through the nvtx package, whose ranges `hooks` counts; what it has for a domain that no tool sees has no handle."""
    try:
        import nvtx

        domain = nvtx.get_domain(name)
        if getattr(domain, "handle", None) is None:
            return None
    except (ImportError, AttributeError):
        return None
    attributes: dict[str, Any] = {}

    def push(name: str) -> None:
        if name not in attributes:
            attributes[name] = domain.get_event_attributes(message=name)
        domain.push_range(attributes[name])

    return "nvtx", push, domain.pop_range


def _counted(domain: str, push: Push, pop: Pop) -> tuple[Push, Pop]:
    """Have ranges counted that no hook sees."""

    def push_counted(name: str) -> None:
        ranges_seen.begin(domain, name)
        push(name)

    def pop_counted() -> None:
        pop()
        ranges_seen.end(domain)

    return (push_counted, pop_counted) if os.environ.get("LLM_PERF_RANGES") == "1" else (push, pop)
