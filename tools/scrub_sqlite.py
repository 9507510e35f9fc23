# ruff: noqa: S608 (identifiers come from the schema of the file itself and are quoted)
"""Makes an nsys SQLite export fit to be shared: the timeline stays, the traces of the host go.

Every nsys recording carries the whole environment of the recorded program (in META_DATA_CAPTURE, in
TARGET_INFO_SYSTEM_ENV, and NUL-separated inside StringIds), its standard output and error, its command line,
and the names of all other processes of the machine. The recordings under tests/recordings went through here:

    python tools/scrub_sqlite.py run.sqlite tests/recordings/run.sqlite.xz

Input and output may be plain, .gz or .xz. What is taken out is listed in the constants below. What is left is
checked twice: the rows of kernels, runtime calls and ranges must equal those of the source, and neither an
environment block nor a path of a home or working directory may be found in the bytes of the result. If either
fails, nothing is written and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

DROPPED_TABLES = {
    "TARGET_INFO_SYSTEM_ENV",  # the machine, property by property
    "DIAGNOSTIC_EVENT",  # messages with paths
    "ThreadNames",  # of every process of the machine, not only the recorded one
    "ANALYSIS_FILE",  # the program's standard output and error
    "ProcessStreams",  # the same, as references into StringIds
}
KEPT_ENUMS = {"ENUM_NSYS_EVENT_TYPE", "ENUM_CUDA_MEMCPY_OPER"}
CAPTURE_ROWS = re.compile(r"ENV|ARGUMENT|COMMAND|WORKING_DIR|USER|HOST|DISPLAY|PATH|UUID")
EXPORT_ROWS = re.compile(r"^EXPORT_(HOST|USER)$|^EXPORT_PARAM_.*(PATH|FILE)")
NO_UUID = "00000000-0000-0000-0000-000000000000"

# The schema comment names the reference in recent exports; older ones have the column name alone.
STRING_REFERENCE = re.compile(r"REFERENCES\s+StringIds", re.IGNORECASE)
STRING_COLUMN = re.compile(r"(name|text|content|message)Id$|Name$", re.IGNORECASE)

EVENT_TABLES = re.compile(r"^(CUPTI_ACTIVITY_KIND_\w+|CUDA_GRAPH_\w+|NVTX_EVENTS)$")

ENVIRONMENT_TEXT = re.compile(r"(?:^|[\0\n])[A-Za-z_][A-Za-z0-9_]*=[^\0]*\0")
# NUL, a name of three or more letters, a printable value, NUL: no packed integers look like that by chance.
ENVIRONMENT_BYTES = re.compile(rb"\0[A-Z_][A-Z0-9_]{2,}=[\t\x20-\x7e\x80-\xff]*\0")
FORBIDDEN_BYTES = (b"/work", b"/root", b"/home")


class NotClean(Exception):
    """The result still holds something it must not, or lost something it must keep."""


def read_any(path: Path) -> bytes:
    """The bytes of a plain, gzip or xz file."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.decompress(data)
    return data


def write_any(path: Path, data: bytes) -> None:
    """Writes the bytes, compressed as the suffix says; the same input always gives the same file."""
    if path.suffix == ".xz":
        data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    elif path.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    path.write_bytes(data)


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def tables(db: sqlite3.Connection) -> dict[str, str]:
    """Name and CREATE statement of every table."""
    return dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"))


def columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({quoted(table)})")]


