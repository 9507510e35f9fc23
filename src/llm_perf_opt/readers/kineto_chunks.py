"""The events of a large PyTorch trace, a few megabytes at a time: half the time of decoding the whole, and little memory.

Most events of a trace are arrows between the host and the GPU, operators and functions of Python. A sieve drops the
first and takes what is needed of the others from their text; the rest is decoded by orjson. Whatever is not as Kineto and its
followers write it (another encoding, numbers that JSON does not know, damage) is left to the careful reader: the
chunks only take events away from the beginning of the list, and what remains is still a whole text.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO

import orjson

from llm_perf_opt.readers.kineto_code import Found, HostCode, HostRows
from llm_perf_opt.readers.kineto_columns import Unusual
from llm_perf_opt.readers.kineto_json import EXACT_FLOATS, Damaged, JsonText
from llm_perf_opt.readers.kineto_operators import STEP
from llm_perf_opt.readers.packed import most_unpacked, unpacks_to_too_much
from llm_perf_opt.regions.columns import SHORTEST_EVENT

CHUNK = 4 << 20
_WAITING = 4  # parts that are unpacked before they are needed
_BEGINS = re.compile(rb'(?:\s*\[|\s*\{(?:[^\0]{0,1000000}?,)??\s*"traceEvents"\s*:\s*\[)\s*(?=(\{\s*"\w+"\s*:\s*"?))')
_PHASE_FIRST = re.compile(rb'\{\s*"ph"(\s*:\s*)"(?=X"(\s*,\s*)"cat")')  # how colons and commas are written
_FLOWS = b"stf"
_INPUTS = b'"Input '  # "Input type", "Input Dims", "Input Strides": one behind the other


def _host_code(colon: bytes, comma: bytes) -> re.Pattern[bytes]:
    """An operator or a function of Python: its kind, name, thread, start and duration, as the file writes them.

    Steps are ranges. The pattern has next to no choices: it is tried a million times.
    """
    c, then, step = (re.escape(text) for text in (colon, comma, STEP.encode()))
    return re.compile(
        rb'X"%s"cat"%s"(cpu_op|Operator|python_function)"%s' % (then, c, then)
        + rb'"name"%s"(?!%s)([^"\\]*)"%s' % (c, step, then)
        + rb'("pid"%s[^,]+,\s*"tid"%s[^,]+),\s*"ts"%s([0-9.]+),\s*"dur"%s([0-9.]+)[,}\s]' % (c, c, c, c)
    )


_LONG = SHORTEST_EVENT / 1000


def is_gzipped(stream: BinaryIO) -> bool:
    magic = stream.read(2)
    stream.seek(-len(magic), os.SEEK_CUR)
    return magic == b"\x1f\x8b"


def unpacked_parts(stream: BinaryIO, source: str) -> Iterator[bytes]:
    """The bytes of a plain or gzipped file. zlib lets others work meanwhile: the next parts are unpacked by a thread."""
    if not is_gzipped(stream):
        while part := stream.read(CHUNK):
            yield part
        return
    here = stream.tell()
    most = most_unpacked(stream.seek(0, os.SEEK_END) - here)
    stream.seek(here)
    ready: queue.Queue[bytes | BaseException] = queue.Queue(_WAITING)
    closed = threading.Event()
    threading.Thread(target=_unpack, args=(stream, ready, closed), daemon=True).start()
    try:
        while unpacked := ready.get():
            if isinstance(unpacked, BaseException):
                raise unpacked
            most -= len(unpacked)
            if most < 0:
                raise unpacks_to_too_much(source)
            yield unpacked
    finally:
        closed.set()


def _unpack(stream: BinaryIO, ready: queue.Queue[bytes | BaseException], closed: threading.Event) -> None:
    """Until the end, or until nobody wants more."""
    try:
        with gzip.GzipFile(fileobj=stream) as packed:
            part = packed.read(CHUNK)
            while part and _handed_over(part, ready, closed):
                part = packed.read(CHUNK)
        _handed_over(b"", ready, closed)
    except BaseException as error:  # raised where the parts are asked for
        _handed_over(error, ready, closed)


def _handed_over(
    part: bytes | BaseException, ready: queue.Queue[bytes | BaseException], closed: threading.Event
) -> bool:
    while not closed.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(part, timeout=0.1)
            return True
    return False


class Sieve:
    """Takes operators and functions from the text of events, and drops what tells nothing; the rest is to be decoded."""

    def __init__(self, layout: re.Match[bytes], code: HostCode) -> None:
        self._lead = layout[0]  # what every event begins with, up to its phase
        self._host_code = _host_code(layout[1], layout[2])
        self._code = code
        self.dropped = 0

    def __call__(self, chunk: bytes) -> tuple[bytes, HostRows] | None:
        """What is left of a chunk, and the rows of what is not; None where it cannot be told."""
        before, *events = chunk.split(self._lead)
        if before or chunk.count(b'"ph"') != len(events):
            return None  # others are among them, in another order of members
        if not all(events):
            return None
        kept, found, shapes = [], Found(), _INPUTS in chunk
        operators, functions, inputs = found.operators.append, found.functions.append, found.inputs.append
        host_code, kinds = self._host_code.match, self._code.kinds
        for event in events:  # two million of them: nothing is called here that need not be
            if event[0] in _FLOWS:
                continue
            match = host_code(event)
            if match is None:
                kept.append(event)
            elif match[1] == b"python_function":
                text = match.group(2, 3, 4, 5)
                if kinds[text[0]] or float(text[3]) >= _LONG:
                    functions(text)
            else:
                operators(match.group(2, 3, 4, 5))
                if shapes:
                    at = event.find(_INPUTS, match.end())
                    inputs(event[at : event.rfind(b"]") + 1] if at >= 0 else b"")
        rows = self._code.rows_of(found)
        self.dropped += len(events) - len(kept)
        return self._lead + self._lead.join(kept) if kept else b"", rows


class Chunks:
    """Reads events from the beginning of the list for as long as they are as usual; `rest` is the text without them."""

    def __init__(
        self, parts: Iterator[bytes], take: Callable[[list[Any], HostRows | None], None], code: HostCode
    ) -> None:
        self._parts = parts
        self._take = take
        self._code = code
        self._decode = _decoded
        self.taken = 0  # bytes that `rest` lacks
        self.dropped = 0  # events
        self.rest = self._read()

    def _read(self) -> bytes:
        head = b"".join(islice(self._parts, 2))
        begin = _BEGINS.match(head)
        if begin is None or len(head) <= CHUNK:
            return head + b"".join(self._parts)
        phase_first = _PHASE_FIRST.search(head, begin.end())
        lead = phase_first[0] if phase_first else begin[1]
        sieve = Sieve(phase_first, self._code) if phase_first else None
        at = begin.end()
        head, held = head[:at], [head[at:]]
        for part in self._parts:
            held.append(part)
            cut = part.rfind(lead)
            if cut < 0:
                continue
            held[-1] = part[:cut]
            if not self._read_chunk(b"".join(held), sieve):
                held[-1] = part
                break
            held = [part[cut:]]
        self.dropped = sieve.dropped if sieve else 0
        return b"".join([head, *held, *self._parts])

    def _read_chunk(self, chunk: bytes, sieve: Sieve | None) -> bool:
        """Take the events of a chunk; False where it is none of whole events."""
        text = chunk.rstrip()
        if not text.endswith(b","):
            return False
        try:
            sieved = sieve(text) if sieve else None
        except (ValueError, Unusual):
            sieved = None
        left, host_code = sieved or (text, None)
        text = b"[" + left.rstrip().removesuffix(b",") + b"]"
        events = self._decode(text)
        if events is not None and _too_large(events):
            self._decode = _with_digits
            events = self._decode(text)
        if events is None:
            return False
        self._take(events, host_code)
        self.taken += len(chunk)
        return True


def _decoded(text: bytes) -> list[Any] | None:
    try:
        events: list[Any] = orjson.loads(text)
        return events
    except orjson.JSONDecodeError:
        return _with_digits(text)


def _with_digits(text: bytes) -> list[Any] | None:
    """By Python's decoder, which keeps the digits of numbers, and forgives what Kineto writes though JSON has it not."""
    events: list[Any] = []
    json_text = JsonText(text.decode("utf-8", "replace"))
    try:
        if json_text.list(0, events.append) != len(json_text.text):
            return None
    except Damaged:
        return None
    return events


def _too_large(events: list[Any]) -> bool:
    """Are times of these events, as floats, off by a nanosecond? Those of 2024 count from 1970 with three decimals."""
    first = next((event for event in events if isinstance(event, dict) and event.get("ph") == "X"), {})
    return isinstance(first.get("ts"), float) and first["ts"] >= EXACT_FLOATS
