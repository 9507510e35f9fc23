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


# As others than JSON write a character: `\x41`, `\101`, `\u{41}`, `\U00000041`, `%41`, `&#65;`, `&#x41;`. With any number
# of backslashes: a text may have been escaped more than once.
_OTHER = re.compile(
    rb"\\+(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})|u(?P<unit>[0-9a-fA-F]{4})"
    rb"|u\{(?P<braced>[0-9a-fA-F]{1,6})\}|U(?P<long>[0-9a-fA-F]{8}))"
    rb"|%(?P<percent>[0-9a-fA-F]{2})|&#(?:(?P<decimal>[0-9]{1,7})|[xX](?P<entity>[0-9a-fA-F]{1,6}));"
)
_NAMED = {'"': ("&quot;",), "'": ("&apos;",), "<": ("&lt;",), ">": ("&gt;",), "&": ("&amp;",)}
_BYTES = ("hex", "octal", "percent")  # the others are numbers of characters
# What would end a line, a text of JSON, an element of a page or a cell of a table.
_SYNTAX = bytes(range(0x20)) + b"\"'\\<>&|`\x7f"


def may_hide(text: bytes | mmap.mmap) -> bool:
    """May `uncovered` change anything? A quick look."""
    return any(text.find(sign) >= 0 for sign in (b"\\", b"%", b"&#"))


def uncovered(text: bytes, keep: bytes = b"") -> bytes:
    """The same with every character written out that an escape of any kind stands for, but for those of `keep`."""
    return _OTHER.sub(partial(_written_out, keep), text)


def uncovered_line(line: str) -> str:
    """The same for a line of a text, which stays one line, and JSON or Markdown where it was."""
    data = line.encode("utf-8", "surrogateescape")
    return uncovered(data, _SYNTAX).decode("utf-8", "surrogateescape") if may_hide(data) else line


def in_any_form(word: str) -> re.Pattern[str]:
    """Finds a word with each of its characters written plainly or as any escape. Slow: for texts that hold it."""
    return re.compile("".join(map(_forms_of_character, word)))


def _forms_of_character(character: str) -> str:
    data = character.encode("utf-8", "surrogateescape")
    code = ord(character)
    as_bytes = "".join(rf"(?:\\+(?:x(?i:{byte:02x})|{byte:03o})|%(?i:{byte:02x}))" for byte in data)
    as_code = rf"\\+(?:u(?i:{code:04x})|u\{{0*(?i:{code:x})\}}|U(?i:{code:08x}))|&#(?:0*{code}|[xX]0*(?i:{code:x}));"
    named = "".join(f"|{name}" for name in _NAMED.get(character, ()))
    return rf"(?:\\*{re.escape(character)}|{as_bytes}|{as_code}{named})"


def _written_out(keep: bytes, found: re.Match[bytes]) -> bytes:
    kind = str(found.lastgroup)
    code = int(found[kind], {"octal": 8, "decimal": 10}.get(kind, 16))
    if (code < 0x80 and code in keep) or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        return found[0]
    return bytes([code]) if kind in _BYTES else chr(code).encode()


def line_blocks(data: bytes | mmap.mmap, size: int) -> Iterator[bytes]:
    """Whole lines, about `size` bytes at a time."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + size)
        end = len(data) if end < 0 else end + 1
        yield data[start:end]
        start = end
