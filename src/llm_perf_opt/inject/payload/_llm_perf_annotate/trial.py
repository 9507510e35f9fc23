"""Levers that are pulled in this process, what they did, and what the program computed; nothing outlives the process.

A trial (`llm-perf try`) runs the program as it is and with levers, and says which by LLM_PERF_LEVERS: files with two
functions, `apply(program)` when torch is there and `evidence(program)` when the process ends. `program` is the object
of this file: what levers need of a process without knowing how it is watched.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import json
import os
import sys
import time
from contextlib import ExitStack
from typing import Any, Callable

from . import calls, log
from .outputs import Outputs
from .repeats import Repeats, can_be_repeated
from .stages import state
from .step_profile import StepProfile

_MOST_MODELS = 16
_PACKAGES = ("site-packages", "dist-packages", "_llm_perf_annotate")
Applied = tuple[bool, str]


class Program:
    """This process, as levers see it."""

    def __init__(self, torch: Any, folder: str, outputs: Outputs | None) -> None:
        self.torch = torch
        self.outputs = outputs
        self.counts: dict[str, int] = {}  # what the program did, and how often: what levers need, and evidence
        self.places: dict[str, str] = {}  # the line of the program that did so first
        self.models: list[str] = []  # names of the outermost modules
        self.longest = int(os.environ.get("LLM_PERF_LONGEST") or 0)  # tokens in a cache, as an earlier run had them
        self.levers: list[tuple[str, Any, str]] = []  # name, module, why it could not be pulled
        self.refusal = ""  # why `generate()` would not run as a lever has it
        self._folder = folder
        self._seen: set[int] = set()
        self._on_model: list[Callable[[Any], None]] = []
        self._around: list[Callable[[Any], Any]] = []
        self._on_generate: list[Callable[[Any, dict[str, Any]], None]] = []
        self._instead: Callable[..., Any] | None = None
        step = int(os.environ.get("LLM_PERF_STEP") or 0)
        self._step = StepProfile(torch, step) if step else None
        self._repeats = Repeats(torch, os.environ.get("LLM_PERF_REPEAT", ""))
        self._collections = 0

    # -- for levers ---------------------------------------------------------------------------------

    def on_model(self, action: Callable[[Any], None]) -> None:
        """Have `action` called with each outermost module, before its first call."""
        self._on_model.append(action)

    def around_calls(self, context: Callable[[Any], Any]) -> None:
        """Run each call of an outermost module in what `context(module)` gives: a context manager, or None."""
        self._around.append(context)

    def instead_of_calls(self, call: Callable[..., Any]) -> None:
        """Have `call(module, run, args, kwargs)` give the result of each call of an outermost module."""
        self._instead = call

    def on_generate(self, action: Callable[[Any, dict[str, Any]], None]) -> None:
        """Have `action` called with the model and the keyword arguments of each `generate()`, which it may change."""
        self._on_generate.append(action)

    @property
    def in_generate(self) -> bool:
        return state.generation is not None

    @staticmethod
    def is_unaligned(layer: Any) -> bool:
        """Do rows of its product begin elsewhere than at multiples of 16 bytes?"""
        return any(size * layer.weight.dtype.itemsize % 16 for size in layer.weight.shape)

    def count(self, what: str, times: int = 1) -> None:
        if times and what not in self.places:
            self.places[what] = _own_line()
        self.counts[what] = self.counts.get(what, 0) + times

    # -- what it sees -------------------------------------------------------------------------------

    def run_outermost(self, module: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of an outermost module."""
        if calls.identity(module) not in self._seen:
            self._meet(module)
            # A lever may have put a compiled call there; it counts from this call on.
            run = module.__dict__.get(calls.ATTRIBUTE) or run
        self.count("calls")
        if self._step is not None:
            self._step.before_call(self.counts["calls"])
        if not module.training:
            self.count("calls outside training")
        if self.torch.is_grad_enabled():
            self.count("calls in training" if module.training else "calls with gradients")
        cache = kwargs.get("past_key_values")
        if state.generation is not None and "Static" in type(getattr(cache, "self_attention_cache", cache)).__name__:
            self.count("calls with a static cache")
        with ExitStack() as around:
            for context in self._around:
                manager = context(module)
                if manager is not None:
                    around.enter_context(manager)
            result = run(*args, **kwargs) if self._instead is None else self._instead(module, run, args, kwargs)
        self._see_cache(result)
        if self.outputs is not None:
            self.outputs.called(result, args, kwargs)
        return result

    def _see_cache(self, result: Any) -> None:
        cache = getattr(result, "past_key_values", None)
        if (
            cache is None or "Static" in type(cache).__name__
        ):  # may be under torch.compile, which would compile the question
            return
        length = getattr(cache, "get_seq_length", int)()
        if type(length) is int and length > self.counts.get(
            "longest cache", 0
        ):  # no tensor: that would wait for the GPU
            self.counts["longest cache"] = length

    def _meet(self, module: Any) -> None:
        self._seen.add(calls.identity(module))
        if not self.models:
            self._collections = _collections()
        if len(self.models) < _MOST_MODELS:
            self.models.append(type(module).__name__)
        parameter = next(module.parameters(), None)
        if parameter is not None:
            self.count(f"{str(parameter.dtype).rpartition('.')[2]} models")
            self.count(f"models on {parameter.device.type}")
        linear = self.torch.nn.Linear
        unaligned = sum(type(layer) is linear and self.is_unaligned(layer) for layer in module.modules())
        self.count("unaligned linear layers", unaligned)
        for action in self._on_model:
            action(module)

    def into_generation(self, mixin: Any) -> None:
        generate = mixin.generate

        @functools.wraps(generate)
        def seen(model: Any, *args: Any, **kwargs: Any) -> Any:
            if state.generation is not None:  # the smaller model of assisted decoding
                return generate(model, *args, **kwargs)
            self.count("generate")
            if not can_be_repeated(kwargs):
                self.count("generate once only")
            given = kwargs.copy()
            for action in self._on_generate:
                action(model, kwargs)
            began = time.monotonic()
            try:
                result = generate(model, *args, **kwargs)
            except (ValueError, TypeError, NotImplementedError) as error:
                if kwargs == given or given.get("streamer") is not None:
                    raise
                self.refusal = f"generate() refuses it: {str(error).strip().partition(chr(10))[0][:160]}"
                kwargs = given
                result = generate(model, *args, **kwargs)
            self.count("ms in generate", round(1000 * (time.monotonic() - began)))
            if self.outputs is not None:
                self.outputs.generated(result)
            self._repeat(generate, model, args, kwargs)
            return result

        mixin.generate = seen

    def _repeat(self, generate: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make a call again, as often as the trial wants; one that cannot be made again is no mistake of the program."""
        try:
            for again in self._repeats.of_call(self.counts["generate"], kwargs):
                with again:
                    result = generate(model, *args, **kwargs)
                self.count("generate repeated")
                if self.outputs is not None:
                    self.outputs.generated(result)
        except Exception as error:
            log.failed("calling generate() again", error)

    def watch(self) -> None:
        """See what the program uses beside models."""
        torch = self.torch
        calls.Calls.seen = self.run_outermost
        backward, replay = torch.autograd.backward, torch.cuda.CUDAGraph.replay

        @functools.wraps(backward)
        def seen_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.count("backward")
            if self.outputs is not None:
                self.outputs.lost(tensors)
            return backward(tensors, *args, **kwargs)

        @functools.wraps(replay)
        def seen_replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count("graph replays")
            return replay(graph, *args, **kwargs)

        torch.autograd.backward, torch.cuda.CUDAGraph.replay = seen_backward, seen_replay
        start = torch.optim.Optimizer.__init__

        @functools.wraps(start)
        def seen_start(optimizer: Any, params: Any, defaults: Any) -> None:
            start(optimizer, params, defaults)
            if "fused" in defaults:
                self.count("optimizers that can be fused", int(not defaults["fused"]))

        torch.optim.Optimizer.__init__ = seen_start
        loader = torch.utils.data.DataLoader
        load = loader.__init__

        @functools.wraps(load)
        def seen_load(instance: Any, *args: Any, **kwargs: Any) -> None:
            load(instance, *args, **kwargs)
            self.count("data loaders without workers", int(not instance.num_workers))

        loader.__init__ = seen_load

    # -- levers ---------------------------------------------------------------------------------------

    def pull(self, name: str, file: str) -> None:
        module, problem, writes = None, "", sys.dont_write_bytecode
        sys.dont_write_bytecode = True  # nothing is written beside a file of the user's
        try:
            spec = importlib.util.spec_from_file_location(f"{__package__}.levers.{name.replace('-', '_')}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # torch.compile is told not to look into it
            spec.loader.exec_module(module)
            module.apply(self)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            sys.dont_write_bytecode = writes
        self.levers.append((name, module, problem))

    def write(self) -> None:
        """When the process ends."""
        if not (self.models or self.counts):
            return
        if self.models:
            self.count("garbage collections", _collections() - self._collections)
        if self.torch.cuda.is_initialized():
            self.count("cuda")
        found = {
            "rank": os.environ.get("RANK", ""),
            "models": self.models,
            "counts": self.counts,
            "places": self.places,
            "levers": [[name, *self._evidence(module, problem)] for name, module, problem in self.levers],
            "step": self._step.read() if self._step is not None else {},
            "outputs": self.outputs.read() if self.outputs is not None else {},
        }
        log.append(os.path.join(self._folder, f"{os.getpid()}.json"), json.dumps(found))  # noqa: PTH118

    def _evidence(self, module: Any, problem: str) -> Applied:
        if problem:
            return False, problem
        try:
            applied, text = module.evidence(self)
            return bool(applied), str(text)
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _own_line() -> str:
    """The innermost line that runs and is of no package."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", sys.base_prefix)) and not any(part in file for part in _PACKAGES):
            inside = file.startswith(os.path.join(os.getcwd(), ""))  # noqa: PTH109, PTH118
            return f"{os.path.relpath(file) if inside else os.path.basename(file)}:{frame.f_lineno}"  # noqa: PTH119
        frame = frame.f_back
    return ""


active: Program | None = None


def begin(torch: Any) -> None:
    """Pull the levers of a trial, where this is one."""
    global active
    folder = os.environ.get("LLM_PERF_TRY", "")
    if not folder:
        return
    outputs = Outputs(torch) if os.environ.get("LLM_PERF_OUTPUTS") == "1" else None
    active = Program(torch, folder, outputs)
    _seed(torch)
    active.watch()
    for name, file in json.loads(os.environ.get("LLM_PERF_LEVERS") or "[]"):
        active.pull(name, file)
    atexit.register(active.write)


def _seed(torch: Any) -> None:
    """Two runs of a program that chooses no seed would differ by chance; what the program seeds later, counts."""
    import random

    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
