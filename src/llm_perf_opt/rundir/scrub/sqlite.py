# ruff: noqa: S608 (identifiers come from the schema of the file itself and are quoted)
"""Cleans an SQLite export of nsys: the timeline stays, the traces of the host go.

Every nsys recording carries the whole environment of the recorded program (in META_DATA_CAPTURE, in
TARGET_INFO_SYSTEM_ENV, and NUL-separated inside StringIds), its standard output and error, its command line,
and the names of all other processes of the machine. What is taken out is listed in the constants below.
Rows of kernels, calls and ranges and the names they refer to are the content: they are never changed, and
`check` makes sure of it. A secret in one of those names is reported, not removed.
"""

from __future__ import annotations

import mmap
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from attrs import Factory, define

from llm_perf_opt.errors import UserError
from llm_perf_opt.rundir.scrub.private import Private, environment_of

_DROPPED_TABLES = {
    "DIAGNOSTIC_EVENT",  # messages with paths
    "ANALYSIS_FILE",  # the program's standard output and error
    "ProcessStreams",  # the same, as references into StringIds
    "TARGET_INFO_NIC_INFO",  # identities of network cards
    "NIC_ID_MAP",
}
# Facts about the machine that name nobody.
_KEPT_FACTS = re.compile(
    r"^(?:Cpu(?:Cores|SpeedMhz|Architecture|Description)|NvDriverVersion|CudaDriverVersion|OsVersion|OsDescription"
    r"|HardwarePlatform|SoftwarePlatform|SoftwareReleaseVersion|(?:Has|Supports)\w+)$"
)
_CAPTURE_ROWS = re.compile(r"ENV|ARGUMENT|COMMAND|WORKING_DIR|USER|HOST|DISPLAY|PATH|UUID")
_EXPORT_ROWS = re.compile(r"^EXPORT_(HOST|USER)$|^EXPORT_PARAM_.*(PATH|FILE)|^DERIVED_")
_NO_UUID = "00000000-0000-0000-0000-000000000000"

# The schema comment names the reference in recent exports; older ones have the column name alone.
_STRING_REFERENCE = re.compile(r"REFERENCES\s+StringIds", re.IGNORECASE)
_STRING_COLUMN = re.compile(r"(name|text|content|message|symbol|module)Id$|Name$|^(?:symbol|module)$", re.IGNORECASE)
_EVENTS = re.compile(r"^(CUPTI_ACTIVITY_KIND_\w+|CUDA_GRAPH_\w+|NVTX_EVENTS)$")
# Texts that are names of ranges or what the program attached to them.
_CONTENT_COLUMNS = {("NVTX_EVENTS", "text"), ("NVTX_EVENTS", "jsonText"), ("StringIds", "value")}

_ENVIRONMENT_TEXT = re.compile(r"(?:^|[\0\n])[A-Za-z_][A-Za-z0-9_]*=[^\0]*\0")
# NUL, a name of three or more letters, a printable value, NUL: no packed integers look like that by chance.
_ENVIRONMENT_BYTES = re.compile(rb"\0[A-Z_][A-Z0-9_]{2,}=[\t\x20-\x7e\x80-\xff]*\0")


class NotClean(Exception):
    """The result still holds something it must not, or lost something it must keep."""


@define
class Cleaned:
    """What was done to a recording."""

    removed: list[str] = Factory(list)  # in words
    telling_names: dict[str, str] = Factory(dict)  # a name of the timeline → the secret or home in it, in words
    rows: dict[str, int] = Factory(dict)  # of the event tables, unchanged


