"""torch.compile with CUDA graphs: one launch for a whole call of the model."""

from __future__ import annotations

from typing import Any

from ._compiling import compile_models
from ._compiling import evidence as compiled

TITLE = "torch.compile, reduce-overhead"
RULES = ("launch.graph", "host.graphs", "host.python", "fuse.elementwise")
NEEDS = ("calls", "cuda")
GENERAL = True
CHANGES = "rounding: fused kernels round in a different order"
EXCLUDES = ("compile", "compile-max-autotune", "static-cache", "cuda-graph")
UNLESS = ("generate",)  # its cache grows: every step would be compiled anew; static-cache does it
WARMUP_S = 30.0
PATCH = 'model.compile(mode="reduce-overhead")  # once, before the first call'


def apply(program: Any) -> None:
    compile_models(program, mode="reduce-overhead")


def evidence(program: Any) -> tuple[bool, str]:
    return compiled(program, graphs=True)
