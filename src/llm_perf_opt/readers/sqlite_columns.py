"""Integer columns of SQLite tables as NumPy arrays, straight from the file's pages.

A timeline has millions of short rows of whole numbers. Going through SQLite's row-by-row interface costs
more than everything else a report does: fetching them with Python's `sqlite3` takes seconds, the ADBC
driver with Arrow buffers about two thirds of that, this about a quarter (`make bench`). So the leaf pages of a
table are decoded for all rows at once. The format is fixed (sqlite.org/fileformat2.html):

- A table is a tree of pages. A leaf page lists the places of its cells; a cell is a row: payload length,
  row id, then a record.
- A record begins with its header: its own length, then one type code per column. Codes 1 to 6 are
  big-endian integers of 1, 2, 3, 4, 6 and 8 bytes, 8 and 9 are the constants 0 and 1, 0 is NULL.
- The values follow the header without gaps, so the codes before a column say where it is.

Anything out of the ordinary (rows that spill over to other pages, type codes of more than one byte, text where
numbers should be) is left to `sqlite3`, which knows all of the format. A file that is cut while it is mapped ends the
process (SIGBUS): `sandbox` is where this runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define
from numpy.typing import DTypeLike, NDArray

from llm_perf_opt.readers.sqlite_rows import Bytes, Int64s, NotPlain, Places, decode_alike, size_of

Progress = Callable[[int], None]

ROWID = "rowid"
_CELLS_AT_ONCE = 1 << 16  # keeps the working set in the cache
_LEAF, _INTERIOR = 0x0D, 0x05
_SIZE = np.array([size_of(code) for code in range(256)], dtype=np.int64)
_INTEGER = np.array([code in (0, 1, 2, 3, 4, 5, 6, 8, 9) for code in range(256)], dtype=np.bool_)


@define(frozen=True)
class Column:
    """A column to read: its name, what stands for NULL, and the type of the result."""

    name: str
    null: int = 0
    dtype: DTypeLike = np.int64


def read_columns(
    path: Path,
    connection: sqlite3.Connection,
    table: str,
    columns: Mapping[str, Column],
    progress: Progress | None = None,
) -> dict[str, NDArray[Any]]:
    """The columns of a table, rows in the order of their ids. `sqlite3.DatabaseError` for a damaged file."""
    try:
        try:
            return _Table.open(path, connection, table).read(columns, progress)
        except NotPlain:
            return _read_slowly(connection, table, columns, progress)
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        # Cells beyond the end of the file, a schema without the column; or SQLite's own message, which
        # quotes bytes that are no text.
        raise sqlite3.DatabaseError(f"the table {table} cannot be read ({error})") from error


def _read_slowly(
    connection: sqlite3.Connection, table: str, columns: Mapping[str, Column], progress: Progress | None
) -> dict[str, NDArray[Any]]:
    """The same through SQLite itself. NULL becomes the column's stand-in; other types are refused."""
    names = ", ".join(ROWID if c.name == ROWID else quoted(c.name) for c in columns.values())
    cursor = connection.execute(f"SELECT {names} FROM {quoted(table)} ORDER BY rowid")  # noqa: S608 - quoted names
    parts: list[list[NDArray[Any]]] = [[] for _ in columns]
    while rows := cursor.fetchmany(_CELLS_AT_ONCE):
        for part, column, values in zip(parts, columns.values(), zip(*rows, strict=True), strict=True):
            if not all(value is None or isinstance(value, int) for value in values):
                raise sqlite3.DatabaseError(f"the column {column.name} of {table} does not hold whole numbers")
            filled = [column.null if value is None else value for value in values]
            part.append(np.array(filled, dtype=np.int64).astype(column.dtype))
        if progress is not None:
            progress(len(rows))
    return {
        key: np.concatenate(part) if part else np.zeros(0, dtype=column.dtype)
        for (key, column), part in zip(columns.items(), parts, strict=True)
    }


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@define(eq=False)
class _Table:
    """A table in a mapped file: where its leaves are, and where its columns stand in a record."""

    data: Bytes
    page_size: int
    usable: int
    leaves: Int64s  # file offset of every leaf page, in order of row ids
    position: dict[str, int]  # column -> place in the record
    count: int  # columns in the table
    rowid_alias: str | None  # the INTEGER PRIMARY KEY column, stored as the row id

    @staticmethod
    def open(path: Path, connection: sqlite3.Connection, table: str) -> _Table:
        found = connection.execute(
            "SELECT rootpage, sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
        ).fetchone()
        if found is None:
            raise sqlite3.DatabaseError(f"no such table: {table}")
        root, sql = found
        info = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
        keys = [name for _, name, kind, _, _, key, _ in info if key]
        # "WITHOUT ROWID" tables are trees of another kind; hidden columns are computed, not stored.
        if "WITHOUT" in str(sql).upper() or any(row[6] for row in info) or len(keys) > 1:
            raise NotPlain
        alias = next((name for _, name, kind, _, _, key, _ in info if key and kind.upper() == "INTEGER"), None)
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        page_size = int.from_bytes(data[16:18].tobytes(), "big")
        page_size = 65536 if page_size == 1 else page_size
        # Bytes 18 and 19 are 1 for a plain database; 2 was one with a write-ahead log.
        if bytes(data[18:20]) != b"\x01\x01" or page_size < 512:
            raise NotPlain
        names = {name: place for place, (_, name, *_) in enumerate(info)}
        leaves = _leaves(data, page_size, int(root))
        return _Table(data, page_size, page_size - int(data[20]), leaves, names, len(info), alias)

    def read(self, columns: Mapping[str, Column], progress: Progress | None) -> dict[str, NDArray[Any]]:
        cells = _be16(self.data, self.leaves + 3)
        total = int(cells.sum())
        result: dict[str, NDArray[Any]] = {key: np.empty(total, dtype=c.dtype) for key, c in columns.items()}
        places: Places = {
            key: None if c.name in (ROWID, self.rowid_alias) else self.position[c.name] for key, c in columns.items()
        }
        nulls = {key: c.null for key, c in columns.items()}
        done = 0
        for part in self._parts(cells):
            if not cells[part].any():
                continue
            cell = self._cells(self.leaves[part], cells[part])
            count = len(cell)
            found = {key: values[done : done + count] for key, values in result.items()}
            left = decode_alike(self.data, self.usable, self.count, cell, places, nulls, found)
            if len(left):
                self._decode(cell[left], places, nulls, found, left)
            done += count
            if progress is not None:
                progress(count)
        return result

    def _decode(
        self, cell: Int64s, places: Places, nulls: Mapping[str, int], result: Mapping[str, NDArray[Any]], rows: Int64s
    ) -> None:
        """Any cells into `rows` of the result, however different they are."""
        record, rowid = self._records(cell, None in places.values())
        for key, place in places.items():
            if place is None:
                result[key][rows] = rowid
        codes, offset = self._codes(record)
        walked = 0
        # In the order of the record, so that one walk over the type codes serves all columns.
        for place, key in sorted((place, key) for key, place in places.items() if place is not None):
            for skipped in range(walked, place):
                offset += _SIZE[codes[skipped]]
            walked = place
            result[key][rows] = self._values(codes[place], offset, nulls[key])

    def _parts(self, cells: Int64s) -> Iterator[slice]:
        """Runs of leaves with about `_CELLS_AT_ONCE` cells."""
        ends = np.cumsum(cells)
        begin = 0
        while begin < len(cells):
            target = (int(ends[begin - 1]) if begin else 0) + _CELLS_AT_ONCE
            end = max(int(np.searchsorted(ends, target, side="right")), begin + 1)
            yield slice(begin, end)
            begin = end

    def _cells(self, leaves: Int64s, cells: Int64s) -> Int64s:
        """File offset of every cell of some leaves."""
        page = np.repeat(leaves, cells)
        before = np.repeat(np.cumsum(cells) - cells, cells)
        # Pages begin at even places, and so does the list of their cells.
        words = self.data[: len(self.data) & ~1].view(">u2")
        within = words[(page >> 1) + 4 + (np.arange(len(page)) - before)].astype(np.int64)
        if int(within.max(initial=0)) > self.page_size - 4 or (len(page) and int(within.min()) < 8):
            raise sqlite3.DatabaseError("a page points outside itself")
        page += within
        return page

    def _records(self, cell: Int64s, want_rowid: bool) -> tuple[Int64s, Int64s | None]:
        """Where each cell's record begins, and its row id."""
        length, at = _varint(self.data, cell)
        if len(length) and int(length.max()) > self.usable - 35:
            raise NotPlain  # the rest of such a row is on another page
        if not want_rowid:
            return _after_varint(self.data, at), None
        rowid, at = _varint(self.data, at)
        return at, rowid

    def _codes(self, record: Int64s) -> tuple[Bytes, Int64s]:
        """The type codes, one row per column of the table, and where the values of each record begin."""
        length = self.data[record]
        if (length != self.count + 1).any():
            raise NotPlain  # codes of several bytes, or rows older than the last column
        if int(record.max()) + self.count + 1 > len(self.data):
            raise sqlite3.DatabaseError("a record runs over the end of the file")
        windows = np.ndarray(
            (len(self.data) - self.count + 1, self.count), dtype=np.uint8, buffer=self.data.data, strides=(1, 1)
        )
        codes = np.ascontiguousarray(windows[record + 1].T)
        if int(codes.max()) >= 0x80:
            raise NotPlain
        return codes, record + 1 + self.count

    def _values(self, code: Bytes, offset: Int64s, null: int) -> Int64s:
        """One column of some rows, whose values lie at `offset`."""
        first = int(code[0])
        if (code == first).all():
            # One code for all rows is the usual case: times, ids and constants keep their width.
            if not _INTEGER[first]:
                raise NotPlain
            if _SIZE[first] == 0:
                return np.full(len(code), null if first == 0 else first - 8, dtype=np.int64)
            return self._integers(offset, _SIZE[first])
        if not _INTEGER[code].all():
            raise NotPlain
        size = _SIZE[code]
        value = self._integers(offset, size)
        constant = size == 0
        value[constant] = np.where(code[constant] == 0, null, code[constant].astype(np.int64) - 8)
        return value

    def _integers(self, offset: Int64s, size: Any) -> Int64s:
        """Big-endian integers of 0 to 8 bytes: the eight bytes that end with each, shifted up and down again."""
        start = offset + size - 8
        if int(start.max()) + 8 > len(self.data) or int(start.min()) < 0:
            raise sqlite3.DatabaseError("a value lies outside the file")
        words: NDArray[Any] = np.ndarray((len(self.data) - 7,), dtype=">i8", buffer=self.data.data, strides=(1,))
        shift = np.where(size == 0, 0, 64 - 8 * size).astype(np.int64)
        value: Int64s = (words[start].astype(np.int64) << shift) >> shift
        return value


