"""Attention of torch by the memory-efficient kernel, or plain products where it cannot: other kernels are switched off."""

from __future__ import annotations

from typing import Any

TITLE = "memory-efficient attention"
RULES = ("attention.kernel",)
NEEDS = ("calls", "cuda")
CHANGES = "rounding: another kernel rounds in another order"
EXCLUDES = ("attention-no-cudnn", "attention-flash", "attention-math")
PATCH = "with torch.nn.attention.sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):\n    output = model(inputs)"

_ON = (False, True, True, False)  # flash, memory-efficient, math, cuDNN


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
