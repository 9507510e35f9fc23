"""Operators and modules of a PyTorch trace: the regions of a program that marks none itself.

Only what the program calls is a region, not what operators are made of: the outermost operators of each thread, and
the modules that `with_modules` or `with_stack` record. Threads of autograd's engine are told by its operators.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.regions.columns import Int64s, OperatorCalls
from llm_perf_opt.regions.operator_calls import outermost_around
from llm_perf_opt.regions.operator_names import is_backward
from llm_perf_opt.regions.stacks import build_stacks, group_by

# Annotations that the profiler and PyTorch's own code make: a trace with no others is one without annotations.
_OF_PYTORCH = re.compile(
    r"ProfilerStep|PyTorch Profiler|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\.|DataParallel\."
    r"|FSDP::|nccl:|gloo:|record_param_comms|Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call "
)
STEP = "ProfilerStep"


def is_of_pytorch(annotation: str) -> bool:
    return _OF_PYTORCH.match(annotation) is not None


def outermost_calls(calls: OperatorCalls) -> Int64s:
    """Rows of those that lie in no other."""
    return np.flatnonzero(outermost_around(calls) == np.arange(len(calls)))


def engine_threads(calls: OperatorCalls, outermost: Int64s, strings: list[str]) -> list[int]:
    """Threads that do nothing but backward passes. Part of one is run by the thread that called it."""
    names, which = np.unique(calls.name[outermost], return_inverse=True)
    backward = np.array([is_backward(strings[name]) for name in names.tolist()], dtype=np.bool_)[which.reshape(-1)]
    threads = calls.thread[outermost]
    return [number for number, mine in group_by(threads) if 2 * backward[mine].sum() > len(mine)]


def operator_ranges(calls: OperatorCalls, outermost: Int64s, modules: NDArray[np.int64]) -> NDArray[np.int64]:
    """Modules, and operators inside neither a module nor another operator: start, end, thread and name of each."""
    columns = (calls.start, calls.end, calls.thread, calls.name)
    rows = np.concatenate((modules, np.stack([column[outermost] for column in columns], axis=1)))
    kept = np.arange(len(rows)) < len(modules)
    for _, mine in group_by(rows[:, 2]):
        stacks = build_stacks(rows[:, 0], rows[:, 1], mine)
        nodes = stacks.nodes_of_ranges()
        kept[stacks.instance[nodes[stacks.parent[nodes] < 0]]] = True
    return rows[kept]
