# ruff: noqa: S608 (identifiers are those of readers.nsys_schema, quoted)
"""Rebuilds an SQLite export of nsys from the tables, columns and rows that the reader knows.

Every nsys recording carries the whole environment of the recorded program, its output, its command line, and the
names of all other processes of the machine, in tables that differ from version to version. Nothing of that is looked
for: what `readers.nsys_schema` does not list is never copied. Numbers are copied as they are, names of kernels and
ranges are the content and stay too, and all other text is cleaned on its way. A private name is reported.

Like every untrusted file a recording is read in a process of its own (`readers.sandbox`), which also writes the copy.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from attrs import Factory, asdict, define

from llm_perf_opt.errors import UnreadableInput, UserError
from llm_perf_opt.readers import sandbox
from llm_perf_opt.readers.marker_ranges import PREFIX
from llm_perf_opt.readers.nsys_schema import MARK, NVTX, STRINGS, TABLES, Table
from llm_perf_opt.readers.sqlite_columns import quoted
from llm_perf_opt.readers.sqlite_open import limit, plain_tables, sqlite_uri
from llm_perf_opt.rundir.scrub.private import Private, environment_of, without_folders
from llm_perf_opt.rundir.secrets import SECRET_IN_TEXT

_NO_UUID = b"00000000-0000-0000-0000-000000000000"
_THREAD_BITS = 0xFFFFFF
_LARGER, _AT_LEAST = 2, 16 << 20
_PLACE = re.compile(rb"(?P<what>\S+ \d+ )(?P<file>.*)(?P<line>\(\d+\): .*)", re.DOTALL)
_CONTENT = ((NVTX, "text"), (STRINGS, "value"))  # names of ranges and kernels


@define
class Cleaned:
    """What was done to a recording."""

    removed: list[str] = Factory(list)  # in words
    private_names: dict[str, str] = Factory(dict)  # a name of the timeline → the secret or home in it, in words
    rows: dict[str, int] = Factory(dict)  # of the event tables


def learn(path: Path, private: Private) -> None:
    """Environment, command line, user and host of the recorded program: what its logs may have repeated."""
    found = sandbox.call(f"{__name__}:learn_here", [str(path)], path.name, sandbox.Limits(path.stat().st_size))
    private.take_over(found)


def clean(source: Path, target: Path, private: Private) -> Cleaned:
    """Write the cleaned copy of a plain SQLite file; `target` must not be there yet."""
    size = source.stat().st_size
    # In a file: the secrets would be in the list of processes where an interpreter is started for the job.
    with tempfile.NamedTemporaryFile("w", prefix="llm-perf-", suffix=".json", encoding="ascii") as known:
        json.dump(private.as_json(), known)
        known.flush()
        arguments = [str(source), str(target), known.name]
        limits = sandbox.Limits(size, written=_LARGER * size + _AT_LEAST)
        return Cleaned(**sandbox.call(f"{__name__}:clean_here", arguments, source.name, limits))


@contextmanager
def _damage_told() -> Iterator[None]:
    """What SQLite says of a damaged file; its message may quote bytes that Python cannot decode."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise UnreadableInput(str(error), "Export the recording again: nsys export --type sqlite") from None


# -- in that process --------------------------------------------------------------------------------


@_damage_told()
def learn_here(path: str, notes: sandbox.Notes) -> dict[str, Any]:
    private = Private()
    _learn(Path(path), private)
    return private.as_json()


@_damage_told()
def clean_here(source: str, target: str, known: str, notes: sandbox.Notes) -> dict[str, Any]:
    private = Private()
    private.take_over(json.loads(Path(known).read_text(encoding="ascii")))
    return asdict(_clean(Path(source), Path(target), private))


