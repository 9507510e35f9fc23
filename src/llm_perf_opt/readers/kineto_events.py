"""The events of a PyTorch trace that matter here, as columns: GPU work, launching calls, ranges.

Events are decoded one at a time and go straight into columns; the events themselves are never kept.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.metrics.host_calls import WAITING_CALLS, call_kind
from llm_perf_opt.readers.kineto_columns import Unusual, host_rows, kernel_rows, launch_rows
from llm_perf_opt.readers.kineto_json import LARGEST, DecimalText, nanoseconds
from llm_perf_opt.readers.kineto_operators import STEP, Operators
from llm_perf_opt.readers.nsys_schema import AXES
from llm_perf_opt.regions.columns import CALL, OPERATOR, PYTHON, SHORTEST_EVENT, UNKNOWN

LARGEST_SIZE = 2**31 - 1

# Categories in lower case: traces of 2020 and 2021 write `Kernel`, `Memcpy`, `Runtime`, `Operator`.
# `gpu_user_annotation` is missing on purpose: it repeats the ranges on the GPU's side, shifted.
_KERNELS = frozenset({"kernel"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"})
_RANGES = frozenset({"user_annotation"})
_OPERATORS = frozenset({"operator", "cpu_op"})
_PYTHON = frozenset({"python_function"})

_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_WORK = ("start", "end", "device", "name", "correlation", "stream", "in_graph")
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")

_LONG = SHORTEST_EVENT / 1000  # µs

NOTHING, KERNEL, GRAPH = range(3)  # what a call launches

K = TypeVar("K")


def what_it_launches(call: str) -> int:
    return GRAPH if call.startswith(_GRAPH_LAUNCHES) else KERNEL if call_kind(call) == "launch" else NOTHING


class Malformed(Exception):
    """An event lacks what it needs, or has something else in its place."""


class NoEvents(Exception):
    """The list is one of something else: going through the rest of it would take long, and give nothing."""


_MANY = 100_000
_ODD_AT_MOST = 10  # times as many as events: none was ever seen in a trace


class Rows:
    """Rows of whole numbers under named columns, flat in memory: a trace has millions."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values) // len(self._names)

    def add(self, *row: int) -> None:
        self._values.extend(row)

    def add_rows(self, rows: NDArray[np.int64]) -> None:
        self._values.frombytes(np.ascontiguousarray(rows).tobytes())

    def column(self, name: str, dtype: type[np.integer[Any]] = np.int32) -> NDArray[Any]:
        """In the order of the file."""
        return np.asarray(self._values)[self._names.index(name) :: len(self._names)].astype(dtype)


def _number_of(thing: K, numbers: dict[K, int]) -> int:
    """The number of a thing: they are numbered in the order they first appear."""
    return numbers.setdefault(thing, len(numbers))


