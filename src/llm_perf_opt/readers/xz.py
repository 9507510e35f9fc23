"""What an .xz file holds, part by part: all its streams, with the padding that may lie behind each.

`lzma.open` takes zeros behind a stream for the beginning of another one that is cut off.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from typing import IO

MAGIC = b"\xfd7zXZ\x00"
# Small: of what lies behind a stream a copy is made, and a hostile file may have hundreds of thousands of streams.
_READ = 16 << 10
_PART = 1 << 20
# `xz -9` needs a tenth of it to unpack; a header may ask for four gigabytes.
_MOST_MEMORY = 700 << 20


def xz_parts(file: IO[bytes]) -> Iterator[bytes]:
    """The unpacked content. `EOFError` where it is cut off, `lzma.LZMAError` where it is damaged."""
    data = file.read(_READ)
    first = True
    while True:
        # Not ignored: half of a recording could lie there, damaged, and a report of the rest would look whole.
        if not first and not data.startswith(MAGIC[: len(data)]):
            raise lzma.LZMAError("something that is no xz lies behind its last stream")
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        part = decoder.decompress(data, _PART)
        while True:
            if part:
                yield part
            if decoder.eof:
                break
            more = file.read(_READ) if decoder.needs_input else b""
            if decoder.needs_input and not more:
                raise EOFError("the end of the stream is missing")
            part = decoder.decompress(more, _PART)
        first = False
        data = decoder.unused_data.lstrip(b"\0")
        while not data:
            if not (more := file.read(_READ)):
                return
            data = more.lstrip(b"\0")
