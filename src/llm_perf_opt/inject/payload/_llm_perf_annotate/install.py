"""Puts everything in place when torch has been imported."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any

from . import log, ticker
from .place import place_of
from .ranges import DOMAIN, choose
from .seen_ranges import ranges_seen  # not when the program ends: by then it may have emptied sys.modules
from .stages import STEPS, Stages

MODES = ("stages", "modules")
_OFF = ("", "off")
_DEFAULT_DEPTH = 3

# None until torch has been imported, or where nothing is annotated.
active: Stages | None = None
_too_early: list[ModuleType] = []  # of engines, imported before torch
_told = {"count": 0, "calls": 0}  # of the steps, what was noted last


def into_torch(torch: ModuleType) -> None:
    """Annotate every model this process runs from now on, and watch the ranges it opens, as far as that is asked for."""
    watched = os.environ.get("LLM_PERF_RANGES") == "1"
    if (place := place_of(os.environ)) is not None:
        log.note("place", rank=place.rank)  # a recording has process ids alone
    _mark_lines(torch)
    if watched:
        try:
            _watch(torch)  # before the annotation takes its functions from there
        except Exception as error:
            log.failed("watching the ranges of torch", error, of="ranges")
    markers = os.environ.get("LLM_PERF_MARKERS", "") if watched else ""
    if os.environ.get("LLM_PERF_ANNOTATE", "off") not in _OFF:
        _annotate(torch, markers)
    elif markers:
        try:
            _set_marker_ranges(torch, markers)
        except Exception as error:
            log.failed("marking the modules", error, of="ranges")
    _count_steps(torch)
    if watched or active is not None:
        atexit.register(_note_end)
    _list_modules_at_end()


def _mark_lines(torch: ModuleType) -> None:
    if os.environ.get("LLM_PERF_LINES", "") in _OFF:
        return
    try:
        from . import compiled, imports, lines

        lines.install(torch, getattr(getattr(torch._C, "_nvtx", None), "markA", None))
        if hasattr(torch._C, "_dynamo"):
            _hide_from_dynamo(torch, [compiled, imports, lines, log])
    except Exception as error:
        log.failed("marking the lines of the program", error, of="ranges")


def _watch(torch: ModuleType) -> None:
    from . import hooks, timers, windows

    hooks.into_torch(torch)
    windows.install(torch, ranges_seen)
    timers.install(torch, ranges_seen)
    if hasattr(torch._C, "_dynamo"):
        _hide_from_dynamo(torch, _ours())


def into_nvtx(package: ModuleType) -> None:
    """Watch the ranges a program opens through the nvtx package."""
    from . import hooks, timers, windows

    hooks.into_nvtx(package)
    windows.install(None, ranges_seen)
    timers.install(None, ranges_seen)  # of a program without torch: the host clock
    _count_steps(None)
    _list_modules_at_end()


def _count_steps(torch: ModuleType | None) -> None:
    """Of a server, after all that sees ranges: the annotation's steps, and those that the program marks itself."""
    if ticker.is_asked():
        from . import program_steps

        if program_steps.install(ranges_seen):
            ticker.ticker.add(_note_steps)
        if torch is not None and hasattr(torch._C, "_dynamo"):
            _hide_from_dynamo(torch, [program_steps])


def _note_steps() -> None:
    """Somebody outside counts the steps, and ends the program after enough of them."""
    from .program_steps import active as own

    stages = active.counts.copy() if active is not None else {}
    steps = sum(stages.get(step, 0) for step in STEPS) + (own.count if own is not None else 0)
    told = {"count": steps, "calls": stages.get("forward", 0)}  # of models, where nothing says what a step is
    if told != _told:
        _told.update(told)
        log.note("steps", **told)


def _note_end() -> None:
    # Copies: other threads may still open ranges.
    ranges = [[domain, name, count] for (domain, name), count in ranges_seen.counts.copy().items() if count]
    log.note("end", stages=active.counts.copy() if active is not None else {}, ranges=ranges)


def _list_modules_at_end() -> None:
    atexit.unregister(_list_modules)  # once, where a program has both torch and nvtx
    atexit.register(_list_modules)


def _list_modules() -> None:
    """Where a later start should find them compiled: the interpreter, and the files of all modules."""
    path = os.environ.get("LLM_PERF_MODULES")
    if path:
        specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
        files = [spec.origin for spec in specs if spec is not None and getattr(spec, "cached", None)]
        with contextlib.suppress(Exception):
            log.append(path, "\n".join([sys.executable, *map(str, files)]))


