"""Weights of linear layers in fp8 by torchao: half the bytes of bf16, and different results."""

from __future__ import annotations

from typing import Any

from . import _torchao

TITLE = "fp8 weights (torchao)"
RULES = ("memory.bound",)
NEEDS = ("calls", "cuda")
EXCLUDES = ("int8-weights",)
CHANGES = "precision: weights are rounded to fp8"
PRECISION = "fp8"
PATCH = (
    "from torchao.quantization import Float8WeightOnlyConfig, quantize_\n\nquantize_(model, Float8WeightOnlyConfig())"
)


def apply(program: Any) -> None:
    _torchao.round_weights(program, "Float8WeightOnlyConfig", PRECISION)


def evidence(program: Any) -> tuple[bool, str]:
    return _torchao.evidence(program, PRECISION)
