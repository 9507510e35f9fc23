"""PyTorch's attention by FlashAttention, or by plain products if it cannot; other kernels are switched off."""

from __future__ import annotations

from typing import Any

from . import _attention

TITLE = "flash attention"
RULES = ("attention.kernel",)
NEEDS = ("calls", "cuda")
CHANGES = "rounding: another kernel rounds in a different order"
EXCLUDES = ("attention-no-cudnn", "attention-efficient", "attention-math")
PATCH = (
    "with torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):\n    output = model(inputs)"
)

_ON = (True, False, True, False)  # flash, memory-efficient, math, cuDNN


def apply(program: Any) -> None:
    _attention.switch(program, _ON)


def evidence(program: Any) -> tuple[bool, str]:
    return _attention.evidence(program, _ON)