def learn(path: Path, private: Private) -> None:
    """Environment, command line, user and host of the recorded program."""
    with closing(_open(path)) as db:
        present = _tables(db)
        _refuse_computed(db, present, path)
        if "META_DATA_CAPTURE" in present:
            rows = _texts(db, "SELECT name, value FROM META_DATA_CAPTURE")
            variables = [value for name, value in rows if name.endswith("ENVIRONMENT_VARIABLE")]
            # NAME="value", without any escapes inside.
            private.learn_environment(
                {n: v.removeprefix('"').removesuffix('"') for n, v in environment_of(variables).items()}
            )
            private.learn_command([value for name, value in rows if "ARGUMENT" in name])
            for name, value in rows:
                if name.endswith("USER_NAME"):
                    private.learn_user(value)
                elif name == "DEVICE_DISPLAY_NAME" or name.endswith("HOST_NAME"):
                    private.learn_host(value)
        if "TARGET_INFO_SYSTEM_ENV" in present:
            for name, value in _texts(db, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"):
                if name == "DeviceEnvironment":
                    private.learn_environment(environment_of(re.split(r"[;\0]", value)))
                elif name == "Hostname":
                    private.learn_host(value)
        if "META_DATA_EXPORT" in present:
            for name, value in _texts(db, "SELECT name, value FROM META_DATA_EXPORT"):
                if name == "EXPORT_USER":
                    private.learn_user(value)
                elif name == "EXPORT_HOST":
                    private.learn_host(value)
        if "StringIds" in present:
            for (value,) in db.execute("SELECT value FROM StringIds WHERE instr(CAST(value AS BLOB), x'00') > 0"):
                private.learn_environment(environment_of(str(value).split("\0")))


def clean(source: Path, target: Path, private: Private, *, only_timeline: bool = False) -> Cleaned:
    """Write the cleaned copy of a plain SQLite file.

    `only_timeline`: leave out whatever a report does not need (thread names, most tables of constants), as the
    recordings of this project do to stay small.
    """
    result = Cleaned()
    work = target.with_name(f"{target.name}.work")
    try:
        with closing(_open(source)) as original:
            _refuse_computed(original, _tables(original), source)
            original.execute("VACUUM INTO ?", (str(work),))  # with what lies in a journal beside the file
        with closing(_open(work, writable=True)) as db:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("BEGIN")
            _remove_programs(db)
            _remove_tables(db, result, only_timeline)
            _remove_rows(db, private, result, only_timeline)
            _clean_texts(db, private)
            _remove_strings(db, private, result)
            _look_at_ranges(db, private, result)
            db.execute("COMMIT")
            # Into a new file: pages freed in the old one would still hold what was deleted.
            db.execute("VACUUM INTO ?", (str(target),))
    finally:
        work.unlink(missing_ok=True)
    result.rows = _check_events(source, target)
    _check_values(target)
    return result


def check_bytes(data: bytes | mmap.mmap) -> None:
    """The last word: what the file's bytes say, whatever the tables say."""
    block = _ENVIRONMENT_BYTES.search(data)
    if block:
        name = block.group().partition(b"=")[0].strip(b"\0").decode("ascii", "replace")
        raise NotClean(f"the variable {name} of an environment is still at byte {block.start()}")


def _refuse_computed(db: sqlite3.Connection, tables: Iterable[str], path: Path) -> None:
    """A column that is computed may take any time for every row; nsys has none."""
    for table in tables:
        if any(row[6] in (2, 3) for row in db.execute(f"PRAGMA table_xinfo({_quoted(table)})")):
            raise UserError(
                f"{path.name} has a table with computed columns ({table!r}), which no export of nsys has.",
                "Export the recording again: nsys export --type sqlite",
            )


def _remove_programs(db: sqlite3.Connection) -> None:
    """Views, triggers and samples of columns: nsys writes none, and each may repeat what is removed elsewhere."""
    made = "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger') OR name LIKE 'sqlite_stat%'"
    for kind, name in list(db.execute(made)):
        db.execute(f"DROP {kind.upper()} {_quoted(name)}")


def _remove_tables(db: sqlite3.Connection, result: Cleaned, only_timeline: bool) -> None:
    for table in _tables(db):
        unneeded = only_timeline and (
            (table.startswith("ENUM_") and table not in ("ENUM_NSYS_EVENT_TYPE", "ENUM_CUDA_MEMCPY_OPER"))
            or table in ("ThreadNames", "TARGET_INFO_SYSTEM_ENV")
        )
        if table in _DROPPED_TABLES or unneeded:
            if table in ("ANALYSIS_FILE", "ProcessStreams") and _count(db, table):
                result.removed.append("what the program printed")
            db.execute(f"DROP TABLE {_quoted(table)}")
    result.removed = list(dict.fromkeys(result.removed))


def _remove_rows(db: sqlite3.Connection, private: Private, result: Cleaned, only_timeline: bool) -> None:
    present = _tables(db)
    if "META_DATA_CAPTURE" in present:
        names = [name for (name,) in _texts(db, "SELECT name FROM META_DATA_CAPTURE")]
        variables = sum(name.endswith("ENVIRONMENT_VARIABLE") for name in names)
        if variables:
            result.removed.append(f"the environment of the program ({variables} variables)")
        if any("COMMAND" in name or "ARGUMENT" in name for name in names):
            result.removed.append("its command line")
        _delete(db, "META_DATA_CAPTURE", {n for n in names if _CAPTURE_ROWS.search(n)})
    if "META_DATA_EXPORT" in present:
        names = [name for (name,) in _texts(db, "SELECT name FROM META_DATA_EXPORT")]
        _delete(db, "META_DATA_EXPORT", {n for n in names if _EXPORT_ROWS.search(n)})
    if "TARGET_INFO_SYSTEM_ENV" in present:
        names = [name for (name,) in _texts(db, "SELECT DISTINCT name FROM TARGET_INFO_SYSTEM_ENV")]
        if not all(_KEPT_FACTS.match(n) for n in names):
            result.removed.append("host name and facts about the host")
        _delete(db, "TARGET_INFO_SYSTEM_ENV", {n for n in names if not _KEPT_FACTS.match(n)})
    _remove_other_processes(db, result)
    if "TARGET_INFO_GPU" in present and "uuid" in _columns(db, "TARGET_INFO_GPU"):
        db.execute("UPDATE TARGET_INFO_GPU SET uuid = ?", (_NO_UUID,))


def _remove_other_processes(db: sqlite3.Connection, result: Cleaned) -> None:
    """nsys notes every process of the machine, with its threads; paths of the recorded ones become names."""
    kept = _recorded_processes(db)
    present = _tables(db)
    if "PROCESSES" in present:
        rows = list(db.execute("SELECT rowid, globalPid, name FROM PROCESSES"))
        others = [(row,) for row, pid, _ in rows if pid not in kept]
        db.executemany("DELETE FROM PROCESSES WHERE rowid = ?", others)
        shorter = [(_raw(str(name).rpartition("/")[2]), row) for row, pid, name in rows if pid in kept]
        db.executemany("UPDATE PROCESSES SET name = CAST(? AS TEXT) WHERE rowid = ?", shorter)
        if others:
            result.removed.append(f"{len(others)} other processes of the machine")
    if "ThreadNames" in present and "globalTid" in _columns(db, "ThreadNames"):
        rows = list(db.execute("SELECT rowid, globalTid FROM ThreadNames"))
        others = [(row,) for row, tid in rows if not isinstance(tid, int) or tid & ~0xFFFFFF not in kept]
        db.executemany("DELETE FROM ThreadNames WHERE rowid = ?", others)


def _clean_texts(db: sqlite3.Connection, private: Private) -> None:
    """Texts that are not names of the timeline: values of settings, names of files."""
    for table in _tables(db):
        if table.startswith("ENUM_"):
            continue
        for column in _text_columns(db, table):
            if (table, column) in _CONTENT_COLUMNS:
                continue
            name, of = _quoted(column), _quoted(table)
            values = [value for (value,) in db.execute(f"SELECT DISTINCT {name} FROM {of}") if isinstance(value, str)]
            changed = [(_raw(new), _raw(value)) for value in values if (new := private.text(value)) != value]
            db.executemany(f"UPDATE {of} SET {name} = CAST(? AS TEXT) WHERE {name} = CAST(? AS TEXT)", changed)


def _remove_strings(db: sqlite3.Connection, private: Private, result: Cleaned) -> None:
    """Strings nothing refers to any more go; those that are not names of the timeline are cleaned."""
    if "StringIds" not in _tables(db):
        return
    references = list(_string_references(db))
    for group, tables in (("wanted", references), ("content", [r for r in references if _EVENTS.match(r[0])])):
        db.execute(f"CREATE TEMP TABLE {group} (id INTEGER PRIMARY KEY)")
        for table, column in tables:
            db.execute(
                f"INSERT OR IGNORE INTO {group} SELECT {_quoted(column)} FROM {_quoted(table)} WHERE {_quoted(column)} IS NOT NULL"
            )
    db.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM wanted)")
    db.execute("DELETE FROM StringIds WHERE instr(CAST(value AS BLOB), x'00') > 0")
    others = list(db.execute("SELECT id, value FROM StringIds WHERE id NOT IN (SELECT id FROM content)"))
    changed = [(_raw(cleaned), i) for i, value in others if (cleaned := private.text(str(value))) != value]
    db.executemany("UPDATE StringIds SET value = CAST(? AS TEXT) WHERE id = ?", changed)
    names = db.execute("SELECT value FROM StringIds WHERE id IN (SELECT id FROM content)")
    _look_at_names((str(value) for (value,) in names), private, result)


