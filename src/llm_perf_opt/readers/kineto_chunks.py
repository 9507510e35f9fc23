"""The events of a large PyTorch trace, a few megabytes at a time: half the time of decoding the whole, and little memory.

What `kineto_sieve` neither drops nor takes from the text is decoded by orjson. Whatever is not as Kineto and its
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
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO

import orjson

from llm_perf_opt.readers.kineto_code import HostCode, HostRows
from llm_perf_opt.readers.kineto_columns import Unusual
from llm_perf_opt.readers.kineto_json import EXACT_FLOATS, Damaged, JsonText
from llm_perf_opt.readers.kineto_sieve import PHASE_FIRST, Sieve
from llm_perf_opt.readers.packed import most_unpacked, unpacks_to_too_much

CHUNK = 4 << 20
_PACKED = 256 << 10  # bytes that are unpacked at once
_GZIP_BITS = 31  # zlib's way to say: gzip, with the largest window
_WAITING = 4  # parts that are unpacked before they are needed
_BEGINS = re.compile(rb'(?:\s*\[|\s*\{(?:[^\0]{0,1000000}?,)??\s*"traceEvents"\s*:\s*\[)\s*(?=(\{\s*"\w+"\s*:\s*"?))')


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
        for part in _unpacked(stream):
            if not _handed_over(part, ready, closed):
                return
        _handed_over(b"", ready, closed)
    except BaseException as error:  # raised where the parts are asked for
        _handed_over(error, ready, closed)


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """Large pieces: before each, this thread waits until the other lets it. The gzip of Python 3.11 takes 8 kB at a time."""
    member = zlib.decompressobj(wbits=_GZIP_BITS)
    packed = stream.read(_PACKED)
    while packed:
        if part := member.decompress(packed, CHUNK):
            yield part
        if member.eof:
            break
        packed = member.unconsumed_tail or stream.read(_PACKED)
    if part := member.flush():
        yield part
    if not member.eof:
        raise EOFError
    behind = member.unused_data.lstrip(b"\0")
    while not behind and (packed := stream.read(_PACKED)):
        behind = packed.lstrip(b"\0")
    if behind:  # files that were appended to each other
        stream.seek(-len(behind), os.SEEK_CUR)
        with gzip.GzipFile(fileobj=stream) as others:
            while part := others.read(CHUNK):
                yield part


def _handed_over(
    part: bytes | BaseException, ready: queue.Queue[bytes | BaseException], closed: threading.Event
) -> bool:
    while not closed.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(part, timeout=0.1)
            return True
    return False


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
        phase_first = PHASE_FIRST.search(head, begin.end())
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
