"""PyTorch's attention by the memory-efficient kernel, or by plain products if it cannot; other kernels are switched off."""

from __future__ import annotations

from typing import Any

from . import _attention

TITLE = "memory-efficient attention"
RULES = ("attention.kernel",)
NEEDS = ("calls", "cuda")
CHANGES = "rounding: another kernel rounds in a different order"
EXCLUDES = ("attention-no-cudnn", "attention-flash", "attention-math")
PATCH = "with torch.nn.attention.sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):\n    output = model(inputs)"

_ON = (False, True, True, False)  # flash, memory-efficient, math, cuDNN


def apply(program: Any) -> None:
    _attention.switch(program, _ON)


def evidence(program: Any) -> tuple[bool, str]:
    return _attention.evidence(program, _ON)
