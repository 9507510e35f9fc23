"""Weights of linear layers in int8 by torchao: half the bytes of bf16, and other results."""

from __future__ import annotations

import importlib
from typing import Any

TITLE = "int8 weights (torchao)"
RULES = ("memory.bound",)
NEEDS = ("calls", "cuda")
CHANGES = "precision: weights are rounded to int8"
PRECISION = "int8"
PATCH = "from torchao.quantization import Int8WeightOnlyConfig, quantize_\n\nquantize_(model, Int8WeightOnlyConfig())"


def apply(program: Any) -> None:
    torchao = importlib.import_module("torchao.quantization")  # of the program's own packages

    def quantize(module: Any) -> None:
        if not module.training:
            torchao.quantize_(module, torchao.Int8WeightOnlyConfig())
            program.count("models in int8")

    program.on_model(quantize)


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("models in int8", 0)
    return bool(count), f"{count} with int8 weights" if count else "no model in eval() was called"
