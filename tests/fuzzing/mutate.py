"""Small damages to bytes, text, JSON and SQLite files; each takes the dice it is thrown with."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

Dice = random.Random

INTEGERS = [0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1]
NUMBERS: list[Any] = [*INTEGERS, *(-i for i in INTEGERS[1:]), -(2**63), 2**64, 10**30, 0.5, -0.0, 1e308, 5e-324]
TEXTS = [
    *(
        "",
        " ",
        "0",
        "-1",
        "1e999",
        "NaN",
        "null",
        "\x00",
        "\ud800",
        "a" * 5000,
        "../../x",
        "/etc/passwd",
        "<b>",
        "'\";--",
    ),
    *("🧨", "\u202e", "{{7*7}}", "%s", "1,5", "1.000,5", "=1+1", "regex:(", "\r\n", "\\", "ProfilerStep#1", "A/B@C"),
]


# -- bytes -----------------------------------------------------------------------------------------


def _span(dice: Dice, data: bytes, most: int = 4096) -> tuple[int, int]:
    start = dice.randrange(len(data) + 1)
    return start, min(len(data), start + dice.choice([1, 2, 4, 8, 16, 100, dice.randrange(1, most + 1)]))


def flip(dice: Dice, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(dice.choice([1, 1, 1, 2, 5, 20, 200])):
        if out:
            out[dice.randrange(len(out))] ^= dice.randrange(1, 256)
    return bytes(out)


def flip_early(dice: Dice, data: bytes) -> bytes:
    """Headers are where damage hurts."""
    out = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 4])):
        if out:
            out[dice.randrange(min(len(out), dice.choice([32, 128, 1024, 8192])))] = dice.randrange(256)
    return bytes(out)


def cut(dice: Dice, data: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def cut_front(dice: Dice, data: bytes) -> bytes:
    return data[dice.randrange(len(data) + 1) :]


def drop(dice: Dice, data: bytes) -> bytes:
    start, end = _span(dice, data)
    return data[:start] + data[end:]


def double(dice: Dice, data: bytes) -> bytes:
    start, end = _span(dice, data)
    return data[:end] + data[start:end] * dice.choice([1, 1, 2, 50]) + data[end:]


def fill(dice: Dice, data: bytes) -> bytes:
    start, end = _span(dice, data)
    return data[:start] + bytes([dice.choice([0, 255, 0x80, dice.randrange(256)])]) * (end - start) + data[end:]


def noise(dice: Dice, data: bytes) -> bytes:
    start, end = _span(dice, data)
    return data[:start] + dice.randbytes(end - start) + data[end:]


def number(dice: Dice, data: bytes) -> bytes:
    """An integer of some width, anywhere, that somebody may take for a length."""
    width, order = dice.choice([1, 2, 4, 8]), dice.choice(["big", "little"])
    value = dice.choice(INTEGERS) & (256**width - 1)
    at = dice.randrange(max(len(data) - width, 1))
    return data[:at] + value.to_bytes(width, order) + data[at + width :]  # type: ignore[arg-type]


def splice(dice: Dice, data: bytes, other: bytes) -> bytes:
    start, end = _span(dice, other, 65536)
    at = dice.randrange(len(data) + 1)
    keep = at if dice.random() < 0.5 else at + (end - start)
    return data[:at] + other[start:end] + data[keep:]


BYTES: list[Callable[[Dice, bytes], bytes]] = [
    *(flip, flip, flip_early, flip_early, cut, cut_front, drop, double, fill, noise, number, number)
]

OF_EQUAL_LENGTH: list[Callable[[Dice, bytes], bytes]] = [flip, flip, flip, flip_early, fill, noise, number]


def damaged(dice: Dice, data: bytes, other: bytes = b"") -> bytes:
    """One to three damages."""
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        data = splice(dice, data, other) if other and dice.random() < 0.1 else dice.choice(BYTES)(dice, data)
    return data


# -- SQLite pages ----------------------------------------------------------------------------------

_HEADER = [16, 18, 19, 20, 21, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 92, 96]


def damaged_pages(dice: Dice, data: bytes) -> bytes:
    """A damage that knows where lengths, counts and pointers of an SQLite file are."""
    out = bytearray(data)
    size = int.from_bytes(data[16:18], "big") or 4096
    pages = max(len(data) // size, 1)
    for _ in range(dice.choice([1, 1, 2, 4])):
        page = dice.randrange(pages) * size
        head = page + (100 if page == 0 else 0)
        cells = int.from_bytes(out[head + 3 : head + 5], "big")
        what = dice.choice(["header", "kind", "cells", "pointer", "record", "record", "swap", "copy", "child"])
        if what == "header":
            at = dice.choice(_HEADER)
            width = dice.choice([1, 2, 4])
            out[at : at + width] = (dice.choice(INTEGERS) & (256**width - 1)).to_bytes(width, "big")
        elif what == "kind":
            out[head] = dice.choice([0x02, 0x05, 0x0A, 0x0D, 0, 255])
        elif what == "cells":
            out[head + 3 : head + 5] = dice.choice([0, 1, cells + 1, cells * 2, 65535, 4000]).to_bytes(4, "big")[-2:]
        elif what == "child":
            out[head + 8 : head + 12] = dice.choice([0, 1, page // size + 1, pages, pages + 1, 2**32 - 1]).to_bytes(
                4, "big"
            )
        elif what in ("swap", "copy"):
            other = dice.randrange(pages) * size
            one, two = out[page : page + size], out[other : other + size]
            out[page : page + size] = two
            if what == "swap":
                out[other : other + size] = one
        elif cells:
            pointer = head + 8 + 2 * dice.randrange(min(cells, size // 2))
            at = page + int.from_bytes(out[pointer : pointer + 2], "big")
            if what == "pointer":
                value = dice.choice([0, 1, 7, 8, 100, size - 1, size - 4, 65535, dice.randrange(size)])
                out[pointer : pointer + 2] = value.to_bytes(4, "big")[-2:]
            elif at < len(out):
                # Payload length, row id, header length, type codes: all within the first bytes of a cell.
                at += dice.randrange(24)
                new = dice.choice([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff" * 9, b"\x81\x00", b"\x0b", b"\x0a"])
                out[at : at + len(new)] = new
    return bytes(out[: len(data)])


# -- SQLite content --------------------------------------------------------------------------------


def damaged_schema(dice: Dice, path: Path) -> None:
    """Changes tables and values of a database through SQL, in place; what SQLite refuses is left as it was."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        for _ in range(dice.choice([1, 1, 2, 4])):
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            interesting = [t for t in tables if t.startswith(("CUPTI", "NVTX", "String", "TARGET_INFO_GPU", "CUDA"))]
            table = dice.choice(interesting if interesting and dice.random() < 0.9 else tables)
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            column = dice.choice(columns)
            try:
                _change(dice, db, table, column)
            except (sqlite3.Error, OverflowError):
                continue
        if dice.random() < 0.3:
            db.execute("VACUUM")


