"""Matrix products of fp32 models in bf16: tensor cores, half the bytes, and fewer digits."""

from __future__ import annotations

from typing import Any

TITLE = "bf16 autocast"
RULES = ("gemm.fp32",)
NEEDS = ("float32 models",)
CHANGES = "precision: products are computed in bf16"
PRECISION = "bfloat16"
EXCLUDES = ("fp16-autocast", "tf32")
PATCH = 'with torch.autocast("cuda", dtype=torch.bfloat16):  # around the forward pass\n    output = model(inputs)'


def apply(program: Any) -> None:
    torch = program.torch

    def context(module: Any) -> Any:
        parameter = next(module.parameters(), None)
        if parameter is None or parameter.dtype != torch.float32:
            return None
        program.count("calls in bf16")
        return torch.autocast(parameter.device.type, dtype=torch.bfloat16)

    program.around_calls(context)


def evidence(program: Any) -> tuple[bool, str]:
    calls = program.counts.get("calls in bf16", 0)
    return bool(calls), f"{calls} calls under autocast" if calls else "no model has fp32 weights"
