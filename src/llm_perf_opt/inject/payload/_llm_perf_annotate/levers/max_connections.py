"""One hardware queue for all streams: collectives are launched in the order of the program."""

from __future__ import annotations

import os
from typing import Any

TITLE = "CUDA_DEVICE_MAX_CONNECTIONS=1"
RULES = ("comm.exposed",)
NEEDS = ("cuda",)
CHANGES = "nothing"
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
PATCH = "export CUDA_DEVICE_MAX_CONNECTIONS=1  # before the program starts"


def apply(program: Any) -> None:
    """The variable was set before the process began."""


def evidence(program: Any) -> tuple[bool, str]:
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return False, "the program sets CUDA_DEVICE_MAX_CONNECTIONS itself"
    on_gpu = program.torch.cuda.is_initialized()
    return on_gpu, "the variable was set before CUDA began" if on_gpu else "there is no GPU"
