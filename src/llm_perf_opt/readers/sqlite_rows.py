"""Rows of an SQLite table that have their values in the same places, decoded together.

Most rows of a timeline look alike: times, ids and constants keep their width for thousands of rows. So the first row
says where the columns are, those that look like it are found by comparing the bytes of their headers, and each column
is one view of all of them. That takes an eighth of the time that following every row's own header does, which
`sqlite_columns` does for the rows that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import define
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Places = Mapping[str, int | None]  # of each column that is wanted: which of the record; None: the row id

_MOST_FORMS = 12  # in one call; rows of rarer ones are left
_INTEGER_SIZE = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}  # bytes, by code; 0: NULL
_FLAGS = (8, 9)  # the numbers 0 and 1
_SHIFT = {code: 64 - 8 * size for code, size in _INTEGER_SIZE.items() if size}
_SHIFTS = np.array([_SHIFT.get(code, 0) for code in range(256)], dtype=np.int64)


class NotPlain(Exception):
    """The table holds something this reader leaves to SQLite."""


def size_of(code: int) -> int:
    """Bytes of a value, by the code of its type."""
    return _INTEGER_SIZE[code] if code in _INTEGER_SIZE else 8 if code == 7 else max(code - 12, 0) // 2


@define(frozen=True)
class _Form:
    """Where the values of some rows are, counted from the beginning of a cell, and how such rows are known."""

    length: int  # bytes of the number that says how long the row is
    rowid: int  # bytes of the row id
    mask: Bytes
    pattern: Bytes  # what the bytes under the mask have to be
    values: dict[str, tuple[int, int]]  # where, and how far to shift the eight bytes there
    flags: dict[str, int]  # 0 or 1: where their codes are, which are 8 or 9
    nulls: list[str]
    last: tuple[str, int, int] | None  # the last value may be of any size: its column, where its code is, where itself
    width: int  # of all this, and of eight bytes from the last value on

    @staticmethod
    def of(cell: Bytes, count: int, places: Places, nulls: Mapping[str, int]) -> _Form | None:
        """The form of a row of `count` columns; None where it has to be looked at more closely."""
        raw = cell.tobytes()
        length = _varint_size(raw, 0)
        rowid = _varint_size(raw, length)
        head = length + rowid + 1
        codes = raw[head : head + count]
        if length > 2 or rowid > 8 or len(codes) < count or raw[head - 1] != count + 1 or max(codes) >= 0x80:
            return None
        at, walked = head + count, 0
        values: dict[str, tuple[int, int]] = {}
        flags: dict[str, int] = {}
        empty: list[str] = []
        last: tuple[str, int, int] | None = None
        exact = [head - 1]
        for place, key in sorted((place, key) for key, place in places.items() if place is not None):
            code = codes[place]
            if code not in _INTEGER_SIZE:
                return None
            exact.append(head + place)
            if code == 0:
                empty.append(key)
            elif code in _FLAGS:
                flags[key] = head + place
            else:
                at += sum(map(size_of, codes[walked:place]))
                walked = place
                values[key] = at, _SHIFT[code]
                last = key, head + place, at
        exact += range(head, head + walked)
        width = -(-(max([head + count, *(where + 8 for where, _ in values.values())])) // 8) * 8
        mask, pattern = np.zeros(width, dtype=np.uint8), np.zeros(width, dtype=np.uint8)
        mask[: head - 1] = mask[head : head + count] = 0x80  # other values, but of as many bytes
        mask[exact] = 0xFF
        mask[[place for place in exact if raw[place] in _FLAGS]] = 0xFE  # no bytes, either of them
        if last is not None:
            del values[last[0]]
            mask[last[1]] = 0x80
        pattern[: head + count] = np.frombuffer(raw, np.uint8, head + count) & mask[: head + count]
        return _Form(length, rowid, mask, pattern, values, flags, empty, last, width)

    def matches(self, rows: Bytes) -> NDArray[np.bool_]:
        words, mask, pattern = (column.view(np.uint64) for column in (rows, self.mask, self.pattern))
        same = np.ones(len(rows), dtype=np.bool_)
        if self.last is not None:
            same = rows[:, self.last[1]] - np.uint8(1) < 6  # codes 1 to 6
        for word in np.flatnonzero(mask).tolist():
            same &= words[:, word] & mask[word] == pattern[word]
        return same


def decode_alike(
    data: Bytes,
    usable: int,
    count: int,
    cell: Int64s,
    places: Places,
    nulls: Mapping[str, int],
    result: Mapping[str, NDArray[Any]],
) -> Int64s:
    """Write the columns of `cell` (where rows of a table of `count` columns begin) to `result`, where many look alike.

    `usable`: bytes of a page. Returns which are left.
    """
    left, near_end = np.arange(len(cell)), np.zeros(0, dtype=np.int64)
    widest = 40 + size_of(0x7F) * count
    if len(cell) and int(cell.max()) + widest > len(data):
        ends = cell + widest > len(data)
        left, near_end = left[~ends], left[ends]
    for _ in range(_MOST_FORMS):
        if not len(left):
            break
        first = int(cell[left[len(left) // 2]])  # rare forms are often at the beginning
        form = _Form.of(data[first : first + count + 19], count, places, nulls)
        if form is None:
            break
        windows: NDArray[Any] = np.ndarray(
            (len(data) - form.width + 1,), dtype=f"V{form.width}", buffer=data.data, strides=(1,)
        )
        found = windows[cell[left] if len(left) < len(cell) else cell]
        same = form.matches(_bytes(found))
        which: Any = slice(None)
        if not same.all():
            which, found = left[same], found[same]
        elif len(left) < len(cell):
            which = left
        rows = _bytes(found)
        if form.length > 1 and int(_varints(rows, 0, form.length).max()) > usable - 35:
            raise NotPlain  # the rest of such a row is on another page
        for key, place in places.items():
            if place is None:
                result[key][which] = _varints(rows, form.length, form.rowid)
        for key in form.nulls:
            result[key][which] = nulls[key]
        for key, at in form.flags.items():
            result[key][which] = rows[:, at] & 1
        for key, (at, shift) in form.values.items():
            result[key][which] = rows[:, at : at + 8].view(">i8")[:, 0] >> shift
        if form.last is not None:
            key, code, at = form.last
            result[key][which] = rows[:, at : at + 8].view(">i8")[:, 0] >> _SHIFTS[rows[:, code]]
        left = left[~same]
    return np.concatenate([left, near_end])


def _bytes(cells: NDArray[Any]) -> Bytes:
    """One row a cell."""
    return cells.view(np.uint8).reshape(len(cells), cells.itemsize)


def _varints(rows: Bytes, at: int, size: int) -> Int64s:
    """Numbers of `size` bytes of seven bits each."""
    value: Int64s = np.zeros(len(rows), dtype=np.int64)
    for place in range(at, at + size):
        value = (value << 7) | (rows[:, place] & 0x7F)
    return value


def _varint_size(raw: bytes, at: int) -> int:
    return next((n for n in range(1, 9) if at + n <= len(raw) and raw[at + n - 1] < 0x80), 9)