def _change(dice: Dice, db: sqlite3.Connection, table: str, column: str) -> None:
    what = dice.choice(
        ["drop", "rename", "table", "null", "value", "value", "value", "type", "rows", "view", "norowid"]
    )
    some = f"rowid % {dice.choice([1, 2, 7, 50])} = 0"
    if what == "drop":
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif what == "rename":
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{dice.choice(["x", "start", "e nd", "ß"])}"')
    elif what == "table":
        db.execute(f'DROP TABLE "{table}"')
    elif what == "null":
        db.execute(f'UPDATE "{table}" SET "{column}" = NULL WHERE {some}')
    elif what == "value":
        values: list[Any] = [
            *(v for v in NUMBERS if isinstance(v, float) or -(2**63) <= v < 2**63),
            *(math.nan, math.inf, b"\x00\xff\xfe", *(t for t in TEXTS if t != "\ud800")),
        ]
        db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (dice.choice(values),))
    elif what == "type":
        db.execute(f'UPDATE "{table}" SET "{column}" = CAST("{column}" AS {dice.choice(["TEXT", "REAL", "BLOB"])})')
    elif what == "rows":
        db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {some}')
    elif what == "view":
        db.execute(f'ALTER TABLE "{table}" RENAME TO "was {table}"')
        db.execute(f'CREATE VIEW "{table}" AS SELECT * FROM "was {table}"')
    else:
        names = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        listed = ", ".join(f'"{name}"' for name in names)
        db.execute(f'CREATE TABLE "new" (own INTEGER PRIMARY KEY, {listed}) WITHOUT ROWID')
        db.execute(f'INSERT INTO "new" SELECT rowid, * FROM "{table}"')
        db.execute(f'DROP TABLE "{table}"')
        db.execute(f'ALTER TABLE "new" RENAME TO "{table}"')


