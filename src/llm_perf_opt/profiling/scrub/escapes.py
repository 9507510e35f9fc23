r"""Texts in which JSON escapes are as few as can be, so that a word is found however it was written.

`\u0068\u0066\u005f` is `hf_` to whoever reads JSON. The result means the same in a JSON text.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from functools import partial

# With what stands before it: of `\\u0041` the first backslash escapes the second.
_ESCAPE = re.compile(
    r"(?<!\\)(?P<before>(?:\\\\)*)\\(?:"
    r"u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u(?P<code>[0-9a-fA-F]{4})"
    r"|(?P<slash>/))"
)
_IN_A_PAGE = "<>&\u2028\u2029"  # what could end a script there stays escaped


def has_escapes(text: str) -> bool:
    """May `plainly_written` change anything? A quick look."""
    return "\\u" in text or "\\/" in text


def plainly_written(text: str, *, page: bool = False) -> str:
    """The same text with every character written out that JSON allows to be, and a page that JSON is in."""
    return _ESCAPE.sub(partial(_plain, _IN_A_PAGE if page else ""), text) if has_escapes(text) else text


def _plain(escaped: str, found: re.Match[str]) -> str:
    before = found["before"]
    if found["slash"]:
        # `<\/script>` is another way to keep a script from ending.
        return found[0] if escaped and found.string[found.start() - 1 : found.start()] == "<" else f"{before}/"
    if found["high"]:
        code = 0x10000 + ((int(found["high"], 16) - 0xD800) << 10) + int(found["low"], 16) - 0xDC00
    else:
        code = int(found["code"], 16)
    if 0xD800 <= code <= 0xDFFF or 0x7F <= code < 0xA0 or chr(code) in escaped:
        return before + found[0][len(before) :].lower()
    return before + json.dumps(chr(code), ensure_ascii=False)[1:-1]


def line_blocks(data: bytes | mmap.mmap, size: int) -> Iterator[bytes]:
    """Whole lines, about `size` bytes at a time."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + size)
        end = len(data) if end < 0 else end + 1
        yield data[start:end]
        start = end