def _leaves(data: Bytes, page_size: int, root: int) -> Int64s:
    """File offsets of the leaf pages below `root`, in order."""
    pages = len(data) // page_size
    level = np.array([root], dtype=np.int64)
    leaves: list[Int64s] = []
    seen = 0
    while len(level):
        seen += len(level)
        if seen > pages or int(level.min()) < 1 or int(level.max()) > pages:
            raise sqlite3.DatabaseError("a page refers to one that does not exist")
        offsets = (level - 1) * page_size
        kinds = data[offsets]
        if (kinds == _LEAF).all():
            leaves.append(offsets)
            break
        if not (kinds == _INTERIOR).all():
            # SQLite's trees are of equal depth everywhere: this is none, or it is damaged.
            raise NotPlain
        level = np.concatenate([_children(data, int(offset), page_size) for offset in offsets.tolist()])
    return np.concatenate(leaves) if leaves else np.zeros(0, dtype=np.int64)


def _children(data: Bytes, offset: int, page_size: int) -> Int64s:
    """Numbers of the pages below an interior page."""
    page = data[offset : offset + page_size]
    count = int.from_bytes(page[3:5].tobytes(), "big")
    if 12 + 2 * count > len(page):
        raise sqlite3.DatabaseError("an interior page has too many cells")
    places = _be16(page, 12 + 2 * np.arange(count))
    if count and int(places.max()) + 4 > len(page):
        raise sqlite3.DatabaseError("a page points outside itself")
    left = _be32(page, places)
    return np.append(left, int.from_bytes(page[8:12].tobytes(), "big"))


