"""Calls of models that are not being trained, without what autograd would keep for a backward pass."""

from __future__ import annotations

from typing import Any

TITLE = "inference_mode"
RULES = ("host.python", "host.alloc")
NEEDS = ("calls with gradients",)
GENERAL = True
CHANGES = "nothing"
PATCH = "with torch.inference_mode():  # around the calls of the model\n    output = model(inputs)"


def apply(program: Any) -> None:
    torch = program.torch

    def context(module: Any) -> Any:
        if module.training or not torch.is_grad_enabled():
            return None
        program.count("calls in inference mode")
        return torch.inference_mode()

    program.around_calls(context)


def evidence(program: Any) -> tuple[bool, str]:
    calls = program.counts.get("calls in inference mode", 0)
    return bool(
        calls
    ), f"{calls} calls in inference mode" if calls else "no call of a model outside training kept gradients"
