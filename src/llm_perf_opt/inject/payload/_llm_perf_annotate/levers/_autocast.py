"""What the levers of autocast share: every call of a model with fp32 weights computes its products in fewer bits."""

from __future__ import annotations

from typing import Any

_CALLS = "calls under autocast"


def around_calls(program: Any, dtype: Any) -> None:
    torch = program.torch

    def context(module: Any) -> Any:
        parameter = next(module.parameters(), None)
        if parameter is None or parameter.dtype != torch.float32:
            return None
        program.count(_CALLS)
        return torch.autocast(parameter.device.type, dtype=dtype)

    program.around_calls(context)


def evidence(program: Any) -> tuple[bool, str]:
    calls = program.counts.get(_CALLS, 0)
    return bool(calls), f"{calls} calls under autocast" if calls else "no model has fp32 weights"
