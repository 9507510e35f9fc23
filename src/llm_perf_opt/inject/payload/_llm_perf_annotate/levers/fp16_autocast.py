"""Matrix products of fp32 models in fp16: tensor cores, half the bytes, and fewer digits."""

from __future__ import annotations

from typing import Any

from . import _autocast

TITLE = "fp16 autocast"
RULES = ("gemm.fp32",)
NEEDS = ("float32 models",)
CHANGES = "precision: products are computed in fp16"
PRECISION = "float16"
EXCLUDES = ("bf16-autocast", "tf32")
PATCH = 'with torch.autocast("cuda", dtype=torch.float16):  # around the forward pass\n    output = model(inputs)'


def apply(program: Any) -> None:
    _autocast.around_calls(program, program.torch.float16)


def evidence(program: Any) -> tuple[bool, str]:
    return _autocast.evidence(program)
