"""The events of a PyTorch trace that matter here, as columns: GPU work, launching calls, ranges.

Events are decoded one at a time and go straight into columns; the events themselves are never kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import Factory, define

from llm_perf_opt.metrics.host_calls import WAITING_CALLS, call_kind
from llm_perf_opt.readers.kineto_code import HostCode, HostRows, what_it_launches
from llm_perf_opt.readers.kineto_columns import (
    LARGEST_SIZE,
    Rows,
    Unusual,
    host_rows,
    kernel_rows,
    launch_rows,
    number_of,
)
from llm_perf_opt.readers.kineto_json import LARGEST, DecimalText, nanoseconds
from llm_perf_opt.readers.kineto_messages import COLLECTIVE_NAME, message_of
from llm_perf_opt.readers.kineto_operators import STEP
from llm_perf_opt.readers.nsys_schema import AXES
from llm_perf_opt.regions.columns import CALL, SHORTEST_EVENT, UNKNOWN

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

_LONG = SHORTEST_EVENT / 1000  # µs


class Malformed(Exception):
    """An event lacks what it needs, or has something else in its place."""


class NoEvents(Exception):
    """The list is one of something else: going through the rest of it would take long, and give nothing."""


_MANY = 100_000
_ODD_AT_MOST = 10  # times as many as events: none was ever seen in a trace


@define
class Trace:
    """What the events of one file have said so far."""

    strings: dict[str, int] = Factory(dict)
    pids: dict[int, int] = Factory(dict)
    threads: dict[tuple[int, str], int] = Factory(dict)
    thread_process: list[int] = Factory(list)
    kernels: Rows = Factory(lambda: Rows(*_WORK, "shared", *AXES))
    messages: list[tuple[int, int, int, int, int]] = Factory(list)  # of collectives: row of the kernel, and the rest
    copies: Rows = Factory(lambda: Rows(*_WORK, "bytes"))
    launches: Rows = Factory(lambda: Rows("correlation", "start", "thread", "launches"))  # calls of the CUDA API
    ranges: Rows = Factory(lambda: Rows("start", "end", "thread", "name"))
    code: HostCode = Factory(lambda trace: HostCode(trace.strings, trace.threads), takes_self=True)
    process_names: dict[int, str] = Factory(dict)
    host_pids: set[int] = Factory(set)  # labelled CPU by Kineto, events or not
    events: int = 0  # that are JSON objects with a phase: what makes a list a trace
    malformed: int = 0
    odd: int = 0  # that are no events at all

    def add_all(self, events: list[Any], host_code: HostRows | None) -> None:
        """Takes many events: kernels and calls at once where they are as usual, the others one by one."""
        if host_code is not None:
            self.code.add_rows(host_code)
            self.launches.add_rows(host_code.launches)
            self.kernels.add_rows(host_code.kernels)
        for event in self._without_columns(events):
            self.add(event)

    def _without_columns(self, events: list[Any]) -> list[Any]:
        """Takes what can be taken at once; returns the others."""
        found: dict[str, list[dict[str, Any]]] = {"kernel": [], "cuda_runtime": [], "cuda_driver": []}
        others: list[Any] = []
        try:
            for event in events:
                found.get(event.get("cat"), others).append(event)
            kernels, calls = found["kernel"], found["cuda_runtime"] + found["cuda_driver"]
            if not all(event["ph"] == "X" for event in (*kernels, *calls)):
                return events
            slow = [event for event in calls if event["dur"] >= _LONG or call_kind(event["name"]) in WAITING_CALLS]
            waiting = host_rows(slow, CALL, self.code.threads, self.strings) if slow else None
            launches = launch_rows(calls, self.threads, what_it_launches) if calls else None
            if kernels:
                rows = kernel_rows(kernels, self.strings)
                for row, event in enumerate(kernels, len(self.kernels)):
                    self._add_message(row, event["args"])
                self.kernels.add_rows(rows)
        except (Unusual, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return events
        if launches is not None:
            self.launches.add_rows(launches)
        if waiting is not None:
            self.code.events.add_rows(waiting)
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
        if category in _OPERATORS:
            # Until 2021 every annotation was an `Operator`. Only the profiler's own step is certain.
            return self._add_range if str(event.get("name", "")).startswith(f"{STEP}#") else self._add_operator
        if category in _PYTHON:
            return self._add_function
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
        self.ranges.add(start, end, thread, number_of(name, self.strings))

    def _add_operator(self, event: dict[str, Any]) -> None:
        with _damage_counts(event):
            self.code.add_call(_span(event), _thread_of(event), _name(event), _args(event))

    def _add_function(self, event: dict[str, Any]) -> None:
        with _damage_counts(event):
            self.code.add_function(_span(event), _thread_of(event), _name(event))

    def _add_launch(self, event: dict[str, Any]) -> None:
        correlation = _correlation(_args(event))
        name = _name(event)
        if correlation != UNKNOWN:
            start = nanoseconds(event.get("ts"))
            self.launches.add(correlation, start, self._thread(event), what_it_launches(name))
        if "dur" in event and (_is_long(event) or call_kind(name) in WAITING_CALLS):
            self.code.add_event(_span(event), _thread_of(event), name, CALL)

    def _add_kernel(self, event: dict[str, Any]) -> None:
        args = _args(event)
        shared = _optional_integer(args.get("shared memory"))
        sizes = (*_sizes(args.get("grid")), *_sizes(args.get("block")))
        self._add_message(len(self.kernels), args)
        self.kernels.add(*self._work(event, args), shared if shared <= LARGEST_SIZE else UNKNOWN, *sizes)

    def _add_message(self, row: int, args: dict[str, Any]) -> None:
        if COLLECTIVE_NAME in args and (message := message_of(args)) is not None:
            name, size, ranks, group = message
            number = number_of(group, self.strings) if group else UNKNOWN
            self.messages.append((row, size, ranks, number_of(name, self.strings), number))

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
        name = number_of(_name(event), self.strings)
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

    def know_all_threads(self) -> None:
        """Those that only run operators, too: without GPU work, they are all that there is."""
        for key in self.code.threads:
            self._number(key)

    def _thread(self, event: dict[str, Any]) -> int:
        return self._number(_thread_of(event))

    def _number(self, key: tuple[int, str]) -> int:
        thread = number_of(key, self.threads)
        if thread == len(self.thread_process):
            self.thread_process.append(number_of(key[0], self.pids))
        return thread


def _thread_of(event: dict[str, Any]) -> tuple[int, str]:
    pid, tid = _integer(event.get("pid")), event.get("tid")
    if not isinstance(tid, int | str):
        raise Malformed
    return pid, str(tid)  # old traces write the same thread as 123 and as "123"


@contextmanager
def _damage_counts(event: dict[str, Any]) -> Iterator[None]:
    """A damaged event that is short explains nothing, and costs nothing."""
    try:
        yield
    except (Malformed, ValueError):
        if _is_long(event):
            raise


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
