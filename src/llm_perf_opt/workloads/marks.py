"""Marks a stretch of work as a range of domain `LLM`, for every profiler that may be watching.

NVTX ranges serve nsys and ncu; while PyTorch's own profiler records in this process, the same range is also
a `record_function` named `LLM@<name>`, so that its trace has the regions nsys sees. A decode step may take
30 µs, so a range that nobody watches has to cost next to nothing: one domain object, attributes made once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

DOMAIN = "LLM"
_NOTHING = nullcontext()
_paused = 0
_domain: Any = None
_attributes: dict[str, Any] = {}


def _open_domain() -> Any:
    global _domain
    try:
        import nvtx
    except ImportError:
        _domain = SimpleNamespace(
            get_event_attributes=lambda message: None, push_range=lambda attributes: None, pop_range=lambda: None
        )
    else:
        _domain = nvtx.get_domain(DOMAIN)
    return _domain


class _Range:
    """One range, for as long as the block runs."""

    __slots__ = ("_name", "_recorded")

    def __init__(self, name: str) -> None:
        self._name = name
        self._recorded: Any = None

    def __enter__(self) -> None:
        domain = _domain or _open_domain()
        name = self._name
        if name not in _attributes:
            _attributes[name] = domain.get_event_attributes(message=name)
        domain.push_range(_attributes[name])
        torch = sys.modules.get("torch")  # never imported for this: without it nothing can be recording
        if torch is not None and torch.autograd._profiler_enabled():
            self._recorded = torch.profiler.record_function(f"{DOMAIN}@{name}")
            self._recorded.__enter__()

    def __exit__(self, *failure: object) -> None:
        if self._recorded is not None:
            self._recorded.__exit__(*failure)
            self._recorded = None
        _domain.pop_range()


def mark(name: str) -> AbstractContextManager[None]:
    """A range of domain `LLM` around a block: `with mark("prefill"): …`"""
    return _NOTHING if _paused else _Range(name)


@contextmanager
def paused() -> Iterator[None]:
    """No range is opened inside: for warm-up, which must not be counted as the work it prepares."""
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1
