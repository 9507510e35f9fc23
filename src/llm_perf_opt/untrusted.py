"""Small files that may come from anybody: read with a limit, and never a surprise but `OSError` or `ValueError`.

A run directory that was sent around can hold a pipe where a manifest should be, a gigabyte of spaces, or
brackets nested a million deep. Recordings have readers of their own; this is for the JSON and text beside them.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

DEEPEST = 100  # levels; a report has twenty, and one more for each region inside another
LARGEST = 64 << 20  # bytes; a hundred times the largest manifest seen
# A number that is too large has an exponent of three digits, or hundreds of digits. Where a text has neither, its numbers
# need no second look, which takes longer than all else.
_MAY_BE_INFINITE = re.compile(r"[0-9][eE]\+?[0-9]{3}|[0-9]{200}")


def read_head(path: Path, size: int) -> bytes:
    """The beginning of a regular file; `OSError` where it is none."""
    # Not blocking: opening a pipe would block until another process writes into it.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(None, "it is not a regular file", str(path))
        return file.read(size)


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """A whole regular file. `OSError` where it is none, `ValueError` where it is larger than `most`."""
    content = read_head(path, most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MB")
    return content


def read_text(path: Path, most: int = LARGEST, errors: str = "strict") -> str:
    """The same as text in UTF-8; `ValueError` where it is none."""
    return read_bytes(path, most).decode("utf-8", errors)


def read_json(path: Path, most: int = LARGEST) -> Any:
    """The content of a JSON file; `OSError` or `ValueError` where it has none."""
    return parse_json(read_text(path, most))


def parse_json(text: str) -> Any:
    """A JSON text. NaN and infinities are refused: JSON has none, and every comparison with them fails later."""
    try:
        parse_float = _finite if _MAY_BE_INFINITE.search(text) else None
        found = json.loads(text, parse_constant=_refused, parse_float=parse_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    refuse_deep(found)
    return found


def refuse_deep(value: Any, deepest: int = DEEPEST) -> None:
    """What can be parsed may still be too deep for all that goes through it later, which takes several calls a level."""
    level = [value]
    for _ in range(deepest):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number