def _be16(data: Bytes, at: Int64s) -> Int64s:
    return (data[at].astype(np.int64) << 8) | data[at + 1]


def _be32(data: Bytes, at: Int64s) -> Int64s:
    return (_be16(data, at) << 16) | _be16(data, at + 2)


def _after_varint(data: Bytes, at: Int64s) -> Int64s:
    """Where a variable-length number ends."""
    end = at + 1
    more = np.flatnonzero(data[at] >= 0x80)
    for _ in range(8):
        if len(more) == 0:
            break
        if int(end[more].max()) >= len(data):
            raise sqlite3.DatabaseError("a number runs over the end of the file")
        byte = data[end[more]]
        end[more] += 1
        more = more[byte >= 0x80]
    return end


def _varint(data: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Variable-length numbers: seven bits a byte, most significant first, the high bit says that more follow."""
    first = data[at].astype(np.int64)
    value, end = first & 0x7F, at + 1
    more = np.flatnonzero(first >= 0x80)
    for _ in range(7):
        if len(more) == 0:
            return value, end
        if int(end[more].max()) >= len(data):
            raise sqlite3.DatabaseError("a number runs over the end of the file")
        byte = data[end[more]].astype(np.int64)
        value[more] = (value[more] << 7) | (byte & 0x7F)
        end[more] += 1
        more = more[byte >= 0x80]
    if len(more):
        raise NotPlain  # nine-byte numbers: no row id of a recording is that large
    return value, end
