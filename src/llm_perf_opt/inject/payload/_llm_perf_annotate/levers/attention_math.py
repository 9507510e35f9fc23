"""PyTorch's attention by plain products; other kernels are switched off."""

from __future__ import annotations

from typing import Any

from . import _attention

TITLE = "attention as plain products"
RULES = ()
NEEDS = ("calls", "cuda")
CHANGES = "rounding: another kernel rounds in a different order"
EXCLUDES = ("attention-no-cudnn", "attention-flash", "attention-efficient")
PATCH = "with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):\n    output = model(inputs)"

_ON = (False, False, True, False)  # flash, memory-efficient, math, cuDNN


def apply(program: Any) -> None:
    _attention.switch(program, _ON)


def evidence(program: Any) -> tuple[bool, str]:
    return _attention.evidence(program, _ON)
