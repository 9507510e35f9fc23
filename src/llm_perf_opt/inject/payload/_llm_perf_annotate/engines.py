"""Stages of serving engines: methods of `engine_targets` are called as what they are.

They are looked up when the engine's module has been imported. One that is absent or takes other arguments is noted,
and told where something is lost by it; the engine runs as it is. Inside a step, calls of models and replays of CUDA
graphs open no stage of their own: what they are, the engine knows better than shapes do.
"""

from __future__ import annotations

import functools
import os
import sys
from _thread import get_ident
from types import ModuleType
from typing import Any, Callable

from . import engine_batches, log
from .engine_batches import STEP, Step
from .engine_targets import TARGETS, Target
from .stages import Stages, engine_threads, state

# No steps in there: they are of nobody's requests, or passes that guess, some of them of the large model itself.
_QUIET = ("warmup", "graph_capture", "draft")
_BY_CALL, _SCHEDULES = ":", ":schedule_"
_MOST_NUMBERS = 4000  # ranges that differ in numbers alone; a server that runs for days has no end of them
_VARIABLE = 0x04  # of the flags of a function: *args
_met: set[str] = set()

Read = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def annotate(module: ModuleType, stages: Stages) -> None:
    """Have the engine's methods in this module called as stages, as far as they are there."""
    found: dict[str, list[str]] = {"hooked": [], "absent": [], "changed": []}
    targets = [target for target in TARGETS if target.module == module.__name__]
    for target in targets:
        found[_hook(module, target, stages)].append(target.method)
    for target in targets:
        if target.method in found["changed"] or (target.method in found["absent"] and not target.optional):
            what = "is not there" if target.method in found["absent"] else "takes other arguments"
            log.trouble(
                f"{_release(target.engine)}: {target.method} of {target.module} {what}, so that its calls are not "
                "named. Steps without a name are called step, forward or prefill, by the call of the model."
            )
    log.note("engine", engine=targets[0].engine, release=_release(targets[0].engine), module=module.__name__, **found)


def _hook(module: ModuleType, target: Target, stages: Stages) -> str:
    owner_name, _, name = target.method.partition(".")
    owner = getattr(module, owner_name, None)
    method = vars(owner).get(name) if isinstance(owner, type) else None
    if not callable(method):
        return "absent"
    if not _takes(method, target.takes):
        return "changed"
    setattr(owner, name, _as_stage(method, target, stages))
    return "hooked"


def _takes(method: Any, names: tuple[str, ...]) -> bool:
    """Whether a method has these first, after self, or takes anything, as a decorator does; `inspect` is slow to import."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    code = getattr(method, "__code__", None)
    if not names or code is None:
        return not names
    return bool(code.co_varnames[1 : 1 + len(names)] == names or (code.co_flags & _VARIABLE and code.co_argcount < 2))


def _as_stage(method: Callable[..., Any], target: Target, stages: Stages) -> Callable[..., Any]:
    stage = target.stage
    read: Read | None = getattr(engine_batches, stage[1:]) if stage.startswith(_BY_CALL) else None

    @functools.wraps(method)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        around = state.step
        step = stage if read is None else _step(read, target, self, args, kwargs)
        name = step.name if isinstance(step, Step) else step
        if name is None or around in _QUIET or around == name:
            return method(self, *args, **kwargs)
        stream = step.stream if isinstance(step, Step) else None
        _on(stream, stages.open, name, _numbers(step) if isinstance(step, Step) else "")
        state.step = name
        if around is None:
            engine_threads.add(get_ident())
        try:
            return method(self, *args, **kwargs)
        finally:
            state.step = around
            if around is None:
                engine_threads.discard(get_ident())
            _on(stream, stages.close)

    return marked


def _step(read: Read, target: Target, engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return read(engine, args, kwargs)
    except Exception as error:
        is_step = not target.stage.startswith(_SCHEDULES)
        log.trouble(
            f"{_release(target.engine)}: what {target.method} runs could not be read ({type(error).__name__}: {error}); "
            f"its calls are {'called step' if is_step else 'not named'}."
        )
        return STEP if is_step else None


def _numbers(step: Step) -> str:
    numbers = step.numbers
    if numbers not in _met:
        if len(_met) >= _MOST_NUMBERS:
            return ""
        _met.add(numbers)
    return numbers


def _on(stream: Any, action: Callable[..., Any], *args: Any) -> None:
    """Open or close a range, with its events on a stream where ranges have them."""
    if stream is None or not os.environ.get("LLM_PERF_TIMERS"):
        action(*args)
        return
    with sys.modules["torch"].cuda.stream(stream):
        action(*args)


def _release(engine: str) -> str:
    version = getattr(sys.modules.get(engine), "__version__", "")
    return f"{engine} {version}".strip()
