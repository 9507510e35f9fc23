"""Takes most events of a large PyTorch trace from their text, without decoding them.

They are arrows between the host and the GPU, which tell nothing, operators, functions of Python, calls of the CUDA
API, and kernels. Where each event begins and what it is are found by NumPy in a chunk as a whole; `kineto_shapes` reads
what is needed of those that are written alike. What is of no such shape is left to be decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.readers.kineto_code import Found, FunctionKinds
from llm_perf_opt.readers.kineto_columns import LARGEST_SIZE, Unusual
from llm_perf_opt.readers.kineto_messages import COLLECTIVE_NAME
from llm_perf_opt.readers.kineto_operators import STEP
from llm_perf_opt.readers.kineto_shapes import Events, Shapes, Taken, Text, nothing
from llm_perf_opt.regions.columns import SHORTEST_EVENT, UNKNOWN, Bools, Int64s

# Colons and commas are always written alike.
_PHASE_FIRST = re.compile(rb'\{\s*"ph"(\s*:\s*)"(?=X"(\s*,\s*)"cat")')
_PHASE = b'"ph"'
_BETWEEN = re.compile(rb"\}\s*,\s*\Z")  # two events of one list
_OTHER, _ARROW, _OPERATOR, _FUNCTION, _CALL, _KERNEL = range(6)
_PHASES, _KINDS = np.full((2, 256), _OTHER)  # by the letter of the phase; where that is X, the first of the category
_PHASES[list(b"stf")] = _ARROW
_KINDS[list(b"cO")] = _OPERATOR  # or a call
_KINDS[ord("p")] = _FUNCTION
_KINDS[ord("k")] = _KERNEL
_STEP = STEP.encode()
_INPUTS = b'"Input '  # "Input type", "Input Dims", "Input Strides": one behind the other
_UP_TO_DURATION = re.compile(rb'"dur"\s*:\s*[0-9.]+')
_UP_TO_CORRELATION = re.compile(rb'"correlation"\s*:\s*\d+')  # only with it is a call known to have launched something
Bytes = NDArray[np.uint8]
K = TypeVar("K")
Layout = tuple[bytes, int]  # how a trace is written, as a `Sieve` is told


def layout_of(head: bytes, at: int) -> Layout | None:
    """None where events do not begin with their phase."""
    found = _PHASE_FIRST.search(head, at)
    return (found[0], len(b'X"' + found[2] + b'"cat"' + found[1] + b'"')) if found else None


class Sieve:
    """Takes operators, functions, calls and kernels from the text of events, drops arrows; the rest is to be decoded."""

    def __init__(self, lead: bytes, category: int) -> None:
        self._lead = lead  # what every event begins with, up to its phase
        self._category = category  # where it stands, from the phase on
        self._operators = Shapes(lead, 4, _operator_columns, _UP_TO_DURATION, b"}")
        self._functions = Shapes(lead, 4, _function_columns, _UP_TO_DURATION, b"}")
        self._calls = Shapes(lead, 5, _call_columns, _UP_TO_CORRELATION, b"}}")
        self._kernels = Shapes(lead, 13, _kernel_columns)
        self._kinds = FunctionKinds()

    def __call__(self, chunk: bytes) -> Found | None:
        """What a chunk holds; None where it cannot be told."""
        text = Text(chunk)
        begins = self._begins(text.letters[: len(chunk)])
        if begins is None:
            return None
        ends = np.append(begins[1:] - len(self._lead), len(chunk))
        phase, category = text.letters[begins], np.minimum(begins + self._category, len(chunk) - 2)
        kind = np.where(phase == ord("X"), _KINDS[text.letters[category]], _PHASES[phase])
        kind[(kind == _OPERATOR) & (text.letters[category + 1] == ord("u"))] = _CALL
        left = kind != _ARROW

        def read(which: int, shapes: Shapes) -> tuple[Taken, Int64s]:
            mine = np.flatnonzero(kind == which)
            taken = shapes.read(text, begins[mine], ends[mine])
            return taken, mine[taken.rows]

        operators, rows = read(_OPERATOR, self._operators)
        no_steps = _where(operators.names, lambda name: not name.startswith(_STEP))  # those are ranges
        operators, rows = operators.of(no_steps), rows[no_steps]
        left[rows] = False
        given = _given(chunk, operators.behind, ends[rows]) if _INPUTS in chunk else []

        functions, rows = read(_FUNCTION, self._functions)
        left[rows] = False  # short ones of libraries explain nothing: they are only passed over
        long = functions.columns[:, 1] - functions.columns[:, 0] >= SHORTEST_EVENT
        functions = functions.of(long | _where(functions.names, lambda name: self._kinds[name.decode("latin-1")] > 0))

        calls, of_calls = read(_CALL, self._calls)
        left[of_calls] = False

        kernels, rows = read(_KERNEL, self._kernels)
        if len(rows) == (kind == _KERNEL).sum():
            left[rows] = False
        else:
            kernels = nothing(13)  # all or none: they keep their order

        threads: Numbered[tuple[int, int]] = Numbered()
        names: Numbered[bytes] = Numbered()
        inputs: Numbered[bytes] = Numbered()
        return Found(
            _host(operators, threads, names, inputs.all(given) if given else np.full(len(operators.rows), UNKNOWN)),
            _host(functions, threads, names),
            _host(calls, threads, names, calls.columns[:, 4]),
            np.insert(kernels.columns, 3, names.all(kernels.names), axis=1),
            np.stack((begins[left], ends[left]), axis=1),
            len(begins) - int(left.sum()),
            [list(thread) for thread in threads],
            [name.decode("latin-1") for name in names],
            [text.decode("latin-1") for text in inputs],
            np.stack((begins[of_calls], ends[of_calls]), axis=1),
        )

    def what_is_left(self, chunk: bytes, found: Found) -> bytes:
        kept = [chunk[begin:end] for begin, end in found.left.tolist()]
        return self._lead + self._lead.join(kept) if kept else b""

    def _begins(self, text: Bytes) -> Int64s | None:
        """Where the phase of each event stands; None where there are others, written in another way."""
        at = _places(text, _PHASE) - self._lead.index(_PHASE)
        if not len(at) or at[0] != 0 or at[-1] + len(self._lead) >= len(text):
            return None
        if not _stands_at(text, at, self._lead):
            return None
        found: Int64s = at + len(self._lead)
        if not (at[1:] > found[:-1]).all():
            return None
        if len(at) > 1:  # much of an event is never read: another may be in it, or the list end behind it
            between = _BETWEEN.search(text[found[0] : at[1]].tobytes())
            if between is None or not _stands_at(text, at[1:] - len(between[0]), between[0]):
                return None
        return found


class Numbered(dict[K, int]):
    """Things, numbered as they first appear."""

    def __missing__(self, thing: K) -> int:
        self[thing] = number = len(self)
        return number

    def all(self, things: Iterable[K]) -> Int64s:
        return np.array(list(map(self.__getitem__, things)), dtype=np.int64)


def _where(names: list[bytes], wanted: Callable[[bytes], bool]) -> Bools:
    """Most names come often, and mostly all are wanted."""
    different = set(names)
    chosen = {name for name in different if wanted(name)}
    if len(chosen) == len(different):
        return np.ones(len(names), dtype=np.bool_)
    return np.array([name in chosen for name in names], dtype=np.bool_)


def _host(taken: Taken, threads: Numbered[tuple[int, int]], names: Numbered[bytes], *more: Int64s) -> Int64s:
    """In the columns of `Found`. Events of one thread often follow each other."""
    process, thread = taken.columns[:, 2], taken.columns[:, 3]
    others = np.ones(len(thread), dtype=np.bool_)
    others[1:] = (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])
    numbers = threads.all(zip(process[others].tolist(), thread[others].tolist(), strict=True))
    return np.column_stack((taken.columns[:, :2], numbers[np.cumsum(others) - 1], names.all(taken.names), *more))


def _given(chunk: bytes, begins: Int64s, ends: Int64s) -> list[bytes]:
    """What the file says of the inputs of each operator."""
    given = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        at = chunk.find(_INPUTS, begin, end)
        given.append(chunk[at : chunk.rfind(b"]", at, end) + 1] if at >= 0 else b"")
    return given


# -- what is read of events of one shape; `Unusual` and its like where the shape has it in another form --------


def _spans(events: Events, *categories: str) -> list[Int64s]:
    if events.pattern["cat"] not in categories:
        raise Unusual
    return [*events.times(), events.whole(events.pattern["pid"]), events.thread()]


def _operator_columns(events: Events) -> list[Int64s]:
    if "args" in events.pattern:  # what it was given is looked for behind its duration
        raise Unusual
    return _spans(events, "cpu_op", "Operator")


def _function_columns(events: Events) -> list[Int64s]:
    return _spans(events, "python_function")


def _call_columns(events: Events) -> list[Int64s]:
    correlation = events.whole(events.pattern["args"]["correlation"])
    return [*_spans(events, "cuda_runtime", "cuda_driver"), correlation]


def _kernel_columns(events: Events) -> list[Int64s]:
    """As of `Trace.kernels`, without the name."""
    args = events.pattern["args"]
    if events.pattern["cat"] != "kernel" or COLLECTIVE_NAME in args:
        raise Unusual
    unknown = np.full(len(events.names), UNKNOWN)
    return [
        *events.times(),
        events.whole(args["device"], most=LARGEST_SIZE),
        events.whole(args["correlation"]),
        events.whole(args["stream"], most=LARGEST_SIZE),
        np.minimum(events.whole(args["graph node id"]), 1) if "graph node id" in args else unknown + 1,
        events.whole(args["shared memory"], most=LARGEST_SIZE) if "shared memory" in args else unknown,
        *(events.whole(size, least=1, most=LARGEST_SIZE) for size in (*_three(args["grid"]), *_three(args["block"]))),
    ]


def _three(sizes: object) -> list[object]:
    if not isinstance(sizes, list) or len(sizes) != 3:
        raise Unusual
    return sizes


def _stands_at(text: Bytes, at: Int64s, word: bytes) -> bool:
    return all((text[at + place] == letter).all() for place, letter in enumerate(word))


def _places(text: Bytes, word: bytes) -> Int64s:
    """Where a short word stands in a long text, told by the third of its letters: the rarest of `"ph"` in JSON."""
    at = np.flatnonzero(text == word[2]) - 2
    at = at[(at >= 0) & (at <= len(text) - len(word))]
    for place, letter in enumerate(word):
        at = at[text[at + place] == letter]
    return at
