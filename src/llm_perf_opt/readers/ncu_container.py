"""The outer shell of an `.ncu-rep` file: what NVIDIA's reader does not tell.

A report is the magic `NVR\\0`, a length-prefixed header, and then blocks: a length-prefixed protobuf
header that says how much payload follows, how many results are in it and which process they are of.
`ncu-report` reads a file that was cut off without a word and has no call for the process id, so both
are taken from here. Only the block headers are looked at; checked on reports of ncu 2020 to 2025.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import define

from llm_perf_opt.errors import UnreadableInput

MAGIC = b"NVR\x00"

# Field numbers of a block header.
_KERNEL_RESULTS, _PAYLOAD_BYTES, _PROCESS, _RANGE_RESULTS, _GRAPH_RESULTS = 2, 5, 6, 7, 9
_PROCESS_ID = 1

_VARINT, _BYTES = 0, 2  # kinds of fields
_LENGTHS = {1: 8, 5: 4}  # of fields of the other kinds

_Fields = dict[int, int | bytes]


@define
class Container:
    """What the block headers say."""

    process_ids: list[int]  # in order of appearance, no repeats
    process_of_result: list[int] | None  # pid of each result; None where the blocks do not tell
    results: int  # kernels, ranges and graphs that should be in the file


def read_container(path: Path, source: str) -> Container:
    """Walk the blocks; a file that does not end where its last block does is cut off or damaged."""
    size = path.stat().st_size
    pids: list[int] = []
    per_result: list[int] = []
    results = 0
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise UnreadableInput(f"{source} is not an Nsight Compute report: it does not begin with NVR.")
        try:
            file.seek(int.from_bytes(_exactly(file.read(4), 4), "little"), 1)
            while file.tell() < size:
                length = int.from_bytes(_exactly(file.read(4), 4), "little")
                if length > size:
                    raise ValueError
                block = _fields(_exactly(file.read(length), length))
                process = block.get(_PROCESS)
                pid = _number(_fields(process).get(_PROCESS_ID)) if isinstance(process, bytes) else 0
                if pid and pid not in pids:
                    pids.append(pid)
                per_result += [pid] * min(_number(block.get(_KERNEL_RESULTS)), 1_000_000)
                results += sum(_number(block.get(f)) for f in (_KERNEL_RESULTS, _RANGE_RESULTS, _GRAPH_RESULTS))
                file.seek(_number(block.get(_PAYLOAD_BYTES)), 1)
            whole = file.tell() == size
        except (ValueError, IndexError, OverflowError):
            whole = False
    if not whole:
        raise UnreadableInput(
            f"{source} is a damaged Nsight Compute report: it is cut off, or its blocks do not add up to its {size:,} bytes.",
            "Copy the file again; if ncu was killed while writing, profile again.",
        )
    return Container(pids, per_result if all(per_result) else None, results)


def block_spans(data: bytes) -> Iterator[tuple[tuple[int, int], list[tuple[int, int]]]]:
    """Where each block's header and each of its results lie in a whole report: (start, end) of the messages."""
    try:
        at = 8 + int.from_bytes(_exactly(data[4:8], 4), "little")
        while at < len(data):
            start = at + 4
            end = start + int.from_bytes(_exactly(data[at:start], 4), "little")
            payload = _number(_fields(_exactly(data[start:end], end - start)).get(_PAYLOAD_BYTES))
            at, last = end, end + payload
            results = []
            while at < last:
                size = int.from_bytes(_exactly(data[at : at + 4], 4), "little")
                results.append((at + 4, at + 4 + size))
                at += 4 + size
            if at != last or last > len(data):
                raise ValueError("a result is longer than its block")
            yield (start, end), results
    except (ValueError, IndexError, OverflowError) as error:
        raise UnreadableInput("The Nsight Compute report is damaged: its blocks do not add up.") from error


def field_spans(data: bytes, start: int, end: int) -> list[tuple[int, int, int]] | None:
    """(number, start, end) of the texts and messages in a protobuf message; None where it is none."""
    try:
        found = list(_walk(data, start, end))
    except (IndexError, ValueError):
        return None
    if any(number == 0 and kind != _VARINT for number, kind, _, _ in found):
        return None
    return [(number, begin, last) for number, kind, begin, last in found if kind == _BYTES]


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ValueError("end of file")
    return data


def _number(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("not a varint")


def _walk(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a protobuf message: number, kind, begin and end of the value. ValueError where it is none."""
    at = start
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        length = _LENGTHS.get(kind)
        if kind == _VARINT:
            length = _varint(data, at)[1] - at
        elif kind == _BYTES:
            length, at = _varint(data, at)
        if length is None:
            raise ValueError("not a protobuf message")
        if at + length > end:
            raise ValueError("field is longer than its message")
        yield number, kind, at, at + length
        at += length


def _fields(data: bytes) -> _Fields:
    """The last value of each field of a protobuf message."""
    return {
        number: _varint(data, at)[0] if kind == _VARINT else data[at:end]
        for number, kind, at, end in _walk(data, 0, len(data))
    }
