"""Operators and modules of a PyTorch trace: the regions of a program that marks none itself.

Only what the program calls is kept, not what operators are made of: the outermost operators of each thread, and the
modules that `with_modules` or `with_stack` record. Threads of autograd's engine are told by its operators.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.readers.kineto_code import product_shape
from llm_perf_opt.readers.kineto_json import nanoseconds
from llm_perf_opt.regions.operator_names import MODULE, is_backward
from llm_perf_opt.regions.stacks import build_stacks, group_by

# Annotations that the profiler and PyTorch's own code make: a trace with no others is one without annotations.
_OF_PYTORCH = re.compile(
    r"ProfilerStep|PyTorch Profiler|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\.|DataParallel\."
    r"|FSDP::|nccl:|gloo:|record_param_comms|Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call "
)
_ROUNDED = 0.001  # µs that sums of floats may be off by
_Thread = tuple[int, str]  # process and thread id, as the trace numbers its threads by
_Seen = tuple[int, int, _Thread, str]  # start, end, thread and name
_Row = tuple[int, int, int, int]  # start, end, thread and name, as of an annotation


def is_of_pytorch(annotation: str) -> bool:
    return _OF_PYTORCH.match(annotation) is not None


@define(eq=False)
class Operators:
    """What has been seen of them so far."""

    _of_engine: Counter[_Thread] = Factory(Counter)  # outermost operators of autograd's engine, by thread
    _others: Counter[_Thread] = Factory(Counter)
    _rows: list[_Seen] = Factory(list)
    _products: list[_Seen] = Factory(list)  # as shapes
    _last: dict[object, tuple[float, float]] = Factory(dict)  # µs, of each thread the last outermost operator

    def add(self, event: dict[str, Any]) -> None:
        """Take an operator; what is damaged is none. Most of a trace are such events, in order of time."""
        key = event.get("pid"), event.get("tid")
        try:
            start = float(event["ts"])  # close enough to tell what lies inside the last one
            last = self._last.get(key)
            if last is None or start < last[0] or start + float(event["dur"]) > last[1] + _ROUNDED:
                self._add(event, key)
            if isinstance(key[0], int) and (shape := product_shape(event)):
                self._products.append(self._row(event, f"×{shape}"))
        except (KeyError, TypeError, ValueError):
            return

    def add_module(self, event: dict[str, Any]) -> None:
        """Take a function of Python if it is a module."""
        name = event.get("name")
        if isinstance(name, str) and name.startswith(MODULE):
            with suppress(TypeError, ValueError):
                self._add(event, None)

    def _add(self, event: dict[str, Any], key: tuple[object, object] | None) -> None:
        name, pid = event.get("name"), event.get("pid")
        if (
            event.get("ph") != "X"
            or type(name) is not str
            or not isinstance(pid, int)
            or name.startswith("ProfilerStep")
        ):
            return
        start, end, thread, _ = row = self._row(event, name)
        self._rows.append(row)
        if key is not None:
            self._last[key] = start / 1000, end / 1000
            counted = self._of_engine if is_backward(name) else self._others
            counted[thread] += 1

    @staticmethod
    def _row(event: dict[str, Any], text: str) -> _Seen:
        start = nanoseconds(event.get("ts"))
        return start, start + nanoseconds(event.get("dur")), (event["pid"], str(event.get("tid"))), text

    def called(self) -> list[_Seen]:
        """Outermost operators, and the products inside them by their shapes."""
        return [*(row for row in self._rows if not row[3].startswith(MODULE)), *self._products]

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
