"""Lets `seen_ranges` see the ranges that a program makes through torch or through the nvtx package.

Ranges made in C++ (autograd's `emit_nvtx`) are not seen. Nobody needs to know which: a name is used only where the
timeline has as many ranges of it as were seen here.
"""

from __future__ import annotations

import itertools
import os
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

from .seen_ranges import ranges_seen

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # as `inspect` has them, which is slow to import


def into_torch(torch: Any) -> None:
    """See the ranges of `torch.cuda.nvtx`, and those of the annotation, which go the same way.

    Its functions in C are exchanged, not `range_push` itself: that is one torch.compile knows by its identity.
    """
    nvtx = getattr(torch._C, "_nvtx", None)
    if nvtx is None:
        return
    push, pop = nvtx.rangePushA, nvtx.rangePop

    @wraps(push)
    def range_push(name: str) -> Any:
        return _opened("", name, push, name)

    @wraps(pop)
    def range_pop() -> Any:
        result = pop()
        ranges_seen.end("")
        return result

    nvtx.rangePushA, nvtx.rangePop = range_push, range_pop
    start, end = getattr(nvtx, "rangeStartA", None), getattr(nvtx, "rangeEnd", None)
    if start is None or end is None or not _is_timed():
        return

    @wraps(start)
    def range_start(name: str) -> Any:
        return _started("", name, start(name))

    nvtx.rangeStartA, nvtx.rangeEnd = range_start, _ending(end)


def into_nvtx(package: ModuleType) -> None:
    """See the ranges of the nvtx package: its context manager, its decorator, its two functions and its domains."""
    inner = getattr(package, "nvtx", None)
    annotate, domain = getattr(package, "annotate", None), getattr(inner, "Domain", None)
    push, pop = getattr(package, "push_range", None), getattr(package, "pop_range", None)
    if inner is None or not isinstance(annotate, type) or push is None or pop is None:
        return  # another package of this name, or a version that works in another way
    if not _has(annotate, "__init__", "__enter__", "__exit__", "__call__"):
        return
    _into_annotate(annotate, getattr(inner, "dummy_domain", object()))
    if hasattr(domain, "push_range") and hasattr(domain, "pop_range"):
        _into_domain(domain)

    @wraps(push)
    def push_range(*given: Any, **named: Any) -> Any:
        domain = _given(named.get("domain", given[2] if len(given) > 2 else None))
        return _opened(domain, _given(named.get("message", given[0] if given else None)), push, *given, **named)

    @wraps(pop)
    def pop_range(*given: Any, **named: Any) -> Any:
        result = pop(*given, **named)
        ranges_seen.end(_given(named.get("domain", given[0] if given else None)))
        return result

    places: list[Any] = [package, inner]
    for place in places:
        place.push_range, place.pop_range = push_range, pop_range
    _into_get_domain(package)
    if _is_timed() and hasattr(package, "start_range") and hasattr(package, "end_range"):
        _into_start_end(places)


class _Made(int):
    """What a start/end range is known by where no tool is attached: then NVTX itself gives all of them the same."""


_numbers = itertools.count(1)


def _started(domain: Any, name: Any, real: Any) -> Any:
    """What the program is to end the range by. `real`: what NVTX says."""
    key = real or _Made(next(_numbers))
    return key if ranges_seen.open(domain, name, key) else real