def _learn(path: Path, private: Private) -> None:
    with closing(sqlite3.connect(sqlite_uri(path), uri=True, isolation_level=None)) as db:
        db.text_factory = _as_text
        limit(db, path.stat().st_size)
        captured = _facts(db, "main", "META_DATA_CAPTURE")
        private.learn_command([value for name, value in captured if "ARGUMENT" in name])
        others = (_facts(db, "main", table) for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT"))
        for name, value in chain(captured, *others):
            if name.endswith("ENVIRONMENT_VARIABLE"):
                # NAME="value", without any escapes inside.
                found = environment_of([value])
                private.learn_environment({n: v.removeprefix('"').removesuffix('"') for n, v in found.items()})
            elif name == "DeviceEnvironment":
                private.learn_environment(environment_of(re.split(r"[;\0]", value)))
            elif name.endswith(("USER_NAME", "EXPORT_USER")):
                private.learn_user(value)
            elif name in ("DEVICE_DISPLAY_NAME", "Hostname", "EXPORT_HOST") or name.endswith("HOST_NAME"):
                private.learn_host(value)
        if {"id", "value"} <= _columns(db, "main", STRINGS):
            for (value,) in db.execute("SELECT value FROM StringIds WHERE instr(CAST(value AS BLOB), x'00') > 0"):
                private.learn_environment(environment_of(str(value).split("\0")))
            for (value,) in db.execute("SELECT value FROM StringIds WHERE value GLOB '/*.py'"):  # of stacks
                private.learn_file(str(value))
        if {"text", "eventType"} <= _columns(db, "main", NVTX):
            ours = (MARK, f"{PREFIX}line *")
            for (value,) in db.execute(f"SELECT text FROM {NVTX} WHERE eventType = ? AND text GLOB ?", ours):
                if place := _PLACE.fullmatch(str(value).encode("utf-8", "surrogateescape")):
                    private.learn_file(place["file"].decode("utf-8", "surrogateescape"))


def _clean(source: Path, target: Path, private: Private) -> Cleaned:
    result = Cleaned()
    with closing(sqlite3.connect(target.absolute().as_uri(), uri=True, isolation_level=None)) as db:
        db.text_factory = _as_text
        size = source.stat().st_size
        limit(db, size)
        # Rows may share a long text: what is written stays in proportion to what is there.
        ((page,),) = db.execute("PRAGMA page_size")
        db.execute(f"PRAGMA max_page_count = {(_LARGER * size + _AT_LEAST) // page}")
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("ATTACH ? AS source", (sqlite_uri(source),))
        db.create_function("cleaned", 1, _cleaner(private), deterministic=True)
        db.create_function("process_name", 1, lambda raw: raw and raw.rpartition(b"/")[2], deterministic=True)
        db.create_function("without_folders", 1, _without_folders, deterministic=True)
        present = {name: table for name, table in TABLES.items() if _columns(db, "source", name)}
        _refuse_computed(db, present, source)
        db.execute("BEGIN")
        for name, table in present.items():
            count = _copy(db, name, table, present)
            if table.is_event:
                result.rows[name] = count
        db.execute("COMMIT")
        result.removed = list(_left_out(db))
        _check_names(db, private, result)
    return result


def _copy(db: sqlite3.Connection, name: str, table: Table, present: dict[str, Table]) -> int:
    there = _columns(db, "source", name)
    columns = [column for column in table.columns if column in there]
    kinds = ["INTEGER" if column not in table.texts else "TEXT" for column in columns]
    declared = [f"{quoted(column)} {kind}" for column, kind in zip(columns, kinds, strict=True)]
    if name == STRINGS and "id" in columns:
        declared[columns.index("id")] += " PRIMARY KEY"
    # A table without any column that is read says something by being there.
    db.execute(f"CREATE TABLE main.{quoted(name)} ({', '.join(declared) or 'no_column INTEGER'})")
    if not columns:
        return 0
    values = [_number(column) if column not in table.texts else _text(name, column) for column in columns]
    into, values = (columns, values) if name == STRINGS else (["rowid", *columns], ["rowid", *values])
    wanted, parameters = _wanted_rows(db, name, table, columns, present)
    done = db.execute(
        f"INSERT OR REPLACE INTO main.{quoted(name)} ({', '.join(map(quoted, into))}) "
        f"SELECT {', '.join(values)} FROM source.{quoted(name)} WHERE {wanted} ORDER BY rowid",
        parameters,
    )
    return done.rowcount


def _number(column: str) -> str:
    """SQLite stores any text in a column of numbers."""
    return f"CASE WHEN typeof({quoted(column)}) IN ('integer', 'real') THEN {quoted(column)} END"


def _text(table: str, column: str) -> str:
    raw = f"CAST({quoted(column)} AS BLOB)"
    if (table, column) == (NVTX, "text"):
        raw = f"without_folders({raw})"
    if (table, column) not in _CONTENT:
        raw = f"cleaned(process_name({raw}))" if table == "PROCESSES" else f"cleaned({raw})"
    if column == "uuid":
        raw = f"CASE WHEN {quoted(column)} IS NOT NULL THEN '{_NO_UUID.decode()}' END"
    return f"CAST({raw} AS TEXT)"


def _without_folders(raw: bytes | None) -> bytes | None:
    """A mark that says what a line is names a file of the machine."""
    if raw is None or not raw.startswith(f"{PREFIX}line ".encode()):
        return raw
    place = _PLACE.fullmatch(raw)
    if place is None:
        return b""
    file = without_folders(place["file"].decode("utf-8", "surrogateescape"))
    return place["what"] + file.encode("utf-8", "surrogateescape") + place["line"]


def _wanted_rows(
    db: sqlite3.Connection, name: str, table: Table, columns: list[str], present: dict[str, Table]
) -> tuple[str, tuple[int | str, ...]]:
    """The rows that are read, as a condition with its parameters."""
    if table.rows is not None:
        column, allowed = table.rows
        marks = ", ".join("?" * len(allowed))
        condition = f"{quoted(column)} IN ({marks})"
        if name == NVTX:  # of marks, those that say in which line the program was
            ours = f"{quoted('text')} GLOB '{PREFIX}*'" if "text" in columns else "0"
            condition += f" AND ({quoted(column)} <> {MARK} OR {ours})"
        return (condition, allowed) if column in columns else ("0", ())
    if name == STRINGS:
        return f"typeof(id) = 'integer' AND id IN ({_ids_in_use(db, present)})", ()
    if name == "PROCESSES":
        return f"globalPid IN ({_recorded_processes(db, present)})", ()
    return "1", ()


def _ids_in_use(db: sqlite3.Connection, present: dict[str, Table]) -> str:
    """A query for the strings that kept rows refer to; their tables are copied before."""
    found = [
        f"SELECT {quoted(column)} FROM main.{quoted(name)}"
        for name, table in present.items()
        for column in table.names
        if column in _columns(db, "main", name)
    ]
    return " UNION ".join(found) or "NULL"


def _recorded_processes(db: sqlite3.Connection, present: dict[str, Table]) -> str:
    """A query for every process that has events; nsys notes all of the machine."""
    found = [
        f"SELECT {column} & ~{_THREAD_BITS} FROM main.{quoted(name)} WHERE {column} IS NOT NULL"
        for name, table in present.items()
        for column in ("globalTid", "globalPid")
        if table.is_event and column in _columns(db, "main", name)
    ]
    return " UNION ".join(found) or "NULL"


def _cleaner(private: Private) -> Callable[[bytes | None], bytes | None]:
    @lru_cache(maxsize=10_000)
    def cleaned(raw: bytes | None) -> bytes | None:
        # Text of a program need not be valid UTF-8; it goes back as it came.
        return raw and private.text(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    return cleaned


def _left_out(db: sqlite3.Connection) -> Iterator[str]:
    """What the copy has not, in words."""
    names = [name for name, _ in _facts(db, "source", "META_DATA_CAPTURE")]
    variables = sum(name.endswith("ENVIRONMENT_VARIABLE") for name in names)
    if variables:
        yield f"the environment of the program ({variables} variables)"
    if any("COMMAND" in name or "ARGUMENT" in name for name in names):
        yield "its command line"
    if any(_count(db, "source", table) for table in ("ANALYSIS_FILE", "ProcessStreams")):
        yield "what the program printed"
    if _count(db, "source", "TARGET_INFO_SYSTEM_ENV") > _count(db, "main", "TARGET_INFO_SYSTEM_ENV"):
        yield "host name and facts about the host"
    if others := _count(db, "source", "PROCESSES") - _count(db, "main", "PROCESSES"):
        yield f"{others} other processes of the machine"
    unread = sum(bool(_columns(db, "source", name) - {*TABLES[name].columns}) for name in TABLES)
    unread += len(_tables(db) - {*TABLES})
    if unread:
        yield f"what no report reads, in {unread} tables"


def _check_names(db: sqlite3.Connection, private: Private, result: Cleaned) -> None:
    """Names are content and stay; what they give away is reported."""
    for table, column in _CONTENT:
        if column not in _columns(db, "main", table):
            continue
        query = f"SELECT DISTINCT {quoted(column)} FROM main.{quoted(table)} WHERE {quoted(column)} IS NOT NULL"
        for (name,) in db.execute(query):
            secret = next((s for s in private.secrets if s in name), None)
            if secret is not None:
                result.private_names[name] = f"the value of {private.secrets[secret]}"
            elif SECRET_IN_TEXT.search(name):
                result.private_names[name] = "what looks like a secret"
            elif private.text(name, looks_secret=False) != name:
                result.private_names[name] = "a path, user or host of yours"


def _refuse_computed(db: sqlite3.Connection, tables: dict[str, Table], path: Path) -> None:
    """A column that is computed may take any time for every row; nsys has none."""
    for table in tables:
        if any(row[6] in (2, 3) for row in db.execute(f"PRAGMA source.table_xinfo({quoted(table)})")):
            raise UserError(
                f"{path.name} has a table with computed columns ({table!r}), which nsys never exports.",
                "Export the recording again: nsys export --type sqlite",
            )


def _facts(db: sqlite3.Connection, side: str, table: str) -> list[tuple[str, str]]:
    """The rows of a table of names and values, as text."""
    if not {"name", "value"} <= _columns(db, side, table):
        return []
    return [(str(name), str(value)) for name, value in db.execute(f"SELECT name, value FROM {side}.{quoted(table)}")]


def _as_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _tables(db: sqlite3.Connection) -> set[str]:
    """Of the source: views and triggers are code, and nsys writes none."""
    return {name for (name,) in db.execute("SELECT name FROM source.sqlite_master WHERE type = 'table'")}


def _columns(db: sqlite3.Connection, side: str, table: str) -> set[str]:
    """Columns of a table; none where it is not there, or is more than a table."""
    if table not in plain_tables(db, side):
        return set()
    return {row[1] for row in db.execute(f"PRAGMA {side}.table_info({quoted(table)})")}


def _count(db: sqlite3.Connection, side: str, table: str) -> int:
    if not _columns(db, side, table):
        return 0
    return int(db.execute(f"SELECT count(*) FROM {side}.{quoted(table)}").fetchone()[0])
