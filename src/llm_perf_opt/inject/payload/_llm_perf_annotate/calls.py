"""Sees the calls of the outermost modules, and of the modules below them that have a name, and of no others.

`nn.Module` looks up `_compiled_call_impl` on itself at every call and calls what it finds there instead of its
forward; torch leaves it out of copies and pickles, and torch.compile does not look at it. The class attribute,
None in torch, becomes a descriptor that answers with a call of ours. A module that never needs one gets None as
an attribute of its own, which hides the descriptor: its calls cost what they always did.

What is known about a module is kept in tables by its identity, not on the module: copies, replicas and pickles
of a model are those of a model that was never annotated.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable

from torch._C import _get_tracing_state
from torch.compiler import (
    is_compiling,
    is_dynamo_compiling,  # a constant for torch.compile, which leaves out what follows
)

from . import log
from .model import Model
from .ranges import Pop, Push
from .stages import Stages, engine_threads, state
from .tree import Names, Place, places

ATTRIBUTE = "_compiled_call_impl"
# A model that changes all the time is not looked through without end.
_MOST_LOOKS = 8

Call = Callable[..., Any]
# What id() says, differently put: id() calls the audit hooks of the program, and some packages install slow ones.
identity: Callable[[Any], int] = object.__hash__


class Calls:
    """The descriptor, and the tables it answers from."""

    # Who runs the calls of outermost modules, where somebody does: module, what to call, its arguments.
    seen: Callable[[Any, Call, tuple[Any, ...], dict[str, Any]], Any] | None = None

    def __init__(self, stages: Stages, push: Push, pop: Pop, names: Names) -> None:
        self._stages = stages
        self._push = push
        self._pop = pop
        self._names = names
        # What to call instead of the module, by its identity: below another module, and as the outermost one.
        self._inner: dict[int, Call | None] = {}
        self._outer: dict[int, Call | None] = {}
        self._models: dict[int, Model] = {}
        self._named: dict[int, str] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __get__(self, module: Any, owner: Any = None) -> Call | None:
        # torch.compile reads this far, so it must stay plain: a closure it cannot read.
        if is_dynamo_compiling():
            return None
        table = self._outer if state.model is None else self._inner
        try:
            return table[identity(module)]
        except KeyError:
            return self._unknown(module)

    def _unknown(self, module: Any) -> Call | None:
        if module is None:  # asked of the class
            return None
        if state.model is not None:
            state.model.stale = True
            return None
        # DataParallel makes new ones for every call and runs them in threads of its own.
        if module.__dict__.get("_is_replica"):
            return None
        return functools.partial(self._first_call, module)

    def _first_call(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._learn_quietly(module):
            self._inner[identity(module)] = self._outer[identity(module)] = None
            self._keep_while_alive(module)
        call = self._outer.get(identity(module))
        return (call or module._call_impl)(*args, **kwargs)

    def _learn(self, module: Any) -> None:
        """Decide what the calls of this module and of those below it need."""
        if not _is_model(module):
            module.__dict__.setdefault(ATTRIBUTE, None)
            return
        key = identity(module)
        if key not in self._models:
            self._models[key] = Model(module)
            self._keep_while_alive(module)
        self._inner.setdefault(key, None)
        self._outer[key] = self._outermost(module)
        self._look_through(module)

    def _look_through(self, module: Any) -> None:
        model = self._models[identity(module)]
        model.stale = False
        model.looked_through += 1
        for place in places(module, self._names):
            if identity(place.module) not in self._alive:
                self._place(place)

    def _place(self, place: Place) -> None:
        module, key = place.module, identity(place.module)
        if place.name is None and not place.may_be_outermost:
            # Where a compiled call is set, there is nothing to hide.
            module.__dict__.setdefault(ATTRIBUTE, None)
            return
        self._keep_while_alive(module)
        if place.name is not None:
            self._named[key] = place.name
        named = self._inner[key] = None if place.name is None else self._below(module, place.name)
        if place.may_be_outermost:
            self._models[key] = Model(module)
            self._outer[key] = self._outermost(module)
        else:
            self._outer[key] = named

    def _keep_while_alive(self, module: Any) -> None:
        key = identity(module)

        def forget(_: Any) -> None:
            for table in (self._inner, self._outer, self._models, self._named, self._alive):
                table.pop(key, None)

        self._alive[key] = weakref.ref(module, forget)

    def _below(self, module: Any, name: str) -> Call:
        """A call with a range around it. It holds the module weakly: nothing lives longer because of us."""
        alive, push, pop = weakref.ref(module), self._push, self._pop

        def call(*args: Any, **kwargs: Any) -> Any:
            module: Any = alive()
            push(name)
            try:
                return module._call_impl(*args, **kwargs)
            finally:
                pop()

        return call

    def _outermost(self, module: Any) -> Call:
        alive, model, run_outermost = weakref.ref(module), self._models[identity(module)], self._run_outermost

        def call(*args: Any, **kwargs: Any) -> Any:
            module: Any = alive()
            return run_outermost(module, model, module._call_impl, args, kwargs)

        return call

    def _run_outermost(
        self, module: Any, model: Model, run: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # While a graph is traced nothing runs, and looking at sizes would become part of the graph.
        if _get_tracing_state() is not None or is_compiling():
            return run(*args, **kwargs)
        stage = name = None
        try:
            if model.stale and model.looked_through < _MOST_LOOKS:
                self._look_through(module)
            name = self._named.get(identity(module))
            generation = state.generation
            if generation is None:
                stage = None if state.step is not None or engine_threads else model.stage(module, args, kwargs)
            elif generation.model is module:
                generation.before_call()
            else:
                stage = model.name_in(generation.model, module)
            if state.graph is not None:
                state.graph.stage = stage
        except Exception as error:
            log.failed(f"naming a call of {type(module).__name__}", error)
        if stage is not None:
            self._stages.open(stage)
        try:
            if name is not None:
                self._push(name)
            state.model = model
            try:
                return run(*args, **kwargs) if self.seen is None else self.seen(module, run, args, kwargs)
            finally:
                state.model = None
                if name is not None:
                    self._pop()
        finally:
            if stage is not None:
                self._stages.close()

    def around(self, module: Any, compiled: Call) -> Call:
        """The compiled call of a module, as `Module.compile()` sets it on the module, with what its calls need."""
        alive, push, pop = weakref.ref(module), self._push, self._pop

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return compiled(*args, **kwargs)
            module = alive()
            if state.model is None:
                if identity(module) not in self._alive:
                    self._learn_quietly(module)
                model = self._models.get(identity(module))
                if model is not None:
                    return self._run_outermost(module, model, compiled, args, kwargs)
            name = self._named.get(identity(module))
            if name is None:
                return compiled(*args, **kwargs)
            push(name)
            try:
                return compiled(*args, **kwargs)
            finally:
                pop()

        return call

    def _learn_quietly(self, module: Any) -> bool:
        try:
            self._learn(module)
        except Exception as error:
            log.failed(f"looking through {type(module).__name__}", error)
            return False
        return True


def _is_model(module: Any) -> bool:
    """Whether calls of the module are worth a stage: not a loss, and not a single layer of torch."""
    if not module._modules and type(module).__module__.startswith("torch.nn."):
        return False
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def annotate(module_class: Any, calls: Calls) -> None:
    """Put the descriptor in place."""
    compile_ = module_class.compile

    @functools.wraps(compile_)
    def compile_and_see(self: Any, *args: Any, **kwargs: Any) -> None:
        compile_(self, *args, **kwargs)
        compiled = self.__dict__.get(ATTRIBUTE)
        if compiled is not None:
            self.__dict__[ATTRIBUTE] = calls.around(self, compiled)

    setattr(module_class, ATTRIBUTE, calls)
    module_class.compile = compile_and_see
