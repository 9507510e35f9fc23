"""How ranges of PyTorch's own are called: operators, autograd's engine, modules, and the domains of libraries."""

from __future__ import annotations

import re

# `seq` is the place in the autograd graph: operators and autograd functions have one, ranges of the user have not.
_OPERATOR = re.compile(
    r"(?:aten|prims?|autograd|torch|torch::autograd|_?c10d\w*|quantized)::|nccl:|nccl[A-Z]|\w+Backward\d*(?:$|, )|.*, seq = ",
    re.DOTALL,
)
_ARGUMENTS = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")  # of torch.autograd.profiler.emit_nvtx
LIBRARY_DOMAINS = frozenset({"CCCL", "NCCL"})  # of CUB and Thrust, of collectives
MODULE = "nn.Module: "
_BACKWARD = re.compile(r"autograd::engine::|torch::autograd::|\w+Backward\d*(?:$|, )")


def is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None


def is_backward(name: str) -> bool:
    """What the engine of autograd runs; its own ranges are in recordings since PyTorch 1.9."""
    return _BACKWARD.match(name) is not None


def without_arguments(name: str) -> str:
    """An operator's name without what `emit_nvtx` writes behind it."""
    return _ARGUMENTS.split(name, maxsplit=1)[0] or name
