"""An open SQLite export of Nsight Systems: which tables and columns it has, and how to read them.

What the years changed: tables that are missing when they would be empty, columns that came later (`mangledName`,
`graphNodeId`, `endGlobalTid`), names as text or as ids into `StringIds`. Nothing here asks for a version: a column
is used where it exists.

Identifiers: `globalTid` packs host, process and thread, `globalPid` is the same with the thread bits zero.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.nsys_schema import KERNELS, NVTX, RUNTIME, STRINGS, TABLES
from llm_perf_opt.readers.plausible import shortened
from llm_perf_opt.readers.sqlite_columns import ROWID, Column, quoted, read_columns
from llm_perf_opt.readers.sqlite_open import connect, plain_tables, refuse_odd_columns
from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Int64s
from llm_perf_opt.regions.distinct import close_together, distinct

# One of these is in every export of nsys; none is in another program's database.
_SIGNS_OF_NSYS = ("StringIds", KERNELS, RUNTIME, NVTX, "META_DATA_EXPORT", "ANALYSIS_DETAILS", "TARGET_INFO_GPU")

THREAD_BITS = 0xFFFFFF
EXPORT_AGAIN = "Export it again: nsys export --type sqlite -o OUT.sqlite IN.nsys-rep"

# The second: SQLite's own message quotes the bytes it stumbled over, and Python cannot decode them.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)

Progress = Callable[[int], None]


def looks_like_sqlite(head: bytes) -> bool:
    return head.startswith(b"SQLite format 3\x00")


@define(eq=False)
class Export:
    """An open export: which tables and columns it has, and how to read them."""

    path: Path
    source: str
    plain: sqlite3.Connection
    schema: dict[str, set[str]]
    keyed_strings: bool  # is a text found by its id without looking at all of them?
    strings: list[str] = field(factory=list)
    _string_of_id: dict[int, int] = field(factory=dict)
    _string_of_text: dict[str, int] = field(factory=dict)
    diagnostics: list[Diagnosis] = field(factory=list)
    streams: bool = False

    @staticmethod
    def open(path: Path, source: str) -> Export:
        refuse_truncated(path, source)
        try:
            plain = connect(path, TABLES)
            tables = plain_tables(plain)
            found = {table: _columns_of(plain, table) for table in TABLES if table in tables}
        except _DAMAGE as error:
            raise UnreadableInput(
                f"{source} is a damaged SQLite file ({error}); an Nsight Systems export was expected.", EXPORT_AGAIN
            ) from error
        if not any(table in tables for table in _SIGNS_OF_NSYS):
            plain.close()
            raise UnreadableInput(
                f"{source} is an SQLite database of another program (tables: {', '.join(sorted(tables)[:5]) or 'none'}); "
                "an Nsight Systems export was expected.",
                "Make one with: nsys export --type sqlite -o OUT.sqlite IN.nsys-rep",
            )
        keyed = found.get(STRINGS, ((), []))[1] == [("id", "INTEGER")]
        return Export(path, source, plain, {table: columns for table, (columns, _) in found.items()}, keyed)

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.plain.close()

    # -- small helpers --------------------------------------------------------------------------

    def has(self, table: str, *columns: str) -> bool:
        return table in self.schema and all(column in self.schema[table] for column in columns)

    def size(self, table: str) -> int:
        """An upper bound of the rows, read from the end of the table."""
        if not self.has(table):
            return 0
        ((last,),) = self.rows(f"SELECT MAX(rowid) FROM {quoted(table)}")  # noqa: S608 - a table of the file
        # A row takes at least a few bytes: a larger number is not a row count.
        return min(int(last or 0), self.path.stat().st_size // 8)

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> Iterable[Any]:
        try:
            yield from self.plain.execute(query, tuple(parameters))
        except _DAMAGE as error:
            raise damaged(self.source, error) from error

    def columns(
        self, table: str, wanted: Mapping[str, Column], progress: Progress | None = None
    ) -> dict[str, NDArray[Any]]:
        """Columns of a table; one that this schema does not have is filled with its stand-in for NULL."""
        known = {key: c for key, c in wanted.items() if c.name == ROWID or self.has(table, c.name)}
        try:
            # A connection of its own: tables are read in threads, side by side.
            with contextlib.closing(connect(self.path, TABLES)) as connection:
                found = read_columns(self.path, connection, table, known, progress)
        except _DAMAGE as error:
            raise damaged(self.source, error) from error
        rows = len(next(iter(found.values())))
        return {
            key: found[key] if key in found else np.full(rows, column.null, dtype=column.dtype)
            for key, column in wanted.items()
        }

    # -- strings --------------------------------------------------------------------------------

    def intern_text(self, text: str) -> int:
        text = shortened(text)
        number = self._string_of_text.get(text)
        if number is None:
            number = self._string_of_text[text] = len(self.strings)
            self.strings.append(text)
        return number

    def intern_ids(self, ids: Int64s) -> Int32s:
        """Indices into `strings` for a column of `StringIds` ids. Only the strings in use are read."""
        if len(ids) == 0:
            return np.zeros(0, dtype=np.int32)
        used = distinct(ids)
        missing = [int(i) for i in used if int(i) not in self._string_of_id]
        found = self.texts(set(missing)) if missing else {}
        for number in missing:
            text = found.get(number, f"(name {number} is not in the recording)")
            self._string_of_id[number] = self.intern_text(text)
        index = np.array([self._string_of_id[int(i)] for i in used], dtype=np.int32)
        known = close_together(ids)
        if known is None:
            return index[np.searchsorted(used, ids)]
        low, count = known
        place = np.zeros(count, dtype=np.int32)
        place[used - low] = index
        return place[ids - low]

    def texts(self, ids: set[int]) -> dict[int, str]:
        """The texts of these ids of `StringIds`; of several rows of one id, the last."""
        if not self.has(STRINGS, "id", "value"):
            return {}
        query = f"SELECT id, value FROM {STRINGS}"  # noqa: S608 - a constant
        if not self.keyed_strings:  # each question would go through the whole table
            return {number: str(value) for number, value in self.rows(query) if number in ids}
        found: dict[int, str] = {}
        listed = list(ids)
        for begin in range(0, len(listed), 500):
            part = listed[begin : begin + 500]
            marks = ",".join("?" * len(part))
            found |= {number: str(value) for number, value in self.rows(f"{query} WHERE id IN ({marks})", part)}
        return found


def _columns_of(connection: sqlite3.Connection, table: str) -> tuple[set[str], list[tuple[str, str]]]:
    """Which of the columns that are read a table has, and the names and types of its key."""
    info = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    refuse_odd_columns(table, info)
    keys = [(str(row[1]), str(row[2]).upper()) for row in info if row[5]]
    return {row[1] for row in info} & {*TABLES[table].columns, *TABLES[table].blobs}, keys


def damaged(source: str, error: Exception) -> UnreadableInput:
    return UnreadableInput(f"{source} is a damaged Nsight Systems export ({error}).", EXPORT_AGAIN)


def refuse_impossible(source: str, table: str, start: Int64s, end: Int64s) -> None:
    """Times so large that sums or differences of them would overflow are damage, or malice."""
    for column in (start, end):
        if len(column) and (int(column.min()) <= -(2**61) or int(column.max()) >= 2**61):
            raise damaged(source, ValueError(f"{table} holds impossible times"))
    if len(start) and float(end.sum(dtype=np.float64) - start.sum(dtype=np.float64)) >= 2**61:
        raise damaged(source, ValueError(f"{table} holds impossible durations"))


def refuse_truncated(path: Path, source: str) -> None:
    """SQLite reads what is there of a cut file without a word; its header says how long it should be."""
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100:
        raise UnreadableInput(f"{source} is truncated: {len(head)} bytes are not even an SQLite header.")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    # The page count in the header is valid when these two counters agree (SQLite file format, 1.3.7).
    if head[24:28] == head[92:96] and page * pages > path.stat().st_size:
        raise UnreadableInput(
            f"{source} is truncated: {path.stat().st_size:,} of {page * pages:,} bytes are there.",
            "Copy or export the file again.",
        )


def places_of(ids: Int64s, values: Int64s) -> Int64s:
    """Position of each value in the sorted `ids`; UNKNOWN for values that are not there."""
    if len(ids) == 0 or len(values) == 0:
        return np.full(len(values), UNKNOWN, dtype=np.int64)
    if len(ids) == 1:
        return np.where(values == ids[0], 0, UNKNOWN)
    at = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    return np.where(ids[at] == values, at, UNKNOWN)
