"""Rows of a PyTorch trace as columns; kernels and launching calls, all of a chunk at once.

Those are most of what is left of a large trace, and nearly always as the profiler writes them: then their columns are
made by NumPy, in a third of the time. Where anything is unusual, `Unusual` is raised before anything is taken, and the
events are taken one by one, each examined by itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.readers.kineto_json import EXACT_FLOATS, LARGEST
from llm_perf_opt.regions.columns import UNKNOWN

LARGEST_SIZE = 2**31 - 1

Event = dict[str, Any]
K = TypeVar("K")


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
        self._values.frombytes(np.ascontiguousarray(rows, dtype=np.int64).tobytes())

    def column(self, name: str, dtype: type[np.integer[Any]] = np.int32) -> NDArray[Any]:
        """In the order of the file."""
        return np.asarray(self._values)[self._names.index(name) :: len(self._names)].astype(dtype)


def number_of(thing: K, numbers: dict[K, int]) -> int:
    """The number of a thing: they are numbered in the order they first appear."""
    return numbers.setdefault(thing, len(numbers))


class Unusual(Exception):
    """An event lacks something, or has it in another form."""


def times(events: Sequence[Event]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end of each, in nanoseconds."""
    start, length = (all_nanoseconds([event[key] for event in events]) for key in ("ts", "dur"))
    return start, start + length


def all_nanoseconds(microseconds: Sequence[Any]) -> NDArray[np.int64]:
    """Exact nanoseconds, as of `nanoseconds`."""
    found = np.array(microseconds)
    if found.ndim != 1 or found.dtype.kind not in "if" or (len(found) and found.min() < 0):
        raise Unusual
    if not (found < (EXACT_FLOATS if found.dtype.kind == "f" else LARGEST // 4000)).all():
        raise Unusual
    rounded: NDArray[np.int64] = np.rint(found * 1000).astype(np.int64) if found.dtype.kind == "f" else found * 1000
    return rounded


def _whole(values: list[Any], shape: tuple[int, ...] = (), most: int = LARGEST_SIZE) -> NDArray[np.int64]:
    """Whole numbers from 0 on, or UNKNOWN."""
    found = np.array(values)
    if found.dtype.kind != "i" or found.shape[1:] != shape or found.min() < UNKNOWN or found.max() > most:
        raise Unusual
    return found.astype(np.int64)


def kernel_rows(events: Sequence[Event], strings: dict[str, int]) -> NDArray[np.int64]:
    """In the order of the columns of `Trace.kernels`."""
    args = [event["args"] for event in events]
    start, end = times(events)
    device, stream = (_whole([found[key] for found in args]) for key in ("device", "stream"))
    correlation = _whole([found["correlation"] for found in args], most=LARGEST)
    in_graph = _whole([found.get("graph node id", 0) for found in args], most=LARGEST) > 0
    shared = _whole([found.get("shared memory", UNKNOWN) for found in args])
    grid, block = (_whole([found[key] for found in args], (3,)) for key in ("grid", "block"))
    if device.min() < 0 or grid.min() < 1 or block.min() < 1:
        raise Unusual
    name = _whole([strings.setdefault(name, len(strings)) for name in _names(events)])
    rows = (start, end, device, name, correlation, stream, in_graph, shared, *grid.T, *block.T)
    return np.stack(rows, axis=1).astype(np.int64)


def launch_rows(
    events: Sequence[Event], threads: dict[tuple[int, str], int], what: Callable[[str], int]
) -> NDArray[np.int64]:
    """In the order of the columns of `Trace.launches`. Threads are known: they are numbered in the order of events."""
    start, _ = times(events)
    correlation = _whole([event["args"]["correlation"] for event in events], most=LARGEST)
    if correlation.min() < 0:
        raise Unusual
    raw = {(event["pid"], event["tid"]) for event in events}
    if not all(type(pid) is int and (pid, str(tid)) in threads for pid, tid in raw):
        raise Unusual
    known = {(pid, tid): threads[pid, str(tid)] for pid, tid in raw}
    thread = [known[event["pid"], event["tid"]] for event in events]
    launches = {name: what(name) for name in set(_names(events))}
    return np.stack((correlation, start, thread, [launches[event["name"]] for event in events]), axis=1)


def host_rows(
    events: Sequence[Event], kind: int, threads: dict[tuple[int, str], int], strings: dict[str, int]
) -> NDArray[np.int64]:
    """In the order of the columns of `HostCode.events`; `threads` are those of the host alone."""
    start, end = times(events)
    raw = {(event["pid"], event["tid"]) for event in events}
    if not all(type(pid) is int and isinstance(tid, int | str) for pid, tid in raw):
        raise Unusual
    name = [strings.setdefault(name, len(strings)) for name in _names(events)]
    known = {(pid, tid): threads.setdefault((pid, str(tid)), len(threads)) for pid, tid in raw}
    thread = [known[event["pid"], event["tid"]] for event in events]
    return np.stack((start, end, thread, name, np.full(len(events), kind)), axis=1)


def _names(events: Sequence[Event]) -> list[str]:
    found = [event["name"] for event in events]
    if not all(type(name) is str for name in found):
        raise Unusual
    return found
