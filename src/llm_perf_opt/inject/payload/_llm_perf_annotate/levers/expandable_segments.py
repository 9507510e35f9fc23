"""GPU memory in segments that grow: fewer calls of cudaMalloc and cudaFree while shapes change."""

from __future__ import annotations

import os
from typing import Any

TITLE = "expandable segments"
RULES = ("host.alloc",)
NEEDS = ("cuda",)
CHANGES = "nothing"
ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
PATCH = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # before the program starts"


def apply(program: Any) -> None:
    """The variable was set before the process began."""


def evidence(program: Any) -> tuple[bool, str]:
    if os.environ.get("PYTORCH_CUDA_ALLOC_CONF") != "expandable_segments:True":
        return False, "the program sets PYTORCH_CUDA_ALLOC_CONF itself"
    on_gpu = program.torch.cuda.is_initialized()
    return on_gpu, "the variable was set before CUDA began" if on_gpu else "there is no GPU"
