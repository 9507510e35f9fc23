"""Finds out whether another profiler is watching this process.

Only one tool may use CUPTI: PyTorch's profiler would take the place of nsys or ncu, or fail, and either way
the recording the user asked for would be spoilt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Variables the tools set for the programs they start, and words in the libraries they load into them.
_VARIABLES = {
    "NSYS_PROFILING_SESSION_ID": "nsys",
    "QUADD_INJECTION_PROXY": "nsys",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "ncu",
    "NV_TPS_LAUNCH_TOKEN": "ncu",
    "NV_NSIGHT_INJECTION_PORT_BASE": "ncu",
}
_LIBRARIES = ("LD_PRELOAD", "NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")
_WORDS = {"ToolsInjection": "nsys", "TreeLauncher": "ncu", "nsight-compute": "ncu", "nsight-systems": "nsys"}


def attached_profiler(environment: Mapping[str, str] | None = None) -> str | None:
    """`nsys`, `ncu`, or what else is there; None where nobody is watching."""
    environment = os.environ if environment is None else environment
    for name, tool in _VARIABLES.items():
        if environment.get(name):
            return tool
    for name in _LIBRARIES:
        value = environment.get(name, "")
        for word, tool in _WORDS.items():
            if word.lower() in value.lower():
                return tool
    injected = environment.get("CUDA_INJECTION64_PATH") or environment.get("NVTX_INJECTION64_PATH")
    return f"the tool in {injected}" if injected else None
