"""Attention of torch by any kernel but cuDNN's: other kernels are switched off."""

from __future__ import annotations

from typing import Any

TITLE = "attention without cuDNN"
RULES = ("attention.replan", "attention.kernel")
NEEDS = ("calls", "cuda")
CHANGES = "rounding: another kernel rounds in another order"
EXCLUDES = ("attention-flash", "attention-efficient", "attention-math")
PATCH = "torch.backends.cuda.enable_cudnn_sdp(False)  # at the start"

_ON = (True, True, True, False)  # flash, memory-efficient, math, cuDNN


def apply(program: Any) -> None:
    cuda = program.torch.backends.cuda
    switches = (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp, cuda.enable_cudnn_sdp)
    for switch, on in zip(switches, _ON):
        switch(on)


def evidence(program: Any) -> tuple[bool, str]:
    cuda = program.torch.backends.cuda
    now = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )
    if now != _ON:
        return False, "the program sets the kernels of attention itself"
    return bool(program.models), "torch's flags are set" if program.models else "no model was called"