@define
class Trace:
    """What the events of one file have said so far."""

    strings: dict[str, int] = Factory(dict)
    pids: dict[int, int] = Factory(dict)
    threads: dict[tuple[int, str], int] = Factory(dict)
    thread_process: list[int] = Factory(list)
    kernels: Rows = Factory(lambda: Rows(*_WORK, "shared", *AXES))
    copies: Rows = Factory(lambda: Rows(*_WORK, "bytes"))
    launches: Rows = Factory(lambda: Rows("correlation", "start", "thread", "launches"))  # calls of the CUDA API
    ranges: Rows = Factory(lambda: Rows("start", "end", "thread", "name"))
    operators: Operators = Factory(Operators)
    operators_known: bool = False  # `operators` has seen those that come now
    host: Rows = Factory(lambda: Rows("start", "end", "thread", "name", "kind"))
    host_threads: dict[tuple[int, str], int] = Factory(dict)
    process_names: dict[int, str] = Factory(dict)
    host_pids: set[int] = Factory(set)  # labelled CPU by Kineto, events or not
    events: int = 0  # that are JSON objects with a phase: what makes a list a trace
    malformed: int = 0
    odd: int = 0  # that are no events at all

    def add_all(self, events: list[Any], operators_known: bool) -> None:
        """Takes many events: kernels and calls at once where they are as usual, the others one by one."""
        self.operators_known = operators_known
        for event in self._without_columns(events):
            self.add(event)
        self.operators_known = False

    def _without_columns(self, events: list[Any]) -> list[Any]:
        """Takes what can be taken at once; returns the others."""
        found: dict[str, list[dict[str, Any]]] = {"kernel": [], "cuda_runtime": [], "cuda_driver": []}
        if self.operators_known:
            found["cpu_op"] = []
        others: list[Any] = []
        try:
            for event in events:
                found.get(event.get("cat"), others).append(event)
            kernels, calls = found["kernel"], found["cuda_runtime"] + found["cuda_driver"]
            operators = [event for event in found.get("cpu_op", ()) if event["dur"] >= _LONG]
            if not all(event["ph"] == "X" for event in (*kernels, *calls, *operators)):
                return events
            if any(event["name"].startswith(STEP) for event in operators):
                return events
            slow = [event for event in calls if event["dur"] >= _LONG or call_kind(event["name"]) in WAITING_CALLS]
            rows = [
                host_rows(part, kind, self.host_threads, self.strings)
                for part, kind in ((operators, OPERATOR), (slow, CALL))
                if part
            ]
            launches = launch_rows(calls, self.threads, what_it_launches) if calls else None
            if kernels:
                self.kernels.add_rows(kernel_rows(kernels, self.strings))
        except (Unusual, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return events
        if launches is not None:
            self.launches.add_rows(launches)
        for part in rows:
            self.host.add_rows(part)
        self.events += len(events) - len(others)
        return others

    def add(self, event: object) -> None:
        """Takes one event; what is damaged is counted and left out."""
        try:
            if not isinstance(event, dict) or "ph" not in event:
                self.odd += 1
                if self.odd > _MANY and self.odd > _ODD_AT_MOST * self.events:
                    raise NoEvents
            else:
                self.events += 1
            if not isinstance(event, dict):
                raise Malformed
            take = self._taker(event)
            if take is not None:
                take(event)
        except (Malformed, ValueError, OverflowError):
            self.malformed += 1

    def _taker(self, event: dict[str, Any]) -> Callable[[dict[str, Any]], None] | None:
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            return self._add_metadata
        if phase != "X" or not isinstance(category, str):
            return None
        category = category.lower()
        if category == "python_function":
            self.operators.add_module(event)
        if category in _OPERATORS:
            if not self.operators_known:
                self.operators.add(event)
            # Until 2021 every annotation was an `Operator`. Only the profiler's own step is certain.
            step = str(event.get("name", "")).startswith("ProfilerStep#")
            return self._add_range if step else self._add_operator if _is_long(event) else None
        if category in _PYTHON:
            return self._add_function if _is_long(event) else None
        if category in _LAUNCHES:
            return self._add_launch
        if category in _KERNELS:
            return self._add_kernel
        if category in _COPIES:
            return self._add_copy
        return self._add_range if category in _RANGES else None

    # -- events --------------------------------------------------------------------------------------------

    def _add_range(self, event: dict[str, Any]) -> None:
        start, end = _span(event)
        name = _name(event)
        # Every step has its number in its name; without it the steps are instances of one region.
        name = "ProfilerStep" if _PROFILER_STEP.fullmatch(name) else name
        thread = self._thread(event)
        self.ranges.add(start, end, thread, _number_of(name, self.strings))

    def _add_operator(self, event: dict[str, Any]) -> None:
        self._add_host(event, OPERATOR)

    def _add_function(self, event: dict[str, Any]) -> None:
        self._add_host(event, PYTHON)

    def _add_host(self, event: dict[str, Any], kind: int) -> None:
        start, end = _span(event)
        # Numbered apart: what only waits or computes makes no thread or process of the timeline.
        thread = _number_of(_thread_of(event), self.host_threads)
        self.host.add(start, end, thread, _number_of(_name(event), self.strings), kind)

    def _add_launch(self, event: dict[str, Any]) -> None:
        correlation = _correlation(_args(event))
        name = _name(event)
        if correlation != UNKNOWN:
            start = nanoseconds(event.get("ts"))
            self.launches.add(correlation, start, self._thread(event), what_it_launches(name))
        if "dur" in event and (_is_long(event) or call_kind(name) in WAITING_CALLS):
            self._add_host(event, CALL)

    def _add_kernel(self, event: dict[str, Any]) -> None:
        args = _args(event)
        shared = _optional_integer(args.get("shared memory"))
        sizes = (*_sizes(args.get("grid")), *_sizes(args.get("block")))
        self.kernels.add(*self._work(event, args), shared if shared <= LARGEST_SIZE else UNKNOWN, *sizes)

    def _add_copy(self, event: dict[str, Any]) -> None:
        args = _args(event)
        self.copies.add(*self._work(event, args), max(0, _optional_integer(args.get("bytes"))))

    def _work(self, event: dict[str, Any], args: dict[str, Any]) -> tuple[int, ...]:
        """What all GPU work has, in the order of `_WORK`."""
        start, end = _span(event)
        # Copies between GPUs name three devices; the one that worked is `inDevice`.
        device = _integer(args.get("device", args.get("inDevice", event.get("pid"))))
        if not 0 <= device <= LARGEST_SIZE:
            raise Malformed
        name = _number_of(_name(event), self.strings)
        correlation, stream = _correlation(args), _optional_integer(args.get("stream"))
        in_graph = _optional_integer(args.get("graph node id")) > 0
        return start, end, device, name, correlation, stream if stream <= LARGEST_SIZE else UNKNOWN, in_graph

    def _add_metadata(self, event: dict[str, Any]) -> None:
        pid, args = event.get("pid"), event.get("args")
        if not isinstance(pid, int) or not isinstance(args, dict):
            return
        if event.get("name") == "process_name" and isinstance(args.get("name"), str):
            self.process_names.setdefault(pid, args["name"])
        if event.get("name") == "process_labels" and args.get("labels") == "CPU":
            self.host_pids.add(pid)

    def _thread(self, event: dict[str, Any]) -> int:
        key = _thread_of(event)
        thread = _number_of(key, self.threads)
        if thread == len(self.thread_process):
            self.thread_process.append(_number_of(key[0], self.pids))
        return thread


def _thread_of(event: dict[str, Any]) -> tuple[int, str]:
    pid, tid = _integer(event.get("pid")), event.get("tid")
    if not isinstance(tid, int | str):
        raise Malformed
    return pid, str(tid)  # old traces write the same thread as 123 and as "123"


def _is_long(event: dict[str, Any]) -> bool:
    """Long enough to explain why a GPU waits? Most events are not: this is quick."""
    try:
        return float(event.get("dur", 0.0)) * 1000 >= SHORTEST_EVENT
    except (TypeError, ValueError, OverflowError):
        return False


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _correlation(args: dict[str, Any]) -> int:
    """What a launch and its work have in common. Tools that rewrite traces may leave no more than the external id."""
    return _optional_integer(args.get("correlation", args.get("External id")))


def _span(event: dict[str, Any]) -> tuple[int, int]:
    start = nanoseconds(event.get("ts"))
    end = start + nanoseconds(event.get("dur"))
    if end > LARGEST:
        raise Malformed
    return start, end


def _name(event: dict[str, Any]) -> str:
    name = event.get("name")
    if not isinstance(name, str) or isinstance(name, DecimalText):
        raise Malformed
    return name


def _integer(value: object) -> int:
    if isinstance(value, str) and not isinstance(value, DecimalText) and value.isascii() and value.isdigit():
        value = int(value) if len(value) < 19 else None
    if not isinstance(value, int) or isinstance(value, bool) or not -LARGEST <= value <= LARGEST:
        raise Malformed
    return value


def _optional_integer(value: object) -> int:
    """A value the event is still good without."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        return UNKNOWN
    return value


def _sizes(value: object) -> list[int]:
    """A grid or a block; zeros where it is none."""
    sizes = [_optional_integer(size) for size in value] if isinstance(value, list) and len(value) == 3 else []
    return sizes if sizes and all(0 < size <= LARGEST_SIZE for size in sizes) else [0, 0, 0]
