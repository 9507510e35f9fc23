"""Calls of a model as CUDA graphs: what a graph reads stays where it was captured, whatever the program passes.

Nothing here knows a model. A call is told by the shapes of its tensors and by its other arguments; what changes on the
host between two calls (a counter of a cache) is in no graph, so that such calls are left as they are.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
import weakref
from typing import Any

_WARM = 2  # calls before one is captured: cuBLAS and the allocator have to have settled
_MOST_GRAPHS = 8
_ROUND = 64  # sizes of caches are multiples of this
_MOST_SHAPES = 256
_PLAIN = (int, float, str, bool, type(None))
_DEVICE = "cuda"


class Graphs:
    """Of all models of the program."""

    def __init__(self, program: Any) -> None:
        self._program, self._torch = program, program.torch
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph | None] = {}  # None: this one cannot be captured
        self._pool: Any = None
        self._shapes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # of caches

    def fix_shapes(self, model: Any, kwargs: dict[str, Any]) -> None:
        """Of a `generate()`: a cache that does not grow, and no compilation, which that would bring with it."""
        if kwargs.get("past_key_values") is None and kwargs.get("use_cache", True):
            kwargs.setdefault("cache_implementation", "static")
            kwargs["disable_compile"] = True
            # One size for all texts, or each longer prompt would need a graph of its own: transformers never takes
            # less than it took before.
            model._previous_max_cache_length = max(getattr(model, "_previous_max_cache_length", -1), self._size())

    def call(self, module: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        torch = self._torch
        if torch.is_grad_enabled():
            return self._as_it_is("its calls keep gradients", run, args, kwargs)
        kwargs = self._with_fixed_cache(module, kwargs)
        given = _Given(torch, self._shapes, module, args, kwargs)
        if given.why_not:
            return self._as_it_is(given.why_not, run, args, kwargs)
        graph = self._graphs.get(given.key, self)
        if isinstance(graph, _Graph):
            return graph.replay(given)
        seen = self._seen[given.key] = self._seen.get(given.key, 0) + 1
        if graph is None or seen <= _WARM or len(self._graphs) >= _MOST_GRAPHS:
            if len(self._seen) > _MOST_SHAPES:
                self._seen.clear()
            host = given.host_state()
            result = run(*args, **kwargs)
            if given.host_state() != host:
                self._note("its cache counts on the host")
                self._graphs[given.key] = None
            return result
        return self._capture(given, run, args, kwargs)

    def _with_fixed_cache(self, module: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A loop of one's own begins with no cache, and goes on with the one it is given back: of fixed size, then."""
        given, library = kwargs.get("past_key_values"), sys.modules.get("transformers")
        is_new = given is None or (type(given).__name__ == "DynamicCache" and not given.get_seq_length())
        if not (is_new and kwargs.get("use_cache") and self._program.longest and hasattr(module, "generation_config")):
            return kwargs
        if library is None or self._program.in_generate:
            return kwargs
        self._program.count("caches of fixed size")
        return {**kwargs, "past_key_values": library.StaticCache(config=module.config, max_cache_len=self._size())}

    def _size(self) -> int:
        """Of a cache for the longest text of an earlier run."""
        longest: int = self._program.longest
        return (longest // _ROUND + 1) * _ROUND

    def _capture(self, given: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        torch = self._torch
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        stream, host, around = torch.cuda.current_stream(), given.host_state(), sys.exc_info()[1]
        found: _Graph | None = None
        why = ""
        try:
            found = _Graph(torch, given, run, self._pool)
        except Exception as error:
            why = _first_reason(error, around)
        self._graphs[given.key] = found
        if found is None:  # what the error held is gone: torch has given back what it does by itself
            self._recover(stream)
            given.set_host_state(host)
            return self._as_it_is(f"it cannot be captured: {why}", run, args, kwargs)
        self._program.count("calls captured")
        return found.replay(given)

    def _recover(self, stream: Any) -> None:
        """What torch leaves as it was in the middle of a capture that failed: the rest of the program needs it.

        `torch.cuda.graph` does not go back to the stream it came from, random numbers of the GPU stay those of a
        capture ("Offset increment outside graph capture"), and memory is still taken from the pool and kept in it.
        """
        torch = self._torch
        torch.cuda.set_stream(stream)
        device, pool, self._pool = torch.cuda.current_device(), self._pool, None  # "already recording to mempool_id"
        with contextlib.suppress(Exception):  # it got as far as that
            torch._C._cuda_endAllocateToPool(device, pool)
            if not any(self._graphs.values()):  # no other graph has memory of it
                torch._C._cuda_releasePool(device, pool)
        for generator in torch.cuda.default_generators:
            generator.graphsafe_set_state(generator.clone_state())
        torch.cuda.synchronize()

    def _as_it_is(self, why: str, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._note(why)
        return run(*args, **kwargs)

    def _note(self, why: str) -> None:
        self._program.count(f"no graph: {why}")


class _Given:
    """The arguments of one call, apart: tensors, a cache, and all the rest."""

    def __init__(self, torch: Any, shapes: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from torch.utils import _pytree

        self.tree = _pytree
        leaves, self.spec = _pytree.tree_flatten((args, kwargs), is_leaf=_is_cache)
        self.leaves = leaves
        self.why_not = ""
        self.cache: Any = None
        parts: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type != _DEVICE:
                    self.why_not = "it is given tensors on the host"
                parts.append((tuple(leaf.shape), leaf.dtype))
            elif _is_cache(leaf):
                if self.cache is not None or not _has_fixed_size(leaf):
                    self.why_not = "its cache grows with each call"
                self.cache = leaf
                shape = shapes.get(leaf) or _cache_shape(torch, leaf)
                if shape:
                    shapes[leaf] = shape
                else:
                    self.why_not = self.why_not or "its cache is empty yet"
                parts.append(shape)
            elif isinstance(leaf, (*_PLAIN, torch.dtype)):
                parts.append(leaf)
            else:
                self.why_not = f"it is given a {type(leaf).__name__}"
        modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled(_DEVICE)
        self.key = (object.__hash__(module), modes, tuple(kwargs), tuple(parts))

    def host_state(self) -> list[Any]:
        """What a cache keeps in Python."""
        layers = self.cache.layers if self.cache is not None else ()
        return [
            [(name, value) for name, value in vars(layer).items() if isinstance(value, (int, float, bool))]
            for layer in layers
        ]

    def set_host_state(self, state: list[Any]) -> None:
        for layer, values in zip(self.cache.layers if self.cache is not None else (), state):
            vars(layer).update(values)


class _Graph:
    """One captured call."""

    def __init__(self, torch: Any, given: _Given, run: Any, pool: Any) -> None:
        self._torch = torch
        self._inputs = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in given.leaves]
        self._buffers = _cache_tensors(torch, given.cache)
        self._owner = weakref.ref(given.cache) if given.cache is not None else None
        args, kwargs = given.tree.tree_unflatten(self._inputs, given.spec)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            output = run(*args, **kwargs)
        self._made = output if dataclasses.is_dataclass(output) and not hasattr(output, "keys") else None
        if self._made is not None:  # a class of the program's own
            output = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
        leaves, self._spec = given.tree.tree_flatten(output, is_leaf=_is_cache)
        if odd := [leaf for leaf in leaves if not (_is_cache(leaf) or isinstance(leaf, (*_PLAIN, torch.Tensor)))]:
            raise TypeError(f"its output is a {type(odd[0]).__name__}")
        # The cache of the call that was captured must not live on: each result gets the one it was called with.
        self._outputs = [_CACHE if leaf is given.cache and leaf is not None else leaf for leaf in leaves]
        self._inputs = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in self._inputs]

    def replay(self, given: _Given) -> Any:
        tensor = self._torch.Tensor
        for own, new in zip(self._inputs, given.leaves):
            if own is not None:
                own.copy_(new)
        if given.cache is not None:
            self._move_in(given.cache)
        self._graph.replay()
        found = [
            given.cache if leaf is _CACHE else leaf.clone() if isinstance(leaf, tensor) else leaf
            for leaf in self._outputs
        ]
        result = given.tree.tree_unflatten(found, self._spec)
        if self._made is None:
            return result
        made = copy.copy(self._made)
        for name, value in result.items():
            object.__setattr__(made, name, value)
        return made

    def _move_in(self, cache: Any) -> None:
        """Have a cache keep its contents where the graph works."""
        owner = self._owner() if self._owner is not None else None
        if owner is cache and _holds(cache, self._buffers):
            return
        if owner is not None and owner is not cache and _holds(owner, self._buffers):
            _put(owner, [{name: own.clone() for name, own in layer.items()} for layer in self._buffers])
        for mine, theirs in zip(self._buffers, _cache_tensors(self._torch, cache)):
            for name, own in mine.items():
                if theirs[name] is not own:
                    own.copy_(theirs[name])
        _put(cache, self._buffers)
        self._owner = weakref.ref(cache)


class _CACHE:
    """Stands for the cache in an output."""


def _first_reason(error: BaseException, around: BaseException | None) -> str:
    """Of errors that led to one another: the last is that the capture was invalidated, whatever did so.

    `around`: the one that the program was handling all the while.
    """
    while error.__context__ not in (None, around):
        error = error.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _is_cache(value: Any) -> bool:
    return isinstance(getattr(value, "layers", None), list) and hasattr(value, "get_seq_length")


def _has_fixed_size(cache: Any) -> bool:
    return "Static" in type(cache).__name__ or all("Static" in type(layer).__name__ for layer in cache.layers)


def _cache_tensors(torch: Any, cache: Any) -> list[dict[str, Any]]:
    layers = cache.layers if cache is not None else ()
    return [
        {n: t for n, t in vars(layer).items() if isinstance(t, torch.Tensor) and t.device.type == _DEVICE}
        for layer in layers
    ]


def _cache_shape(torch: Any, cache: Any) -> tuple[Any, ...]:
    """Nothing where a layer has no memory yet: it would be taken from that of the graph."""
    if not all(getattr(layer, "is_initialized", True) for layer in cache.layers):
        return ()
    return tuple(tuple((n, tuple(t.shape), t.dtype) for n, t in one.items()) for one in _cache_tensors(torch, cache))


def _holds(cache: Any, buffers: list[dict[str, Any]]) -> bool:
    name = next(iter(buffers[0]), "")
    return bool(name) and vars(cache.layers[0]).get(name) is buffers[0][name]


def _put(cache: Any, buffers: list[dict[str, Any]]) -> None:
    for layer, tensors in zip(cache.layers, buffers):
        vars(layer).update(tensors)