def _set_marker_ranges(torch: ModuleType, wanted: str) -> None:
    """Mark the modules alone. Where that cannot be, windows are set at the ranges of the program."""
    chosen = choose(torch)
    if chosen is None or not _can_be_annotated(torch):
        return
    from . import calls, marker_ranges, products

    push, pop = marker_ranges.ways(wanted, *chosen[1:])
    stages = Stages(marker_ranges.nothing, marker_ranges.nothing)
    calls.annotate(torch.nn.Module, calls.Calls(stages, push, pop, marker_ranges.NAMES))
    products.mark(torch, marker_ranges.PRODUCT, push, pop)
    _hide_from_dynamo(torch, [*_nvtx_package(), *_ours()])


def _can_be_annotated(torch: Any) -> bool:
    module = getattr(getattr(torch, "nn", None), "Module", None)
    return hasattr(module, "_compiled_call_impl") and hasattr(getattr(torch, "compiler", None), "is_dynamo_compiling")


def _ours() -> list[ModuleType]:
    """The modules of this package that are loaded; torch.compile has to look into `products`."""
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith(f"{__package__}.")]
    return [module for module in loaded if not module.__name__.endswith(".products")]


def _nvtx_package() -> list[ModuleType]:
    return [sys.modules["nvtx.nvtx"]] if "nvtx.nvtx" in sys.modules else []


def _annotate(torch: ModuleType, wanted_markers: str) -> None:
    global active
    mode = os.environ["LLM_PERF_ANNOTATE"]
    if mode not in MODES:
        log.trouble(f"LLM_PERF_ANNOTATE={mode} is not known; it is one of: off, {', '.join(MODES)}.")
        return
    version = str(getattr(torch, "__version__", "?"))
    if not _can_be_annotated(torch):
        log.trouble(f"PyTorch {version} is too old to be annotated. Use 2.4 or later.")
        return
    chosen = choose(torch, DOMAIN)
    if chosen is None:
        log.trouble(
            f"PyTorch {version} was built without NVTX, and the nvtx package is not installed: nothing is annotated. "
            "Install a CUDA build of PyTorch, or: pip install nvtx"
        )
        return
    source, push, pop = chosen

    # The first two only to be hidden with the others: `generate()` and engines are annotated later.
    from . import engines, generation, calls, graphs, marker_ranges, products, training, trial, tree  # noqa: F401, I001

    installed = Stages(push, pop)
    names = tree.Names(_depth() if mode == "modules" else 0, os.environ.get("LLM_PERF_ANNOTATE_FOLD", "") == "1")
    around_modules = push, pop
    in_default = choose(torch)
    if mode != "modules" and wanted_markers and in_default is not None:
        names = marker_ranges.NAMES
        around_modules = marker_ranges.ways(wanted_markers, *in_default[1:])
        products.mark(torch, marker_ranges.PRODUCT, *around_modules)
    calls.annotate(torch.nn.Module, calls.Calls(installed, *around_modules, names))
    training.annotate(torch, installed)
    graphs.annotate(torch.cuda.CUDAGraph, installed)
    try:
        trial.begin(torch)
    except Exception as error:
        log.failed("pulling levers", error)
    _hide_from_dynamo(torch, [*_nvtx_package(), *_ours()])
    active = installed
    for module in _too_early:
        into_engine(module)
    log.note("torch", version=version, mode=mode, ranges=source)


def into_generation(module: ModuleType) -> None:
    """Annotate `generate()` of transformers."""
    if active is not None:
        from . import generation

        generation.annotate(module.GenerationMixin, active)
        from . import trial

        if trial.active is not None:
            trial.active.into_generation(module.GenerationMixin)


def into_engine(module: ModuleType) -> None:
    """Annotate the steps of a serving engine."""
    from . import engines

    if active is None:
        _too_early.append(module)
    else:
        engines.annotate(module, active)


def _depth() -> int:
    given = os.environ.get("LLM_PERF_ANNOTATE_DEPTH", "")
    if given and not given.isdigit():
        log.trouble(f"LLM_PERF_ANNOTATE_DEPTH={given} is not a number; {_DEFAULT_DEPTH} is used.")
    return int(given) if given.isdigit() else _DEFAULT_DEPTH


def _hide_from_dynamo(torch: Any, modules: list[ModuleType]) -> None:
    """Have torch.compile never compile a frame of ours: what it calls is compiled as if we were not there."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):  # until torch 2.6
        skip = frames.skip_code
    else:
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)

        def skip(code: CodeType) -> None:
            frames.set_code_exec_strategy(code, strategy)

    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__:
                members = vars(value).values() if isinstance(value, type) else [value]
                for member in members:
                    function = getattr(member, "__func__", member)
                    if isinstance(function, FunctionType):
                        for code in _codes(function.__code__):
                            skip(code)


def _codes(code: CodeType) -> list[CodeType]:
    found = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _codes(constant)
    return found