def _look_at_ranges(db: sqlite3.Connection, private: Private, result: Cleaned) -> None:
    """Names of ranges that are not in StringIds."""
    if "NVTX_EVENTS" in _tables(db) and "text" in _columns(db, "NVTX_EVENTS"):
        texts = db.execute("SELECT DISTINCT text FROM NVTX_EVENTS WHERE text IS NOT NULL")
        _look_at_names((str(text) for (text,) in texts), private, result)


def _look_at_names(names: Iterator[str], private: Private, result: Cleaned) -> None:
    """Names are content and stay; what they give away is told."""
    for name in names:
        for secret, variable in private.secrets.items():
            if secret in name:
                result.telling_names[name] = f"the value of {variable}"
        if name not in result.telling_names and private.text(name, looks_secret=False) != name:
            result.telling_names[name] = "a path, user or host of yours"


def _check_events(source: Path, result: Path) -> dict[str, int]:
    """Row counts of the event tables, once it is sure that no row and no name of them changed."""
    counts: dict[str, int] = {}
    with closing(_open(result)) as db:
        db.execute("ATTACH ? AS source", (_uri(source, "ro"),))
        events = [
            name
            for (name,) in db.execute("SELECT name FROM source.sqlite_master WHERE type = 'table' ORDER BY name")
            if _EVENTS.match(name)
        ]
        for table in events:
            name = _quoted(table)
            before, after = (
                db.execute(f"SELECT count(*) FROM {side}.{name}").fetchone()[0] for side in ("source", "main")
            )
            changed = db.execute(f"SELECT count(*) FROM (SELECT * FROM source.{name} EXCEPT SELECT * FROM main.{name})")
            if before != after or changed.fetchone()[0]:
                raise NotClean(f"{table} is not what it was: {before} rows before, {after} after")
            counts[table] = after
        for table, column in _string_references(db):
            if table not in counts:
                continue
            lost = db.execute(
                f"SELECT count(DISTINCT t.{_quoted(column)}) FROM main.{_quoted(table)} t"
                f" JOIN source.StringIds s ON s.id = t.{_quoted(column)}"
                " LEFT JOIN main.StringIds m ON m.id = s.id WHERE m.value IS NOT s.value"
            ).fetchone()[0]
            if lost:
                raise NotClean(f"{table}.{column}: {lost} names were lost")
    return counts


