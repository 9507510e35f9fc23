"""Opens an SQLite file of anybody: for reading, unchanged, and nothing of it is run.

The schema of a database is code: views, virtual tables, computed columns, defaults and checks all run when a table is
read. nsys writes plain tables alone, so plain tables alone are read: `plain_tables` takes those whose own definition
says so, and the authoriser of the connection refuses all else, whoever asks for it.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.sandbox import Notes

_ALLOWED = {sqlite3.SQLITE_SELECT}
_SCHEMA = ("sqlite_master", "sqlite_schema")
_PRAGMAS = ("table_info", "table_xinfo", "trusted_schema", "cell_size_check", "mmap_size", "query_only")
_FUNCTIONS = ("max", "coalesce")
# The longest definition of a table that nsys writes has three thousand characters.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    sqlite3.SQLITE_LIMIT_LENGTH: 256 << 20,
}
_LOOK_EVERY = 1_000_000  # steps of SQLite's machine
_SECONDS, _BYTES_A_SECOND = 7.0, 1_000_000  # of work on one connection
_MOST_TEXT, _TEXT_PER_BYTE = 16 << 20, 8  # of a file: the same bytes may be read for several columns, not for every row
_LARGEST_LOG, _LOG_PER_BYTE = 64 << 20, 4
_HOT = bytes.fromhex("d9d505f920a163d7")  # how a rollback journal begins that was not finished
_ROW_IDS = {"rowid", "oid", "_rowid_"}

PLAIN_TABLE = re.compile(
    r'\s*CREATE\s+TABLE\s+(?:"((?:[^"]|"")*)"|\'((?:[^\']|\'\')*)\'|\[([^\]]*)\]|`([^`]*)`|(\w+))\s*\(', re.I
)


class NotReadable(sqlite3.DatabaseError):
    """The file is sound, and asks for what no export does."""


def sqlite_uri(path: Path) -> str:
    """A URI that opens `path` for reading only, whatever characters are in its name; no lock, nothing beside it."""
    return f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"


def connect(path: Path, tables: Collection[str]) -> sqlite3.Connection:
    """A connection that can read `tables` and the schema, and do nothing else."""
    connection = sqlite3.connect(sqlite_uri(path), uri=True)
    size = path.stat().st_size
    limit(connection, size)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = _text_of(_MOST_TEXT + _TEXT_PER_BYTE * size)
    connection.execute("PRAGMA query_only = ON")
    allowed = {name.lower() for name in (*tables, *_SCHEMA)}

    def authorise(action: int, first: str | None, second: str | None, _: str | None, cause: str | None) -> int:
        if cause is not None:  # a view or a trigger asks
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_READ:
            return sqlite3.SQLITE_OK if (first or "").lower() in allowed else sqlite3.SQLITE_DENY
        fine = action in _ALLOWED
        fine = fine or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS)
        fine = fine or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS)
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorise)
    return connection


def limit(connection: sqlite3.Connection, size: int) -> None:
    """Limit what SQLite does for a file of `size` bytes: its definitions, its time, and what it believes of it."""
    for which, value in _LIMITS.items():
        connection.setlimit(which, value)
    until = time.thread_time() + _SECONDS + size / _BYTES_A_SECOND
    connection.set_progress_handler(lambda: time.thread_time() > until, _LOOK_EVERY)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}")


def _text_of(most: int) -> Callable[[bytes], str]:
    """Decodes text, up to so many bytes of it: rows that share a long text make a small file endless."""
    left = most

    def decoded(raw: bytes) -> str:
        nonlocal left
        left -= len(raw)
        if left < 0:
            raise NotReadable("its rows hold more text than the file")
        return raw.decode("utf-8", "replace")

    return decoded


def plain_tables(connection: sqlite3.Connection, side: str = "main") -> set[str]:
    """The tables that are no more than that, by their own definition.

    What `sqlite_master` calls a table may be a virtual one, and a hostile file may call a view a table: SQLite goes by
    the definition, and so does this.
    """
    query = f"SELECT name, rootpage, sql FROM {side}.sqlite_master WHERE type = 'table'"  # noqa: S608 - ours
    found = set()
    for name, root, sql in connection.execute(query):
        if isinstance(root, int) and root > 0 and isinstance(sql, str) and (match := PLAIN_TABLE.match(sql)):
            own = next(group for group in match.groups() if group is not None)
            if own.replace('""', '"').replace("''", "'").lower() == str(name).lower():
                found.add(str(name))
    return found


def refuse_odd_columns(table: str, info: Collection[tuple[object, ...]]) -> None:
    """`info`: what `PRAGMA table_xinfo` says. Computed columns are code; one called rowid hides the row's number."""
    for row in info:
        if row[6]:
            raise NotReadable(f"the table {table} has computed columns")
        if str(row[1]).lower() in _ROW_IDS:
            raise NotReadable(f"the table {table} has a column called {row[1]}")


# -- what lies beside the file ----------------------------------------------------------------------


def refuse_unfinished(path: Path, source: str) -> None:
    """A journal that was not finished: SQLite would change the file before it reads it, and an input is never changed."""
    journal = path.with_name(path.name + "-journal")
    if journal.is_file():
        with journal.open("rb") as file:
            if file.read(len(_HOT)) == _HOT:
                raise UnreadableInput(
                    f"{source} was not finished: whatever wrote it was interrupted, and left {journal.name} next to it.",
                    f"Let SQLite roll it back: sqlite3 {path.name} 'PRAGMA integrity_check'  or export it again.",
                )


def log_of(path: Path, source: str) -> Path | None:
    """The write-ahead log beside a database, which holds the newest of its rows; None where there is none."""
    log = path.with_name(path.name + "-wal")
    if not log.is_file() or not log.stat().st_size:
        return None
    if log.stat().st_size > _LARGEST_LOG + _LOG_PER_BYTE * path.stat().st_size:
        raise UnreadableInput(
            f"{source} has a write-ahead log next to it ({log.name}) that is many times as large as itself.",
            f"Let SQLite apply it: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'",
        )
    return log


def settle_here(path: str, log: str, target: str, source: str, *, notes: Notes) -> None:
    """Make a copy of a database and its log, as one file: SQLite works the one into the other."""
    shutil.copyfile(path, target)
    shutil.copyfile(log, f"{target}-wal")
    try:
        with closing(sqlite3.connect(target)) as connection:
            limit(connection, Path(path).stat().st_size + Path(log).stat().st_size)
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.DatabaseError as error:
        raise UnreadableInput(
            f"{source} has a write-ahead log next to it that cannot be read ({error}).", "Copy or export it again."
        ) from error
