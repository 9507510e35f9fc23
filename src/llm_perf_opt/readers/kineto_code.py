"""What threads of a PyTorch trace did on the host: operators with their inputs, functions of Python, modules, calls.

`with_stack` records Python functions by the line they begin at, `record_shapes` the dimensions of operators' inputs.
In a large trace these are most events: they are taken as text, a chunk at a time (`Found`), and never decoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from attrs import Factory, define

from llm_perf_opt.metrics.host_calls import WAITING_CALLS, call_kind
from llm_perf_opt.metrics.source_owner import is_own
from llm_perf_opt.readers.kineto_columns import Rows, Unusual, all_nanoseconds, number_of
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import CALL, PYTHON, SHORTEST_EVENT, UNKNOWN, Bools, Int64s
from llm_perf_opt.regions.operator_names import MODULE
from llm_perf_opt.regions.tensors import as_text

_WHERE = re.compile(rb'"pid"\s*:\s*(\d{1,18}),\s*"tid"\s*:\s*"?(\d+)"?')
_THREE_DECIMALS = re.compile(rb"\d{1,15}\.\d{3}(?: \d{1,15}\.\d{3})*")

Thread = tuple[int, str]  # process and thread id, as the trace numbers its threads by
Text = tuple[bytes, ...]  # name, thread, start and duration of an event, as the file writes them


@define(eq=False)
class Found:
    """Events of a chunk, as text."""

    operators: list[Text] = Factory(list)
    inputs: list[bytes] = Factory(list)  # of the operators; empty where none were recorded
    functions: list[Text] = Factory(list)
    calls: list[Text] = Factory(list)  # of the CUDA API; with their correlation id


@define(eq=False)
class HostRows:
    """Columns of what a chunk holds."""

    operators: Int64s
    functions: Int64s  # of the program's own
    modules: Int64s
    events: Int64s  # functions and calls that may explain idle time
    launches: Int64s  # as of `Trace.launches`


_OF_A_LIBRARY, _OWN, _MODULE = range(3)

_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
NOTHING, KERNEL, GRAPH = range(3)  # what a call launches


def what_it_launches(call: str) -> int:
    return GRAPH if call.startswith(_GRAPH_LAUNCHES) else KERNEL if call_kind(call) == "launch" else NOTHING


class FunctionKinds(dict[bytes, int]):
    """Is a function the program's own, a module, or neither? Asked once for each name."""

    def __missing__(self, name: bytes) -> int:
        self[name] = found = _kind(name.decode("utf-8", "replace"))
        return found


