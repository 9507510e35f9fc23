"""Weights of linear layers in int8 by torchao: half the bytes of bf16, and different results."""

from __future__ import annotations

from typing import Any

from . import _torchao

TITLE = "int8 weights (torchao)"
RULES = ("memory.bound",)
NEEDS = ("calls", "cuda")
CHANGES = "precision: weights are rounded to int8"
PRECISION = "int8"
PATCH = "from torchao.quantization import Int8WeightOnlyConfig, quantize_\n\nquantize_(model, Int8WeightOnlyConfig())"


def apply(program: Any) -> None:
    _torchao.round_weights(program, "Int8WeightOnlyConfig", PRECISION)


def evidence(program: Any) -> tuple[bool, str]:
    return _torchao.evidence(program, PRECISION)
