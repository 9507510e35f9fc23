"""Operators and modules of a PyTorch trace: the regions of a program that marks none itself.

Only what the program calls is kept, not what operators are made of: the outermost operators of each thread, and the
modules that `with_modules` or `with_stack` record. Threads of autograd's engine are told by its operators.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.readers.kineto_columns import all_nanoseconds
from llm_perf_opt.readers.kineto_json import nanoseconds
from llm_perf_opt.regions.columns import UNKNOWN, Int64s
from llm_perf_opt.regions.operator_names import MODULE, is_backward
from llm_perf_opt.regions.stacks import build_stacks, group_by

# Annotations that the profiler and PyTorch's own code make: a trace with no others is one without annotations.
_OF_PYTORCH = re.compile(
    r"ProfilerStep|PyTorch Profiler|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\.|DataParallel\."
    r"|FSDP::|nccl:|gloo:|record_param_comms|Torch-Compiled Region|CompiledFunction|TorchDynamo|## Call "
)
STEP = "ProfilerStep"
ROUNDED = 0.001  # µs that sums of floats may be off by
_Thread = tuple[int, str]  # process and thread id, as the trace numbers its threads by
_Row = tuple[int, int, int, int]  # start, end, thread and name, as of an annotation


def is_of_pytorch(annotation: str) -> bool:
    return _OF_PYTORCH.match(annotation) is not None


@define(eq=False)
class Operators:
    """What has been seen of them so far."""

    last: dict[_Thread, tuple[float, float]] = Factory(dict)  # µs, of each thread the last outermost operator
    _threads: dict[_Thread, int] = Factory(dict)
    _names: dict[str, int] = Factory(dict)
    _rows: array[int] = Factory(lambda: array("q"))  # start, end, thread and name of each, one behind the other

    def add(self, event: dict[str, Any]) -> None:
        """Take an operator; what is damaged is none. Most of a trace are such events, in order of time."""
        try:
            start = float(event["ts"])  # close enough to tell what lies inside the last one
            last = self.last.get((event["pid"], str(event["tid"])))
            if last is None or start < last[0] or start + float(event["dur"]) > last[1] + ROUNDED:
                self._add(event)
        except (KeyError, TypeError, ValueError):
            return

    def add_many(self, found: Sequence[tuple[_Thread, str, float, float]]) -> None:
        """Take outermost operators: thread, name, and start and duration in microseconds, which `last` knows already."""
        if found:
            threads, names, start, length = zip(*found, strict=True)
            begin, took = all_nanoseconds(start), all_nanoseconds(length)
            thread = [self._threads.setdefault(thread, len(self._threads)) for thread in threads]
            name = [self._names.setdefault(name, len(self._names)) for name in names]
            self._rows.frombytes(np.stack((begin, begin + took, thread, name), axis=1).tobytes())

    def add_module(self, event: dict[str, Any]) -> None:
        """Take a function of Python if it is a module."""
        name = event.get("name")
        if isinstance(name, str) and name.startswith(MODULE):
            with suppress(TypeError, ValueError):
                self._add(event)

    def _add(self, event: dict[str, Any]) -> None:
        name, pid = event.get("name"), event.get("pid")
        if event.get("ph") != "X" or type(name) is not str or not isinstance(pid, int) or name.startswith(STEP):
            return
        start = nanoseconds(event.get("ts"))
        end = start + nanoseconds(event.get("dur"))
        thread = pid, str(event.get("tid"))
        number = self._threads.setdefault(thread, len(self._threads))
        self._rows.extend((start, end, number, self._names.setdefault(name, len(self._names))))
        if not name.startswith(MODULE):
            self.last[thread] = start / 1000, end / 1000

    def engine_threads(self, threads: dict[_Thread, int]) -> list[int]:
        """Threads that do nothing but backward passes. Part of one is run by the thread that called it."""
        _, _, thread, name = self._columns()
        names = list(self._names)
        balance = np.array([0 if n.startswith(MODULE) else 1 if is_backward(n) else -1 for n in names])
        mostly = np.bincount(thread, balance[name], len(self._threads)) if len(name) else np.zeros(len(self._threads))
        found = (key for key, many in zip(self._threads, mostly.tolist(), strict=True) if many > 0)
        return sorted(threads[key] for key in found if key in threads)

    def outermost(self, threads: dict[_Thread, int], strings: dict[str, int]) -> list[_Row]:
        """Modules, and operators inside neither a module nor another operator, of threads that the trace knows."""
        start, end, thread, name = self._columns()
        thread = np.array([threads.get(key, UNKNOWN) for key in self._threads], dtype=np.int64)[thread]
        known = thread != UNKNOWN
        start, end, thread, name = start[known], end[known], thread[known], name[known]
        names = list(self._names)
        kept = np.array([text.startswith(MODULE) for text in names], dtype=np.bool_)[name]
        for _, mine in group_by(thread):
            stacks = build_stacks(start, end, mine)
            nodes = stacks.nodes_of_ranges()
            kept[stacks.instance[nodes[stacks.parent[nodes] < 0]]] = True
        chosen = (column[kept].tolist() for column in (start, end, thread, name))
        return [
            (begin, finish, number, strings.setdefault(names[text], len(strings)))
            for begin, finish, number, text in zip(*chosen, strict=True)
        ]

    def _columns(self) -> tuple[Int64s, ...]:
        return tuple(np.array(self._rows, dtype=np.int64).reshape(-1, 4).T)
