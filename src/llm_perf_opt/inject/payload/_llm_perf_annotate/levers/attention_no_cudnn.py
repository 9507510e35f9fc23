"""PyTorch's attention without cuDNN's kernel, which is switched off."""

from __future__ import annotations

from typing import Any

from . import _attention

TITLE = "attention without cuDNN"
RULES = ("attention.replan", "attention.kernel")
NEEDS = ("calls", "cuda")
CHANGES = "rounding: another kernel rounds in a different order"
EXCLUDES = ("attention-flash", "attention-efficient", "attention-math")
PATCH = "torch.backends.cuda.enable_cudnn_sdp(False)  # at the start"

_ON = (True, True, True, False)  # flash, memory-efficient, math, cuDNN


def apply(program: Any) -> None:
    _attention.switch(program, _ON)


def evidence(program: Any) -> tuple[bool, str]:
    return _attention.evidence(program, _ON)
