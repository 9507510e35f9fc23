"""Packed files of every lawful shape are read whole, others are refused, and none fills disk or memory."""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import plain_bytes, recording
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.open import read_recording, unpacked
from llm_perf_opt.readers.packed import MAX_RATIO, SMALL
from llm_perf_opt.readers.xz import xz_parts

CONTENT = bytes(range(256)) * 500
PLACES = (1, 16 << 10, 70_000, len(CONTENT))  # where it is cut into streams, at and beside the size of a read


def packed(*contents: bytes, padding: int = 0, check: int = lzma.CHECK_CRC64) -> bytes:
    return b"".join(lzma.compress(content, check=check) + bytes(padding) for content in contents)


LAWFUL: dict[str, Callable[[], bytes]] = {
    "one": lambda: packed(CONTENT),
    "padding behind it": lambda: packed(CONTENT, padding=4),
    "more padding than is read at once": lambda: packed(CONTENT, padding=40_000),
    "several": lambda: b"".join(packed(CONTENT[a:b]) for a, b in zip((0, *PLACES), PLACES, strict=False)),
    "several with padding": lambda: packed(
        *(CONTENT[i : i + 40_000] for i in range(0, len(CONTENT), 40_000)), padding=8
    ),
    "empty streams between": lambda: packed(b"", CONTENT[:9], b"", b"", CONTENT[9:], b"", padding=12),
    "hundreds": lambda: packed(*(CONTENT[i : i + 500] for i in range(0, len(CONTENT), 500))),
    "no checksum": lambda: packed(CONTENT, padding=4, check=lzma.CHECK_NONE),
    "gz in members with zeros behind": lambda: gzip.compress(CONTENT[:77]) + gzip.compress(CONTENT[77:]) + bytes(512),
}


@pytest.mark.parametrize("make", LAWFUL.values(), ids=LAWFUL)
def test_every_lawful_shape_is_read_whole(make: Callable[[], bytes], tmp_path: Path) -> None:
    file = tmp_path / "packed"
    file.write_bytes(make())
    with unpacked(file, "packed") as plain:
        assert plain.read_bytes() == CONTENT


@pytest.mark.process
@pytest.mark.skipif(shutil.which("xz") is None, reason="needs xz")
def test_xz_itself_calls_the_padded_ones_lawful() -> None:
    for name, make in LAWFUL.items():
        if not name.startswith("gz"):
            assert subprocess.run(["xz", "-dc"], input=make(), capture_output=True).stdout == CONTENT, name


def test_a_recording_with_padding_is_read(tmp_path: Path) -> None:
    original = recording("nsys-*-threads.sqlite")
    file = tmp_path / "padded.sqlite.xz"
    file.write_bytes(lzma.compress(plain_bytes(original), preset=0) + bytes(4))
    assert read_recording(file).diagnostics == read_recording(original).diagnostics


@pytest.mark.parametrize(
    "data",
    [
        packed(CONTENT)[:-1],
        packed(CONTENT)[:-20],
        packed(CONTENT, padding=4) + packed(CONTENT)[:7],
        packed(CONTENT, CONTENT)[:-13],
        packed(CONTENT) + packed(CONTENT).replace(b"YZ", b"ZY"),
        packed(CONTENT)[:40] + b"\xff" * 40,
    ],
    ids=["last byte", "index", "second header", "second stream", "second end", "middle"],
)
def test_what_is_cut_off_or_damaged_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "cut.sqlite.xz"
    file.write_bytes(data)
    with pytest.raises(UnreadableInput, match="truncated or damaged"):
        read_recording(file)


@pytest.mark.parametrize("padding", [0, 4])
def test_something_else_behind_the_last_stream_is_refused(padding: int, tmp_path: Path) -> None:
    """As `xz` and `gzip` refuse it: it may be the rest of a recording, damaged."""
    file = tmp_path / "longer.sqlite.xz"
    file.write_bytes(packed(plain_bytes(recording("nsys-*-threads.sqlite")), padding=padding) + b"signature")
    with pytest.raises(UnreadableInput, match="behind its last stream"):
        read_recording(file)


def test_a_bomb_in_many_streams_is_refused(tmp_path: Path) -> None:
    """Each of them is harmless alone."""
    stream = packed(bytes(8 << 20), padding=4)
    assert len(stream) * MAX_RATIO < SMALL
    file = tmp_path / "bomb.sqlite.xz"
    file.write_bytes(stream * 20)
    with pytest.raises(UnreadableInput, match=f"more than {MAX_RATIO} times"):
        read_recording(file)


def test_a_hundred_thousand_empty_streams_are_read_in_time() -> None:
    began = time.process_time()
    assert list(xz_parts(io.BytesIO(packed(b"") * 100_000))) == []
    assert time.process_time() - began < 10


def test_a_stream_that_asks_for_gigabytes_of_memory_is_refused(tmp_path: Path) -> None:
    stream = bytearray(lzma.compress(CONTENT, check=lzma.CHECK_NONE))
    at = stream.index(b"\x21\x01") + 2  # the filter LZMA2, and how large its dictionary is
    stream[at] = 40  # four gigabytes
    header = bytes(stream[12 : 12 + (stream[12] + 1) * 4 - 4])
    stream[12 + len(header) : 16 + len(header)] = zlib.crc32(header).to_bytes(4, "little")
    file = tmp_path / "hungry.sqlite.xz"
    file.write_bytes(stream)
    with pytest.raises(UnreadableInput, match=r"[Mm]emory"):
        read_recording(file)
