"""What threads of a PyTorch trace did on the host: operators with their inputs, functions of Python, modules, calls.

`with_stack` records Python functions by the line they begin at, `record_shapes` the dimensions of operators' inputs.
In a large trace these are most events: they are taken as text, a chunk at a time (`Found`), and never decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from attrs import Factory, define, evolve

from llm_perf_opt.metrics.host_calls import WAITING_CALLS, call_kind
from llm_perf_opt.metrics.source_owner import is_own
from llm_perf_opt.readers.kineto_columns import Rows, number_of
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import CALL, PYTHON, SHORTEST_EVENT, UNKNOWN, Bools, Int64s
from llm_perf_opt.regions.operator_names import MODULE
from llm_perf_opt.regions.tensors import as_text

Thread = tuple[int, str]  # process and thread id, as the trace numbers its threads by


@define(eq=False)
class Found:
    """What `kineto_sieve` found in a chunk: events not decoded, and which are to be.

    Columns of events of the host are start, end, thread and name, the latter two as places in the lists here.
    Texts are as the file writes them, a character for each byte.
    """

    operators: Int64s  # and the place of their inputs
    functions: Int64s  # that explain something
    calls: Int64s  # of the CUDA API; and the correlation id
    kernels: Int64s  # as of `Trace.kernels`, but for the name
    left: Int64s  # where the others begin and end
    events: int  # that are not left
    threads: list[list[int]]  # of process and thread id
    names: list[str]
    inputs: list[str]  # empty where none were recorded
    places: Int64s  # where calls begin and end

    def without_calls(self) -> Found:
        left = np.concatenate((self.left, self.places))
        return evolve(
            self,
            calls=self.calls[:0],
            left=left[np.argsort(left[:, 0])],
            events=self.events - len(self.places),
            places=self.places[:0],
        )


@define(eq=False)
class HostRows:
    """Columns of what a chunk holds."""

    operators: Int64s
    functions: Int64s  # of the program's own
    modules: Int64s
    events: Int64s  # functions and calls that may explain idle time
    launches: Int64s  # as of `Trace.launches`
    kernels: Int64s  # as of `Trace.kernels`


OF_A_LIBRARY, _OWN, _MODULE = range(3)

_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
NOTHING, KERNEL, GRAPH = range(3)  # what a call launches


def what_it_launches(call: str) -> int:
    return GRAPH if call.startswith(_GRAPH_LAUNCHES) else KERNEL if call_kind(call) == "launch" else NOTHING


class FunctionKinds(dict[str, int]):
    """Is a function the program's own, a module, or neither? Asked once for each name."""

    def __missing__(self, name: str) -> int:
        self[name] = found = _kind(_text(name))
        return found


def _text(written: str) -> str:
    return written.encode("latin-1").decode("utf-8", "replace")


def _kind(name: str) -> int:
    if name.startswith(MODULE):
        return _MODULE
    place = parse_place(name)
    return _OWN if place is not None and is_own(place.file) else OF_A_LIBRARY


