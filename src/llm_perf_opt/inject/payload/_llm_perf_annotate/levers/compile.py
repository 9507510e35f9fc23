"""torch.compile of the outermost module: fewer, fused kernels and less Python."""

from __future__ import annotations

from typing import Any

from ._compiling import compile_models
from ._compiling import evidence as compiled

TITLE = "torch.compile"
RULES = ("fuse.elementwise", "host.python", "copy.layout", "cast.pingpong", "loss.fp32", "optimizer.fused")
NEEDS = ("calls",)
GENERAL = True
CHANGES = "rounding: fused kernels round in a different order"
EXCLUDES = ("compile-reduce-overhead", "compile-max-autotune", "static-cache", "cuda-graph")
UNLESS = ("generate",)  # its cache grows: every step would be compiled anew; static-cache does it
WARMUP_S = 30.0
PATCH = "model.compile()  # once, before the first call"


def apply(program: Any) -> None:
    compile_models(program)


def evidence(program: Any) -> tuple[bool, str]:
    return compiled(program)
