"""Lets `opened` see the ranges that a program makes through torch or through the nvtx package.

Ranges made in C++ (autograd's `emit_nvtx`) are not seen. Nobody needs to know which: a name is used only where the
timeline has as many ranges of it as were seen here.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any, Callable

from .opened import opened


def into_torch(torch: Any) -> None:
    """See the ranges of `torch.cuda.nvtx`, and those of the annotation, which go the same way.

    Its functions in C are exchanged, not `range_push` itself: that is one torch.compile knows by its identity.
    """
    nvtx = getattr(torch._C, "_nvtx", None)
    if nvtx is None:
        return
    push, pop = nvtx.rangePushA, nvtx.rangePop

    def range_push(name: str) -> Any:
        opened.begin("", name)
        return push(name)

    def range_pop() -> Any:
        result = pop()
        opened.end("")
        return result

    nvtx.rangePushA, nvtx.rangePop = range_push, range_pop


def into_nvtx(package: ModuleType) -> None:
    """See the ranges of the nvtx package: its context manager, its decorator, its two functions and its domains."""
    inner = getattr(package, "nvtx", None)
    annotate, domain = getattr(package, "annotate", None), getattr(inner, "Domain", None)
    push, pop = getattr(package, "push_range", None), getattr(package, "pop_range", None)
    if inner is None or not isinstance(annotate, type) or push is None or pop is None:
        return  # another package of this name, or a version that works in another way
    _into_annotate(annotate)
    if hasattr(domain, "push_range") and hasattr(domain, "pop_range"):
        _into_domain(domain)
    places = [package, inner]

    @wraps(push)
    def push_range(message: str | None = None, *more: Any, **named: Any) -> Any:
        domain = named.get("domain", more[1] if len(more) > 1 else None)
        opened.begin(domain or "", message or "")
        return push(message, *more, **named)

    @wraps(pop)
    def pop_range(domain: str | None = None) -> Any:
        result = pop(domain)
        opened.end(domain or "")
        return result

    for place in places:
        place.push_range, place.pop_range = push_range, pop_range


def _into_domain(domain: Any) -> None:
    """`get_domain(…)` gives an object of this class where a tool is attached."""
    push, pop = domain.push_range, domain.pop_range

    @wraps(push)
    def push_range(self: Any, attributes: Any = None, **named: Any) -> Any:
        registered = named.get("message", getattr(attributes, "message", None))
        opened.begin(self.name or "", getattr(registered, "string", registered) or "")
        return push(self, attributes, **named)

    @wraps(pop)
    def pop_range(self: Any) -> Any:
        result = pop(self)
        opened.end(self.name or "")
        return result

    domain.push_range, domain.pop_range = push_range, pop_range


def _into_annotate(annotate: Any) -> None:
    create, enter, leave, decorate = annotate.__init__, annotate.__enter__, annotate.__exit__, annotate.__call__

    @wraps(create)
    def __init__(self: Any, message: str | None = None, *more: Any, **named: Any) -> None:
        create(self, message, *more, **named)
        domain = named.get("domain", more[1] if len(more) > 1 else None)
        self._llm_perf_range = (domain or "", message or "")

    @wraps(enter)
    def __enter__(self: Any) -> Any:
        if (named := getattr(self, "_llm_perf_range", None)) is not None:  # else it was made before we came
            opened.begin(*named)
        return enter(self)

    @wraps(leave)
    def __exit__(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if (named := getattr(self, "_llm_perf_range", None)) is not None:
            opened.end(named[0])
        return result

    @wraps(decorate)
    def __call__(self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        marked = decorate(self, function)
        if marked is function:  # no tool is attached: nvtx leaves it as it is
            return marked
        domain, message = getattr(self, "_llm_perf_range", ("", ""))
        name = message or getattr(function, "__name__", "")

        @wraps(function)
        def seen(*positional: Any, **named: Any) -> Any:
            opened.begin(domain, name)
            try:
                return marked(*positional, **named)
            finally:
                opened.end(domain)

        return seen

    annotate.__init__, annotate.__enter__, annotate.__exit__, annotate.__call__ = (
        __init__,
        __enter__,
        __exit__,
        __call__,
    )
