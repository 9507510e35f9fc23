"""What the levers of attention share: torch's switches of its kernels (flash, memory-efficient, math, cuDNN)."""

from __future__ import annotations

from typing import Any

On = tuple[bool, bool, bool, bool]


def switch(program: Any, on: On) -> None:
    cuda = program.torch.backends.cuda
    switches = (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_math_sdp, cuda.enable_cudnn_sdp)
    for set_to, wanted in zip(switches, on):
        set_to(wanted)


def evidence(program: Any, on: On) -> tuple[bool, str]:
    cuda = program.torch.backends.cuda
    now = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )
    if now != on:
        return False, "the program sets the kernels of attention itself"
    return bool(program.models), "torch's flags are set" if program.models else "no model was called"