def string_references(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Every (table, column) that holds ids of StringIds."""
    for table, sql in tables(db).items():
        if table == "StringIds":
            continue
        commented = {line.split()[0] for line in sql.splitlines() if STRING_REFERENCE.search(line) and line.split()}
        types = {row[1]: row[2].upper() for row in db.execute(f"PRAGMA table_info({quoted(table)})")}
        for column, kind in types.items():
            if column in commented or (kind == "INTEGER" and STRING_COLUMN.search(column)):
                yield table, column


def remove_matching(db: sqlite3.Connection, table: str, pattern: re.Pattern[str]) -> None:
    """Deletes the rows of a name/value table whose name matches."""
    names = {name for (name,) in db.execute(f"SELECT DISTINCT name FROM {quoted(table)}") if pattern.search(name)}
    db.executemany(f"DELETE FROM {quoted(table)} WHERE name = ?", [(name,) for name in names])


def recorded_processes(db: sqlite3.Connection) -> set[int]:
    """globalPid of every process that has events; the low 24 bits of a globalTid are the thread."""
    found: set[int] = set()
    for table in tables(db):
        if not EVENT_TABLES.match(table):
            continue
        for column in {"globalTid", "globalPid"} & set(columns(db, table)):
            rows = db.execute(f"SELECT DISTINCT {column} & ~0xFFFFFF FROM {quoted(table)} WHERE {column} IS NOT NULL")
            found.update(pid for (pid,) in rows)
    return found


def remove_host(db: sqlite3.Connection) -> None:
    """Takes out everything that is not the timeline."""
    for table in tables(db):
        if table in DROPPED_TABLES or (table.startswith("ENUM_") and table not in KEPT_ENUMS):
            db.execute(f"DROP TABLE {quoted(table)}")
    present = tables(db)
    if "META_DATA_CAPTURE" in present:
        remove_matching(db, "META_DATA_CAPTURE", CAPTURE_ROWS)
    if "META_DATA_EXPORT" in present:
        remove_matching(db, "META_DATA_EXPORT", EXPORT_ROWS)
    if "PROCESSES" in present:
        kept = recorded_processes(db)
        others = [(pid,) for (pid,) in db.execute("SELECT globalPid FROM PROCESSES") if pid not in kept]
        db.executemany("DELETE FROM PROCESSES WHERE globalPid = ?", others)
    if "TARGET_INFO_GPU" in present and "uuid" in columns(db, "TARGET_INFO_GPU"):
        db.execute("UPDATE TARGET_INFO_GPU SET uuid = ?", (NO_UUID,))
    if "StringIds" in present:
        references = list(string_references(db))
        wanted = " UNION ".join(f"SELECT {quoted(column)} FROM {quoted(table)}" for table, column in references)
        db.execute("CREATE TEMP TABLE wanted (id INTEGER PRIMARY KEY)")
        if wanted:
            db.execute(f"INSERT OR IGNORE INTO wanted SELECT * FROM ({wanted}) WHERE 1")
        db.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM wanted)")
        db.execute("DELETE FROM StringIds WHERE instr(CAST(value AS BLOB), x'00') > 0")


def check_events(source: Path, result: Path) -> dict[str, int]:
    """Row counts of the event tables, once it is sure that no row and no name of them changed."""
    counts: dict[str, int] = {}
    with closing(sqlite3.connect(result)) as db:
        db.execute("ATTACH ? AS source", (str(source),))
        events = [
            name
            for (name,) in db.execute("SELECT name FROM source.sqlite_master WHERE type = 'table' ORDER BY name")
            if EVENT_TABLES.match(name)
        ]
        for table in events:
            name = quoted(table)
            before, after = (
                db.execute(f"SELECT count(*) FROM {side}.{name}").fetchone()[0] for side in ("source", "main")
            )
            changed = db.execute(f"SELECT count(*) FROM (SELECT * FROM source.{name} EXCEPT SELECT * FROM main.{name})")
            if before != after or changed.fetchone()[0]:
                raise NotClean(f"{table} is not what it was: {before} rows before, {after} after")
            counts[table] = after
        for table, column in string_references(db):
            if table not in counts:
                continue
            lost = db.execute(
                f"SELECT count(DISTINCT t.{quoted(column)}) FROM main.{quoted(table)} t"
                f" JOIN source.StringIds s ON s.id = t.{quoted(column)}"
                " LEFT JOIN main.StringIds m ON m.id = s.id WHERE m.value IS NOT s.value"
            ).fetchone()[0]
            if lost:
                raise NotClean(f"{table}.{column}: {lost} names were lost")
    return counts


def check_values(result: Path) -> None:
    """No text in any table is an environment block."""
    with closing(sqlite3.connect(result)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for table in tables(db):
            texts = [
                row[1]
                for row in db.execute(f"PRAGMA table_info({quoted(table)})")
                if row[2].upper() in ("TEXT", "BLOB", "")
            ]
            for column in texts:
                for (value,) in db.execute(f"SELECT DISTINCT {quoted(column)} FROM {quoted(table)}"):
                    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                    if "\0" in text or ENVIRONMENT_TEXT.search(text):
                        raise NotClean(f"{table}.{column} holds {text[:40]!r}")


def check_bytes(data: bytes) -> None:
    """The last word: what the file's bytes say, whatever the tables say."""
    for forbidden in FORBIDDEN_BYTES:
        at = data.find(forbidden)
        if at >= 0:
            raise NotClean(f"{forbidden.decode()} at byte {at}: {data[max(0, at - 20) : at + 40]!r}")
    block = ENVIRONMENT_BYTES.search(data)
    if block:
        raise NotClean(f"an environment variable at byte {block.start()}: {block.group()[:40]!r}")


def scrub(source: Path, target: Path) -> dict[str, int]:
    """Writes the scrubbed copy; returns the row counts of its event tables."""
    with tempfile.TemporaryDirectory() as folder:
        original, work, result = (Path(folder) / name for name in ("original.sqlite", "work.sqlite", "result.sqlite"))
        original.write_bytes(read_any(source))
        shutil.copyfile(original, work)
        with closing(sqlite3.connect(work, isolation_level=None)) as db:
            # Text of a program need not be valid UTF-8; it is never decoded here, only compared.
            db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            db.execute("BEGIN")
            remove_host(db)
            db.execute("COMMIT")
            # Into a new file: pages freed in the old one would still hold what was deleted.
            db.execute("VACUUM INTO ?", (str(result),))
        counts = check_events(original, result)
        check_values(result)
        data = result.read_bytes()
        check_bytes(data)
    write_any(target, data)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="nsys SQLite export (.sqlite, .sqlite.gz, .sqlite.xz)")
    parser.add_argument("target", type=Path, help="where the scrubbed copy goes; the suffix chooses the compression")
    arguments = parser.parse_args()
    try:
        counts = scrub(arguments.source, arguments.target)
    except NotClean as error:
        print(f"scrub_sqlite: NOT CLEAN, nothing written: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.target.name}: {arguments.target.stat().st_size:,} bytes")
    for table, count in counts.items():
        print(f"  {table}: {count:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
