"""Matrix products of fp32 models in fp16: tensor cores, half the bytes, and fewer digits."""

from __future__ import annotations

from typing import Any

TITLE = "fp16 autocast"
RULES = ("gemm.fp32",)
NEEDS = ("float32 models",)
CHANGES = "precision: products are computed in fp16"
PRECISION = "float16"
EXCLUDES = ("bf16-autocast", "tf32")
PATCH = 'with torch.autocast("cuda", dtype=torch.float16):  # around the forward pass\n    output = model(inputs)'


def apply(program: Any) -> None:
    torch = program.torch

    def context(module: Any) -> Any:
        parameter = next(module.parameters(), None)
        if parameter is None or parameter.dtype != torch.float32:
            return None
        program.count("calls in fp16")
        return torch.autocast(parameter.device.type, dtype=torch.float16)

    program.around_calls(context)


def evidence(program: Any) -> tuple[bool, str]:
    calls = program.counts.get("calls in fp16", 0)
    return bool(calls), f"{calls} calls under autocast" if calls else "no model has fp32 weights"