def _kind(name: str) -> int:
    if name.startswith(MODULE):
        return _MODULE
    place = parse_place(name)
    return _OWN if place is not None and is_own(place.file) else _OF_A_LIBRARY


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
    _given: dict[bytes, int] = Factory(dict)  # inputs of operators -> their string
    _places: dict[bytes, int] = Factory(dict)  # threads as text -> their number
    _names: dict[bytes, int] = Factory(dict)  # names as text -> their string

    # -- one by one ------------------------------------------------------------------------------------------

    def add_call(self, span: tuple[int, int], thread: Thread, name: str, args: dict[str, Any]) -> None:
        given = args.get("Input type"), args.get("Input Dims", args.get("Input dims")), args.get("Input Strides")
        inputs = UNKNOWN if given[1] is None else self._inputs(repr(given).encode("utf-8", "replace"), given)
        self.calls.add(*span, number_of(thread, self.threads), number_of(name, self.strings), inputs)

    def add_function(self, span: tuple[int, int], thread: Thread, name: str) -> None:
        kind = _kind(name)
        if span[1] - span[0] >= SHORTEST_EVENT:
            self.add_event(span, thread, name, PYTHON)
        if kind != _OF_A_LIBRARY:
            rows = self.modules if kind == _MODULE else self.functions
            rows.add(*span, number_of(thread, self.threads), number_of(name, self.strings))

    def add_event(self, span: tuple[int, int], thread: Thread, name: str, kind: int) -> None:
        self.events.add(*span, number_of(thread, self.threads), number_of(name, self.strings), kind)

    def _inputs(self, key: bytes, given: Sequence[object]) -> int:
        """What an operator was given, as a string. The same comes a thousand times."""
        if key not in self._given:
            text = as_text(*(one if isinstance(one, list) else [] for one in given))
            self._given[key] = number_of(text, self.strings) if text else UNKNOWN
        return self._given[key]

    # -- a chunk at once -------------------------------------------------------------------------------------

    def knows_threads_of(self, calls: Sequence[Text]) -> bool:
        """Threads of the timeline are numbered in the order of events: new ones have to be taken one by one."""
        return all(_thread(place) in self.launching for place in {text[1] for text in calls})

    def rows_of(self, found: Found) -> HostRows:
        """Columns of what a chunk holds; nothing is taken yet. Raises `Unusual`, or `ValueError`."""
        operators, functions, calls = (
            self._columns(texts) for texts in (found.operators, found.functions, found.calls)
        )
        inputs = [self._inputs_of(text) for text in found.inputs] or [UNKNOWN] * len(operators)
        kind = np.array([self.kinds[text[0]] for text in found.functions], dtype=np.int64)
        long = functions[functions[:, 1] - functions[:, 0] >= SHORTEST_EVENT]
        launches, waits = self._launches(calls, [text[4] for text in found.calls])
        slow = calls[waits | (calls[:, 1] - calls[:, 0] >= SHORTEST_EVENT)]
        return HostRows(
            np.column_stack((operators, np.array(inputs, dtype=np.int64))),
            functions[kind == _OWN],
            functions[kind == _MODULE],
            np.concatenate(
                [np.column_stack((part, np.full(len(part), k))) for part, k in ((long, PYTHON), (slow, CALL))]
            ),
            launches,
        )

    def add_rows(self, rows: HostRows) -> None:
        for table, part in (
            (self.calls, rows.operators),
            (self.functions, rows.functions),
            (self.modules, rows.modules),
            (self.events, rows.events),
        ):
            table.add_rows(part)

    def _columns(self, found: Sequence[Text]) -> Int64s:
        """Start, end, thread and name."""
        if not found:
            return np.zeros((0, 4), dtype=np.int64)
        names, places, starts, lengths, *_ = zip(*found, strict=True)
        start, length = (_nanoseconds(texts) for texts in (starts, lengths))
        for text in set(names).difference(self._names):
            self._names[text] = number_of(text.decode("utf-8", "replace"), self.strings)
        for text in set(places).difference(self._places):
            self._places[text] = number_of(_thread(text), self.threads)
        thread, name = list(map(self._places.__getitem__, places)), list(map(self._names.__getitem__, names))
        return np.stack((start, start + length, thread, name), axis=1)

    def _launches(self, calls: Int64s, correlations: Sequence[bytes]) -> tuple[Int64s, Bools]:
        """Rows of the calls as launches, and which of them may have waited for the GPU."""
        if not len(calls):
            return np.zeros((0, 4), dtype=np.int64), np.zeros(0, dtype=np.bool_)
        start, thread, names = calls[:, 0], calls[:, 2], calls[:, 3]
        numbers = np.array([self.launching.get(key, UNKNOWN) for key in self.threads], dtype=np.int64)[thread]
        used, which = np.unique(names, return_inverse=True)
        strings = list(self.strings)
        what = np.array([what_it_launches(strings[name]) for name in used.tolist()], dtype=np.int64)
        waits = np.array([call_kind(strings[name]) in WAITING_CALLS for name in used.tolist()], dtype=np.bool_)
        correlation = np.array(correlations).astype(np.int64)
        return np.stack((correlation, start, numbers, what[which]), axis=1), waits[which]

    def _inputs_of(self, text: bytes) -> int:
        found = self._given.get(text)
        if found is None:
            args = orjson.loads(b"{" + text + b"}")
            given = args.get("Input type"), args.get("Input Dims", args.get("Input dims")), args.get("Input Strides")
            found = self._inputs(text, given)
        return found


def _thread(place: bytes) -> Thread:
    where = _WHERE.fullmatch(place)
    if where is None:
        raise Unusual
    return int(where[1]), where[2].decode("ascii")


def _nanoseconds(texts: Sequence[bytes]) -> Int64s:
    """From microseconds: by their digits where there are three decimals, which floats since 1970 have no room for."""
    joined = b" ".join(texts)
    if _THREE_DECIMALS.fullmatch(joined):
        return np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=" ")
    return all_nanoseconds([float(text) for text in texts] if b"." in joined else [int(text) for text in texts])
