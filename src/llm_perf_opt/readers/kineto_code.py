"""What threads of a PyTorch trace did on the host: operators with their inputs, functions of Python, modules.

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
from numpy.typing import NDArray

from llm_perf_opt.metrics.source_owner import is_own
from llm_perf_opt.readers.kineto_columns import Rows, Unusual, all_nanoseconds, number_of
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import PYTHON, SHORTEST_EVENT, UNKNOWN
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


HostRows = tuple[NDArray[np.int64], ...]  # of calls, of own functions, of modules, of functions that take long

_OF_A_LIBRARY, _OWN, _MODULE = range(3)


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

    def rows_of(self, found: Found) -> HostRows:
        """Columns of what a chunk holds; nothing is taken yet. Raises `Unusual`, or `ValueError`."""
        calls, functions = self._columns(found.operators), self._columns(found.functions)
        inputs = [self._inputs_of(text) for text in found.inputs] or [UNKNOWN] * len(calls)
        kind = np.array([self.kinds[text[0]] for text in found.functions], dtype=np.int64)
        long = functions[functions[:, 1] - functions[:, 0] >= SHORTEST_EVENT]
        return (
            np.column_stack((calls, np.array(inputs, dtype=np.int64))),
            functions[kind == _OWN],
            functions[kind == _MODULE],
            np.column_stack((long, np.full(len(long), PYTHON))),
        )

    def add_rows(self, rows: HostRows) -> None:
        for table, part in zip((self.calls, self.functions, self.modules, self.events), rows, strict=True):
            table.add_rows(part)

    def _columns(self, found: Sequence[Text]) -> NDArray[np.int64]:
        """Start, end, thread and name."""
        if not found:
            return np.zeros((0, 4), dtype=np.int64)
        names, places, starts, lengths = zip(*found, strict=True)
        start, length = (_nanoseconds(texts) for texts in (starts, lengths))
        thread, name = [self._place(text) for text in places], [self._name(text) for text in names]
        return np.stack((start, start + length, thread, name), axis=1)

    def _place(self, text: bytes) -> int:
        number = self._places.get(text)
        if number is None:
            where = _WHERE.fullmatch(text)
            if where is None:
                raise Unusual
            number = self._places[text] = number_of((int(where[1]), where[2].decode("ascii")), self.threads)
        return number

    def _name(self, text: bytes) -> int:
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = number_of(text.decode("utf-8", "replace"), self.strings)
        return number

    def _inputs_of(self, text: bytes) -> int:
        found = self._given.get(text)
        if found is None:
            args = orjson.loads(b"{" + text + b"}")
            given = args.get("Input type"), args.get("Input Dims", args.get("Input dims")), args.get("Input Strides")
            found = self._inputs(text, given)
        return found


def _nanoseconds(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """From microseconds: by their digits where there are three decimals, which floats since 1970 have no room for."""
    joined = b" ".join(texts)
    if _THREE_DECIMALS.fullmatch(joined):
        return np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=" ")
    return all_nanoseconds([float(text) for text in texts] if b"." in joined else [int(text) for text in texts])
