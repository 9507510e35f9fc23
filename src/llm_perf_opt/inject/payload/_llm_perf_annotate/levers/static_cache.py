"""A key-value cache of fixed size for `generate()`: on a GPU, transformers then compiles the decode step by itself."""

from __future__ import annotations

from typing import Any

TITLE = "static cache for generate()"
RULES = ("launch.graph", "host.python", "cache.concat", "host.graphs", "attention.replan")
NEEDS = ("generate",)
GENERAL = True
CHANGES = "rounding: attention over the padded cache uses other kernels"
EXCLUDES = ("compile", "compile-reduce-overhead", "compile-max-autotune", "cuda-graph")
WARMUP_S = 30.0
PATCH = 'model.generation_config.cache_implementation = "static"  # before model.generate(…)'


def apply(program: Any) -> None:
    def choose(model: Any, kwargs: dict[str, Any]) -> None:
        if kwargs.get("past_key_values") is not None:
            program.count("caches of the program's own")
        elif kwargs.get("use_cache", True) and "cache_implementation" not in kwargs:
            kwargs["cache_implementation"] = "static"

    program.on_generate(choose)


def evidence(program: Any) -> tuple[bool, str]:
    calls = program.counts.get("calls with a static cache", 0)
    if not calls:
        own = "the program gives generate() a cache of its own"
        took = own if program.counts.get("caches of the program's own") else "generate() did not take it"
        return False, program.refusal or took
    replays = program.counts.get("graph replays", 0)
    text = f"{calls} calls with a static cache"
    if replays:
        return True, f"{text}, CUDA graphs replayed {replays} times"
    return True, f"{text}, but no CUDA graph was replayed" if program.torch.cuda.is_initialized() else text