def _ending(end: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(end)
    def end_range(range_id: Any) -> Any:
        result = None if isinstance(range_id, _Made) else end(range_id)
        ranges_seen.close(range_id)
        return result

    return end_range


def _into_start_end(places: list[Any]) -> None:
    start, end = places[0].start_range, _ending(places[0].end_range)

    @wraps(start)
    def start_range(*given: Any, **named: Any) -> Any:
        domain = _given(named.get("domain", given[2] if len(given) > 2 else None))
        return _started(domain, _given(named.get("message", given[0] if given else None)), start(*given, **named))

    for place in places:
        place.start_range, place.end_range = start_range, end


def _is_timed() -> bool:
    """Are ranges timed, so that they matter although no tool is attached?"""
    return bool(os.environ.get("LLM_PERF_TIMERS"))


def _can_be_timed(function: Any) -> bool:
    """A call of a generator or a coroutine takes no time, and what others take it for must not change."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", _GENERATOR)
    return _is_timed() and not flags & (_GENERATOR | _COROUTINE | _ASYNC_GENERATOR)


class _QuietDomain:
    """What `get_domain` gives where no tool is attached: its ranges go nowhere, but are seen."""

    def __init__(self, name: Any, silent: Any) -> None:
        self.name, self._silent, self._domain = name, silent, _given(name)

    def __getattr__(self, name: str) -> Any:
        """The silent domain does nothing, whatever it is given; it refuses attributes that are not its own."""
        found = getattr(self._silent, name)

        def silent(*given: Any, **named: Any) -> Any:
            return found(*(None if isinstance(one, SimpleNamespace) else one for one in given), **named)

        return silent if callable(found) else found

    def get_event_attributes(self, message: Any = None, *given: Any, **named: Any) -> Any:
        return SimpleNamespace(message=message)

    def push_range(self, attributes: Any = None, **named: Any) -> None:
        message = named["message"] if "message" in named else getattr(attributes, "message", None)
        ranges_seen.begin(self._domain, "" if message is None else message)

    def pop_range(self) -> None:
        ranges_seen.end(self._domain)

    def start_range(self, attributes: Any = None, **named: Any) -> Any:
        message = named["message"] if "message" in named else getattr(attributes, "message", None)
        return _started(self._domain, _given(message), 0)

    def end_range(self, range_id: Any) -> None:
        ranges_seen.close(range_id)


def _into_get_domain(package: Any) -> None:
    """Only what programs call: the package itself has to go on telling the silent domain from others."""
    get_domain, silent = getattr(package, "get_domain", None), getattr(package.nvtx, "dummy_domain", None)
    if get_domain is None or silent is None:
        return

    @wraps(get_domain)
    def named_domain(name: Any = None) -> Any:
        found = get_domain(name)
        return _QuietDomain(name, found) if found is silent and _is_timed() else found

    package.get_domain = named_domain


def _into_domain(domain: Any) -> None:
    """`get_domain(…)` gives an object of this class where a tool is attached."""
    push, pop = domain.push_range, domain.pop_range

    @wraps(push)
    def push_range(self: Any, *given: Any, **named: Any) -> Any:
        attributes = named.get("attributes", given[0] if given else None)
        registered = named.get("message", getattr(attributes, "message", None))
        name = _given(getattr(registered, "string", registered))
        return _opened(_given(self.name), name, push, self, *given, **named)

    @wraps(pop)
    def pop_range(self: Any, *given: Any, **named: Any) -> Any:
        result = pop(self, *given, **named)
        ranges_seen.end(_given(self.name))
        return result

    domain.push_range, domain.pop_range = push_range, pop_range


def _into_annotate(annotate: Any, silent: Any) -> None:
    """`silent`: the domain of ranges that go nowhere, as no tool is attached."""
    create, enter, leave, decorate = annotate.__init__, annotate.__enter__, annotate.__exit__, annotate.__call__

    @wraps(create)
    def __init__(self: Any, *given: Any, **named: Any) -> None:
        create(self, *given, **named)
        domain = named.get("domain", given[2] if len(given) > 2 else None)
        try:  # noqa: SIM105 - which costs as much as all the rest
            self.init_args = (named.get("message", given[0] if given else None), None, domain)
        except AttributeError:  # a class of others may have no room for it: its ranges are not counted
            pass

    # A decode step may have a hundred of these: no tuple is made or taken apart, and nothing called, that need not be.
    @wraps(enter)
    def __enter__(self: Any) -> Any:
        try:
            given = self.init_args
            message, domain = given[0], given[2]
        except (AttributeError, IndexError, TypeError):  # it was made before we came
            return enter(self)
        domain = "" if domain is None else domain
        ranges_seen.begin(domain, "" if message is None else message)
        try:
            if self.domain is silent:
                return self
        except AttributeError:  # another version
            pass
        try:
            return enter(self)
        except BaseException:
            ranges_seen.undo(domain)
            raise

    @wraps(leave)
    def __exit__(self: Any, kind: Any = None, error: Any = None, trace: Any = None) -> Any:
        try:
            domain = self.init_args[2]
        except (AttributeError, IndexError, TypeError):
            return leave(self, kind, error, trace)
        try:
            quiet = self.domain is silent
        except AttributeError:
            quiet = False
        result = False if quiet else leave(self, kind, error, trace)
        ranges_seen.end("" if domain is None else domain)
        return result

    @wraps(decorate)
    def __call__(self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        marked = decorate(self, function)
        if marked is function and not _can_be_timed(function):  # no tool is attached: nvtx leaves it as it is
            return marked
        message, _, domain, *_ = getattr(self, "init_args", ("", None, ""))
        domain, name = _given(domain), _given(message)
        if isinstance(name, str) and not name:
            name = getattr(function, "__name__", "")

        @wraps(function)
        def seen(*positional: Any, **named: Any) -> Any:
            ranges_seen.begin(domain, name)
            try:
                return marked(*positional, **named)
            finally:
                ranges_seen.end(domain)

        return seen

    keeps = "init_args" in getattr(getattr(create, "__code__", None), "co_names", ())  # from nvtx 0.2.9 on
    for method in (*(() if keeps else (__init__,)), __enter__, __exit__, __call__):
        setattr(annotate, method.__name__, method)


def _opened(domain: Any, name: Any, push: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Open a range by `push`; one that fails did not open."""
    ranges_seen.begin(domain, name)
    try:
        return push(*given, **named)
    except BaseException:
        ranges_seen.undo(domain)
        raise


def _given(word: Any) -> Any:
    """A name or a domain as `seen_ranges` counts them. Nothing is asked of what is no text: it may be anything."""
    return "" if word is None else word


def _has(kind: type, *methods: str) -> bool:
    """Are all these its own? `object` has an `__init__`, and every class can be called."""
    own = {name for base in kind.__mro__[:-1] for name in vars(base)}
    return own.issuperset(methods)