# -- text ------------------------------------------------------------------------------------------


def damaged_lines(dice: Dice, data: bytes) -> bytes:
    """A damage to a table in text: lines, cells and numbers."""
    lines = data.split(b"\n")
    for _ in range(dice.choice([1, 1, 2, 5])):
        at = dice.randrange(len(lines))
        what = dice.choice(["drop", "double", "move", "cell", "cell", "cell", "quote", "join", "bytes", "head"])
        if what == "drop" and len(lines) > 1:
            del lines[at]
        elif what == "double":
            lines[at:at] = [lines[at]] * dice.choice([1, 2, 300])
        elif what == "move":
            lines.insert(dice.randrange(len(lines)), lines.pop(at))
        elif what == "cell":
            cells = lines[at].split(b'","')
            text = str(dice.choice([*NUMBERS, *TEXTS])).encode("utf-8", "surrogatepass")
            cells[dice.randrange(len(cells))] = text
            lines[at] = b'","'.join(cells)
        elif what == "quote":
            lines[at] = lines[at].replace(b'"', dice.choice([b"", b"'", b'""']), dice.choice([1, -1]))
        elif what == "join" and at + 1 < len(lines):
            lines[at : at + 2] = [lines[at] + lines[at + 1]]
        elif what == "bytes" and lines[at]:
            lines[at] = damaged(dice, lines[at])
        elif what == "head" and lines:
            first = next((i for i, line in enumerate(lines) if line.startswith(b'"ID"')), 0)
            lines[first] = damaged(dice, lines[first]) if lines[first] else b'"ID"'
    return b"\n".join(lines)


# -- JSON ------------------------------------------------------------------------------------------


def odd_value(dice: Dice, depth: int = 0) -> Any:
    """Any JSON value, most of them out of place."""
    kind = dice.randrange(9 if depth < 3 else 6)
    if kind <= 1:
        return dice.choice(NUMBERS)
    if kind == 2:
        return dice.choice(TEXTS)
    if kind == 3:
        return dice.choice([None, True, False])
    if kind == 4:
        return dice.choice([[], {}, math.nan, math.inf])
    if kind == 5:
        return 10 ** dice.choice([5, 20, 400])
    if kind == 6:
        return [odd_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(TEXTS): odd_value(dice, depth + 1) for _ in range(dice.randrange(4))}


def damaged_json(dice: Dice, data: Any) -> str:
    """A copy of a JSON value with some of its nodes replaced, removed, doubled or nested; as text."""
    data = json.loads(json.dumps(data))
    for _ in range(dice.choice([1, 1, 2, 3, 8])):
        holder, key = _place(dice, data)
        if holder is None:
            data = odd_value(dice)
            continue
        what = dice.choice(["value", "value", "value", "remove", "rename", "double", "swap"])
        if what == "remove":
            del holder[key]
        elif what == "rename" and isinstance(holder, dict):
            holder[dice.choice(TEXTS)] = holder.pop(key)
        elif what == "double" and isinstance(holder, list):
            holder[key:key] = [holder[key]] * dice.choice([1, 2, 100])
        elif what == "swap":
            other, place = _place(dice, data)
            if other is not None:
                holder[key] = json.loads(json.dumps(other[place]))
        else:
            holder[key] = odd_value(dice)
    text = json.dumps(data, ensure_ascii=dice.random() < 0.5)
    if dice.random() < 0.03:
        depth = dice.choice([50, 900, 5000, 200_000])
        text = text[: len(text) // 2] + dice.choice(["[", '{"a":', "[{"]) * depth
    return text


def _place(dice: Dice, data: Any) -> tuple[Any, Any]:
    """A place anywhere in a JSON value: what holds it, and under which key."""
    holder, key = None, None
    while isinstance(data, dict | list) and data:
        holder = data
        key = dice.choice(list(data)) if isinstance(data, dict) else dice.randrange(len(data))
        data = holder[key]
        if dice.random() < 0.15:
            break
    return holder, key
