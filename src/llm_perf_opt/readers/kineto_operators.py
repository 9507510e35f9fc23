"""Operators and modules of a PyTorch trace: the regions of a program that marks none itself.

Only what the program calls is kept, not what operators are made of: the outermost operators of each thread, and the
modules that `with_modules` or `with_stack` record. Threads of autograd's engine are told by its operators.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.readers.kineto_json import nanoseconds
from llm_perf_opt.regions.operator_names import MODULE, is_backward
from llm_perf_opt.regions.stacks import build_stacks, group_by

_OPERATORS = frozenset({"cpu_op", "Operator", "operator"})
_FUNCTIONS = frozenset({"python_function", "Python function"})
# Annotations that the profiler and PyTorch's own code make: a trace with no others is one without annotations.
_OF_PYTORCH = re.compile(
    r"ProfilerStep|PyTorch Profiler|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\.|DataParallel\."
    r"|FSDP::|nccl:|gloo:|record_param_comms|Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call "
)
_Thread = tuple[int, str]  # process and thread id, as the trace numbers its threads by
_Row = tuple[int, int, int, int]  # start, end, thread and name, as of an annotation


def is_of_pytorch(annotation: str) -> bool:
    return _OF_PYTORCH.match(annotation) is not None


@define(eq=False)
class Operators:
    """What has been seen of them so far."""

    _of_engine: Counter[_Thread] = Factory(Counter)  # outermost operators of autograd's engine, by thread
    _others: Counter[_Thread] = Factory(Counter)
    _rows: list[tuple[int, int, _Thread, str]] = Factory(list)
    _last: dict[_Thread, tuple[int, int]] = Factory(dict)  # of each thread the last outermost operator

    def see(self, event: dict[str, Any]) -> None:
        """Take an event if it is one of them; what is damaged is none."""
        category, name = event.get("cat"), event.get("name")
        if event.get("ph") != "X" or type(name) is not str:
            return
        if category in _OPERATORS:
            module = False
        elif category in _FUNCTIONS and name.startswith(MODULE):
            module = True
        else:
            return
        pid = event.get("pid")
        if not isinstance(pid, int):
            return
        thread = pid, str(event.get("tid"))
        try:
            start = nanoseconds(event.get("ts"))
            end = start + nanoseconds(event.get("dur"))
        except ValueError:
            return
        if module:
            self._rows.append((start, end, thread, name))
            return
        last = self._last.get(thread)
        if last is not None and last[0] <= start and end <= last[1]:
            return  # part of that one; traces are in order of time
        counted = self._of_engine if is_backward(name) else self._others
        counted[thread] += 1
        if not name.startswith("ProfilerStep"):
            self._last[thread] = start, end
            self._rows.append((start, end, thread, name))

    def engine_threads(self, threads: dict[_Thread, int]) -> list[int]:
        """Threads that do nothing but backward passes. Part of one is run by the thread that called it."""
        found = (thread for thread, count in self._of_engine.items() if count > self._others[thread])
        return sorted(threads[thread] for thread in found if thread in threads)

    def outermost(self, threads: dict[_Thread, int], strings: dict[str, int]) -> list[_Row]:
        """Modules, and operators inside neither a module nor another operator, of threads that the trace knows."""
        rows = [row for row in self._rows if row[2] in threads]
        start, end = (np.array([row[side] for row in rows], dtype=np.int64) for side in (0, 1))
        thread = np.array([threads[row[2]] for row in rows], dtype=np.int64)
        kept = np.array([row[3].startswith(MODULE) for row in rows], dtype=np.bool_)
        for _, mine in group_by(thread):
            stacks = build_stacks(start, end, mine)
            nodes = stacks.nodes_of_ranges()
            kept[stacks.instance[nodes[stacks.parent[nodes] < 0]]] = True
        return [
            (row[0], row[1], threads[row[2]], strings.setdefault(row[3], len(strings)))
            for row, chosen in zip(rows, kept.tolist(), strict=True)
            if chosen
        ]
