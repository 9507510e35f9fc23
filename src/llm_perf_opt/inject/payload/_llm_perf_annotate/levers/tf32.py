"""fp32 matrix products on tensor cores: ten bits of mantissa instead of 23."""

from __future__ import annotations

from typing import Any

TITLE = "TF32 for fp32 products"
RULES = ("gemm.fp32",)
NEEDS = ("float32 models", "cuda")
CHANGES = "precision: products of fp32 are computed in TF32"
PRECISION = "tf32"
EXCLUDES = ("bf16-autocast", "fp16-autocast")
PATCH = 'torch.set_float32_matmul_precision("high")  # at the start'


def apply(program: Any) -> None:
    program.torch.set_float32_matmul_precision("high")


def evidence(program: Any) -> tuple[bool, str]:
    now = program.torch.get_float32_matmul_precision()
    if now != "high":
        return False, f"the program sets the precision of products to {now!r}"
    on_gpu = program.torch.cuda.is_initialized()
    return on_gpu, "torch's flag is set" if on_gpu else "there is no GPU"
