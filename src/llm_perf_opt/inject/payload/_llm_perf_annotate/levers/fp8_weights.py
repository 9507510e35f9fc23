"""Weights of linear layers in fp8 by torchao: half the bytes of bf16, and other results."""

from __future__ import annotations

import importlib
from typing import Any

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
    torchao = importlib.import_module("torchao.quantization")  # of the program's own packages

    def quantize(module: Any) -> None:
        if not module.training:
            torchao.quantize_(module, torchao.Float8WeightOnlyConfig())
            program.count("models in fp8")

    program.on_model(quantize)


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("models in fp8", 0)
    return bool(count), f"{count} with fp8 weights" if count else "no model in eval() was called"
