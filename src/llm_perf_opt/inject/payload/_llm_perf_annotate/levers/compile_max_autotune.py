"""torch.compile that times kernels and picks the fastest; without CUDA graphs."""

from __future__ import annotations

from typing import Any

from ._compiling import compile_models
from ._compiling import evidence as compiled

TITLE = "torch.compile, max-autotune"
RULES = ("gemm.old_kernel", "gemm.shape", "kernel.slow")
NEEDS = ("calls", "cuda")
CHANGES = "rounding: other kernels round in a different order"
EXCLUDES = ("compile", "compile-reduce-overhead", "static-cache", "cuda-graph")
UNLESS = ("generate",)  # its cache grows: every step would be compiled anew; static-cache does it
WARMUP_S = 60.0
PATCH = 'model.compile(mode="max-autotune-no-cudagraphs")  # once, before the first call'


def apply(program: Any) -> None:
    compile_models(program, mode="max-autotune-no-cudagraphs")


def evidence(program: Any) -> tuple[bool, str]:
    return compiled(program)