@define(eq=False)
class HostCode:
    """What has been seen so far. Its threads are numbered apart: what launches nothing is no thread of the timeline."""

    strings: dict[str, int]
    launching: dict[Thread, int]  # threads of the timeline
    threads: dict[Thread, int] = Factory(dict)
    calls: Rows = Factory(lambda: Rows("start", "end", "thread", "name", "inputs"))  # of operators
    functions: Rows = Factory(lambda: Rows("start", "end", "thread", "name"))  # of the program's own
    modules: Rows = Factory(lambda: Rows("start", "end", "thread", "name"))
    events: Rows = Factory(lambda: Rows("start", "end", "thread", "name", "kind"))  # others that may explain idle time
    kinds: FunctionKinds = Factory(FunctionKinds)
    _given: dict[str, int] = Factory(dict)  # inputs of operators -> their string

    # -- one by one ------------------------------------------------------------------------------------------

    def add_call(self, span: tuple[int, int], thread: Thread, name: str, args: dict[str, Any]) -> None:
        given = args.get("Input type"), args.get("Input Dims", args.get("Input dims")), args.get("Input Strides")
        inputs = UNKNOWN if given[1] is None else self._inputs(repr(given), given)
        self.calls.add(*span, number_of(thread, self.threads), number_of(name, self.strings), inputs)

    def add_function(self, span: tuple[int, int], thread: Thread, name: str) -> None:
        kind = _kind(name)
        if span[1] - span[0] >= SHORTEST_EVENT:
            self.add_event(span, thread, name, PYTHON)
        if kind != OF_A_LIBRARY:
            rows = self.modules if kind == _MODULE else self.functions
            rows.add(*span, number_of(thread, self.threads), number_of(name, self.strings))

    def add_event(self, span: tuple[int, int], thread: Thread, name: str, kind: int) -> None:
        self.events.add(*span, number_of(thread, self.threads), number_of(name, self.strings), kind)

    def _inputs(self, key: str, given: Sequence[object]) -> int:
        """What an operator was given, as a string. The same comes a thousand times."""
        if key not in self._given:
            text = as_text(*(one if isinstance(one, list) else [] for one in given))
            self._given[key] = number_of(text, self.strings) if text else UNKNOWN
        return self._given[key]

    # -- a chunk at once -------------------------------------------------------------------------------------

    def knows_threads_of(self, found: Found) -> bool:
        """Threads of the timeline are numbered in the order of events: new ones have to be taken one by one."""
        numbers: list[int] = np.unique(found.calls[:, 2]).tolist()
        return all((pid, str(tid)) in self.launching for pid, tid in map(found.threads.__getitem__, numbers))

    def rows_of(self, found: Found) -> HostRows:
        """Columns of what a chunk holds; nothing is taken yet. Raises `ValueError`."""
        threads = [(pid, str(tid)) for pid, tid in found.threads]
        numbers = np.array([number_of(thread, self.threads) for thread in threads], dtype=np.int64)
        launching = np.array([self.launching.get(thread, UNKNOWN) for thread in threads], dtype=np.int64)
        texts = [_text(name) for name in found.names]
        strings = np.array([number_of(text, self.strings) for text in texts], dtype=np.int64)
        given = np.array([self._inputs_of(text) for text in found.inputs], dtype=np.int64)
        kind = np.array([self.kinds[name] for name in found.names], dtype=np.int64)[found.functions[:, 3]]
        what = np.array([what_it_launches(text) for text in texts], dtype=np.int64)[found.calls[:, 3]]
        waits = np.array([call_kind(text) in WAITING_CALLS for text in texts], dtype=np.bool_)[found.calls[:, 3]]
        launches = np.stack((found.calls[:, 4], found.calls[:, 0], launching[found.calls[:, 2]], what), axis=1)

        def rows(part: Int64s, *more: Int64s) -> Int64s:
            return np.column_stack((part[:, :2], numbers[part[:, 2]], strings[part[:, 3]], *more))

        def is_long(part: Int64s) -> Bools:
            return part[:, 1] - part[:, 0] >= SHORTEST_EVENT

        functions, calls = rows(found.functions), rows(found.calls)
        long, slow = functions[is_long(functions)], calls[waits | is_long(calls)]
        kernels = found.kernels.copy()
        kernels[:, 3] = strings[kernels[:, 3]]
        return HostRows(
            rows(found.operators, np.append(given, UNKNOWN)[found.operators[:, 4]]),
            functions[kind == _OWN],
            functions[kind == _MODULE],
            np.concatenate(
                [np.column_stack((part, np.full(len(part), k))) for part, k in ((long, PYTHON), (slow, CALL))]
            ),
            launches,
            kernels,
        )

    def add_rows(self, rows: HostRows) -> None:
        for table, part in (
            (self.calls, rows.operators),
            (self.functions, rows.functions),
            (self.modules, rows.modules),
            (self.events, rows.events),
        ):
            table.add_rows(part)

    def _inputs_of(self, text: str) -> int:
        found = self._given.get(text)
        if found is None:
            args = orjson.loads(b"{" + text.encode("latin-1") + b"}")
            given = args.get("Input type"), args.get("Input Dims", args.get("Input dims")), args.get("Input Strides")
            found = self._inputs(text, given)
        return found
