"""Weights of linear layers in int8 by torchao: half the bytes of bf16, and other results."""

from __future__ import annotations

from typing import Any

TITLE = "int8 weights (torchao)"
RULES = ("memory.bound",)
NEEDS = ("calls", "cuda")
CHANGES = "precision: weights are rounded to int8"
PRECISION = "int8"
PATCH = "from torchao.quantization import Int8WeightOnlyConfig, quantize_\n\nquantize_(model, Int8WeightOnlyConfig())"


def apply(program: Any) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # type: ignore[import-not-found]

    def quantize(module: Any) -> None:
        if not module.training:
            quantize_(module, Int8WeightOnlyConfig())
            program.count("models in int8")

    program.on_model(quantize)


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("models in int8", 0)
    return bool(count), f"{count} with int8 weights" if count else "no model in eval() was called"
