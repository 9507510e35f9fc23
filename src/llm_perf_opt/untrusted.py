"""Small files that may come from anybody: read with a limit, and never a surprise but `OSError` or `ValueError`.

A run directory that was sent around can hold a pipe where a manifest should be, a gigabyte of spaces, or
brackets nested a million deep. Recordings have readers of their own; this is for the JSON and text beside them.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

DEEPEST = 100  # levels; a report has twenty, and one more for each region inside another
LARGEST = 64 << 20  # bytes; a hundred times the largest manifest seen


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
        found = json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    try:
        refuse_deep(found)
    except _TooLargeError:
        json.loads(text, parse_float=_finite)  # once more, to name it
        raise
    return found


def refuse_deep(value: Any, deepest: int = DEEPEST) -> None:
    """What can be parsed may still be too deep for all that goes through it later, which takes several calls a level.

    Numbers that were written too large for a float are refused on the way: looking at the text takes longer.
    """
    level = [value]
    for _ in range(deepest):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, float) and math.isinf(one):
                raise _TooLargeError("a number is too large")
        level = inner
        if not level:
            return
    raise ValueError("it is nested too deeply")


class _TooLargeError(ValueError):
    """A number that no float can hold."""


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"the number {number[:40]} is too large")
    return 0.0


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
