"""The events of a large PyTorch trace, a few megabytes at a time: half the time of decoding the whole, and little memory.

What `kineto_sieve` neither drops nor takes from the text is decoded by orjson. Of a large trace, most chunks go through
the sieve in a second process (`kineto_helper`); they are taken here, in their order. Whatever is not as Kineto and its
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
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO

import orjson
from attrs import define

from llm_perf_opt.readers.kineto_code import Found, HostCode, HostRows
from llm_perf_opt.readers.kineto_helper import Helper
from llm_perf_opt.readers.kineto_json import EXACT_FLOATS, Damaged, JsonText
from llm_perf_opt.readers.kineto_sieve import Layout, Sieve, layout_of
from llm_perf_opt.readers.packed import most_unpacked, unpacks_to_too_much

CHUNK = 4 << 20
_PACKED = 256 << 10  # bytes that are unpacked at once
_GZIP_BITS = 31  # zlib's way to say: gzip, with the largest window
_WAITING = 4  # parts that are unpacked before they are needed
_BEGUN = 3  # chunks that wait for an earlier one
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
    if not member.eof and (part := member.flush()):  # at the end it would note twice what is behind
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


@define
class _Chunk:
    """Some whole events."""

    text: bytes
    found: Found | None = None
    slot: int | None = None  # of the helper, where it is to find them


class Chunks:
    """Reads events from the beginning of the list for as long as they are as usual; `rest` is the text without them."""

    def __init__(
        self,
        parts: Iterator[bytes],
        take: Callable[[list[Any], HostRows | None], None],
        code: HostCode,
        helper: Helper | None = None,
    ) -> None:
        self._parts = parts
        self._take = take
        self._code = code
        self._helper = helper
        self._layout: Layout | None = None
        self._sieve: Sieve | None = None
        self._decode = _decoded
        self.taken = 0  # bytes that `rest` lacks
        self.dropped = 0  # events
        self.rest = self._read()

    def _read(self) -> bytes:
        head = b"".join(islice(self._parts, 2))
        begin = _BEGINS.match(head)
        if begin is None or len(head) <= CHUNK or not _is_of_trace(head[: begin.end()]):
            return head + b"".join(self._parts)
        self._layout = layout_of(head, begin.end())
        self._sieve = Sieve(*self._layout) if self._layout else None
        lead = self._layout[0] if self._layout else begin[1]
        at = begin.end()
        head, held = head[:at], [head[at:]]
        begun: deque[_Chunk] = deque()
        for part in self._parts:
            cut = part.rfind(lead)
            if cut < 0:
                held.append(part)
                continue
            begun.append(self._begun(b"".join([*held, part[:cut]])))
            held = [part[cut:]]
            if not self._finish(begun, _BEGUN):
                break
        else:
            self._finish(begun, 0)
        return b"".join([head, *(chunk.text for chunk in begun), *held, *self._parts])

    def _begun(self, text: bytes) -> _Chunk:
        slot = self._helper.give(text, self._layout) if self._helper and self._layout else None
        return _Chunk(text, self._found(text) if slot is None else None, slot)

    def _finish(self, begun: deque[_Chunk], most: int) -> bool:
        """Take the chunks that are ready, and others until no more than so many are left; False where one is damaged."""
        while begun and (len(begun) > most or begun[0].slot is None or (self._helper and self._helper.has_answered())):
            chunk = begun[0]
            if self._helper and chunk.slot is not None:
                chunk.found = self._helper.answer(chunk.slot) or self._found(chunk.text)
            if not self._read_chunk(chunk.text, chunk.found):
                return False
            if self._helper and chunk.slot is not None:
                self._helper.free(chunk.slot)
            begun.popleft()
        return True

    def _found(self, chunk: bytes) -> Found | None:
        return self._sieve(chunk) if self._sieve else None

    def _read_chunk(self, chunk: bytes, found: Found | None) -> bool:
        """Take the events of a chunk; False where it is none of whole events."""
        if not chunk.rstrip().endswith(b","):
            return False
        left, rows = chunk, None
        if found and self._sieve:
            found = found if self._code.knows_threads_of(found) else found.without_calls()
            with contextlib.suppress(ValueError):
                rows = self._code.rows_of(found)
                left = self._sieve.what_is_left(chunk, found)
        text = b"[" + left.rstrip().removesuffix(b",") + b"]"
        events = self._decode(text)
        if events is not None and _too_large(events):
            self._decode = _with_digits
            events = self._decode(text)
        if events is None:
            return False
        self._take(events, rows)
        self.taken += len(chunk)
        self.dropped += found.events if found and rows else 0
        return True


def _is_of_trace(head: bytes) -> bool:
    """Is the list that begins at the end of this text the trace's own, and not that of something inside it?"""
    text = head.decode("utf-8", "replace").lstrip()
    with contextlib.suppress(Damaged):
        JsonText(text + ("]}" if text.startswith("{") else "]")).value(0)
        return True
    return False


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