def _check_values(result: Path) -> None:
    """No text in any table is an environment block."""
    with closing(_open(result)) as db:
        for table in _tables(db):
            for column in _text_columns(db, table):
                for (value,) in db.execute(f"SELECT DISTINCT {_quoted(column)} FROM {_quoted(table)}"):
                    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                    if _ENVIRONMENT_TEXT.search(text):
                        raise NotClean(f"{table}.{column} still holds an environment ({len(text)} characters)")


def _recorded_processes(db: sqlite3.Connection) -> set[int]:
    """globalPid of every process that has events; the low 24 bits of a globalTid are the thread."""
    found: set[int] = set()
    for table in _tables(db):
        if not _EVENTS.match(table):
            continue
        for column in {"globalTid", "globalPid"} & set(_columns(db, table)):
            rows = db.execute(f"SELECT DISTINCT {column} & ~0xFFFFFF FROM {_quoted(table)} WHERE {column} IS NOT NULL")
            found.update(pid for (pid,) in rows)
    return found


def _string_references(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Every (table, column) that holds ids of StringIds."""
    for table, sql in _tables(db).items():
        if table == "StringIds":
            continue
        commented = {line.split()[0] for line in sql.splitlines() if _STRING_REFERENCE.search(line) and line.split()}
        types = {row[1]: str(row[2]).upper() for row in db.execute(f"PRAGMA table_info({_quoted(table)})")}
        for column, kind in types.items():
            if column in commented or (kind == "INTEGER" and _STRING_COLUMN.search(column)):
                yield table, column


def _texts(db: sqlite3.Connection, query: str) -> list[tuple[str, ...]]:
    """Rows with every value as text."""
    return [tuple(str(value) for value in row) for row in db.execute(query)]


def _delete(db: sqlite3.Connection, table: str, names: set[str]) -> None:
    """Rows with these names; in a damaged file a name may be anything, and what is no text goes too."""
    rows = [(_raw(name),) for name in names]
    db.executemany(f"DELETE FROM {_quoted(table)} WHERE name = CAST(? AS TEXT)", rows)
    db.execute(f"DELETE FROM {_quoted(table)} WHERE typeof(name) <> 'text'")


def _open(path: Path, writable: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(_uri(path, "rw" if writable else "ro"), uri=True, isolation_level=None)
    # Text of a program need not be valid UTF-8; it goes back as it came.
    db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    return db


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _raw(text: str) -> bytes:
    """Bound as bytes and cast back: what is not UTF-8 could not be bound as text."""
    return text.encode("utf-8", "surrogateescape")


def _tables(db: sqlite3.Connection) -> dict[str, str]:
    """Name and CREATE statement of every table."""
    return dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"))


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({_quoted(table)})")]


def _text_columns(db: sqlite3.Connection, table: str) -> list[str]:
    rows = db.execute(f"PRAGMA table_info({_quoted(table)})")
    return [row[1] for row in rows if str(row[2]).upper() in ("TEXT", "BLOB", "")]


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])


def _quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
