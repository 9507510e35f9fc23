"""NVTX ranges in any PyTorch program without a change to its code.

This package is the outside: what to add to a command's environment, which commands cannot be annotated, and
what the processes noted. The folder `payload` is the inside: it is loaded by the profiled program's own Python
and shares nothing with llm_perf_opt.
"""

from llm_perf_opt.inject.capture_windows import CaptureWindows, Named, windows_environment
from llm_perf_opt.inject.command import problems
from llm_perf_opt.inject.environment import (
    DEFAULT_DEPTH,
    ENDING,
    LEVERS,
    environment,
    under_ncu,
    with_levers,
    with_lines,
)
from llm_perf_opt.inject.log import Annotated, RangesSeen, read_log

__all__ = [
    "DEFAULT_DEPTH",
    "ENDING",
    "LEVERS",
    "Annotated",
    "CaptureWindows",
    "Named",
    "RangesSeen",
    "environment",
    "problems",
    "read_log",
    "under_ncu",
    "windows_environment",
    "with_levers",
    "with_lines",
]
