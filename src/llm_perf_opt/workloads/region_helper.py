"""`llm_perf_opt.region`: marks a part of one's own program, as a block or as a decorator.

The same ranges as those of the built-in models (`marks.py`): NVTX for nsys and ncu, `record_function` while PyTorch's
profiler records. Without the packages for it, and with nobody watching, it does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar

from llm_perf_opt.workloads.marks import mark

F = TypeVar("F", bound=Callable[..., Any])


class Region(ContextDecorator):
    """A range of domain LLM for as long as the block, or each call of the function, runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: list[Any] = []  # one for each entry: a block may be entered inside itself

    def __enter__(self) -> Region:
        opened = mark(self.name)
        opened.__enter__()
        self._open.append(opened)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._open.pop().__exit__(*failure)

    def __call__(self, function: F) -> F:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"{function.__name__} is a coroutine or a generator: it is left and entered again while others run, "
                "which a range cannot follow. Put `with region(...)` around the work inside it."
            )
        return super().__call__(function)

    def _recreate_cm(self) -> Region:
        return Region(self.name)  # calls may nest, and come from several threads


def region(what: Any) -> Any:
    """See `llm_perf_opt.region`."""
    if isinstance(what, str):
        return Region(what)
    if callable(what):
        return Region(what.__name__)(what)
    raise TypeError(f"region takes a name or a function, not {type(what).__name__}")
