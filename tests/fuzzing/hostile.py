"""Inputs made by somebody who knows the readers: schemas that are code, files beside files, small inputs with much to do."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fuzzing.material import SMALL_TIMELINES, Made, Place, tables, timeline, write
from fuzzing.mutate import Dice

KERNELS, RANGES, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"
TABLES = (KERNELS, RANGES, CALLS, "StringIds", "TARGET_INFO_GPU", "PROCESSES", "META_DATA_EXPORT")
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


def _verb(dice: Dice, place: Place, *inputs: Path) -> Made:
    """Every verb that reads recordings."""
    words = [str(path) for path in inputs]
    return dice.choice(
        [
            ["report", *words, "--out", str(place.out), "--format", "json", "--json"],
            ["report", *words, "--out", str(place.out), "--format", "json,md,csv,html", "--json"],
            ["ranges", *words],
            ["export", *words, "--csv", str(place.out / "csv"), "--perfetto", str(place.out / "t.json")],
            ["scrub", *words[:1], "--out", str(place.out / "scrubbed")],
        ]
    )


# -- SQLite ----------------------------------------------------------------------------------------


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [f'"{row[1]}"' for row in db.execute(f'PRAGMA table_info("{table}")')]


def _away(db: sqlite3.Connection, table: str) -> list[str]:
    """Put a table out of the way; its columns."""
    columns = _columns(db, table)
    db.execute(f'ALTER TABLE "{table}" RENAME TO "was {table}"')
    return columns


def virtual_over_endless_view(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    columns = _away(db, table)
    listed = ", ".join(f"i AS {column}" for column in columns)
    db.execute(f"CREATE VIEW endless AS {ENDLESS} i AS rowid, i AS docid, {listed} FROM n")
    module = dice.choice(["fts4", "fts5"])
    own = ", ".join(columns)
    more = "" if module == "fts4" else ", content_rowid='rowid'"
    db.execute(f"CREATE VIRTUAL TABLE \"{table}\" USING {module}({own}, content='endless'{more})")


def endless_view(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    columns = ", ".join(f"i AS {column}" for column in _away(db, table))
    db.execute(f'CREATE VIEW "{table}" AS {ENDLESS} {columns} FROM n')


def view_called_a_table(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    """SQLite goes by the definition, not by the kind that the schema says."""
    endless_view(dice, db, table)
    _edit_schema(db, f"UPDATE sqlite_master SET type = 'table', rootpage = 2 WHERE name = '{table}'")


def view_under_another_name(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    """What the schema calls the table is a definition of something else."""
    endless_view(dice, db, table)
    _edit_schema(
        db,
        f"UPDATE sqlite_master SET name = 'x', tbl_name = 'x' WHERE name = '{table}'",
        f"UPDATE sqlite_master SET name = '{table}', tbl_name = '{table}' WHERE name = 'was {table}'",
    )


def virtual_table(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    columns = _away(db, table)
    made = [
        f'CREATE VIRTUAL TABLE "{table}" USING rtree({", ".join(columns[:5])})',
        f'CREATE VIRTUAL TABLE "{table}" USING fts4({", ".join(columns)})',
        f'CREATE VIRTUAL TABLE "{table}" USING dbstat',
    ]
    db.execute(dice.choice(made))


def computed_columns(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    columns = _away(db, table)
    heavy = dice.choice(["length(hex(zeroblob(100000000)))", "length(printf('%.*c', 300000000, 'x'))", "1"])
    at = dice.randrange(len(columns))
    rest = ", ".join(column for number, column in enumerate(columns) if number != at)
    kind = dice.choice(["VIRTUAL", "VIRTUAL"])
    db.execute(f'CREATE TABLE "{table}" ({rest}{", " if rest else ""} {columns[at]} AS ({heavy}) {kind})')
    if rest:
        db.execute(f'INSERT INTO "{table}" ({rest}) SELECT {rest} FROM "was {table}"')


def long_default(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    """Rows older than a column have its default: a row of a few bytes becomes one of megabytes."""
    size = dice.choice([50_000, 1_000_000, 4_000_000])
    value = dice.choice(["'" + "x" * size + "'", "x'" + "00" * size + "'"])
    columns = _columns(db, table)
    chosen = dice.choice(columns)
    with suppress(sqlite3.Error):
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN {chosen}')
    for _ in range(dice.choice([0, 3, 6])):
        with suppress(sqlite3.Error):  # a key that is there already
            db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
    with suppress(sqlite3.Error):
        db.execute(f'ALTER TABLE "{table}" ADD COLUMN {chosen} DEFAULT {value}')


def row_number_column(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    name = dice.choice(["rowid", "ROWID", "oid", "_rowid_"])
    db.execute(f'ALTER TABLE "{table}" ADD COLUMN {name} {dice.choice(["TEXT", "INTEGER", "BLOB"])} DEFAULT 5')


def no_key(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    """Looking up a text by its id goes through all of them."""
    db.execute("ALTER TABLE StringIds RENAME TO texts")
    db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    count = dice.choice([5_000, 20_000, 60_000])
    db.execute("BEGIN")  # else each row is a transaction
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", ((i, f"k{i}") for i in range(count)))
    db.execute("COMMIT")
    while 0 < db.execute(f"SELECT COUNT(*) FROM {KERNELS}").fetchone()[0] < count:  # some timelines have none
        db.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}")
    db.execute(f"UPDATE {KERNELS} SET demangledName = rowid % {count}")
    for column in ("text = NULL", "textId = rowid", "eventType = 75"):
        with suppress(sqlite3.Error):
            db.execute(f"UPDATE {RANGES} SET {column}")


def shared_text(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    """A text of two megabytes in every range."""
    db.execute("CREATE TABLE long (value TEXT)")
    db.execute(f"INSERT INTO long VALUES ('{'x' * 2_000_000}')")
    db.execute(f"UPDATE {RANGES} SET text = (SELECT value FROM long)")


def many_tables(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    db.execute("BEGIN")
    for number in range(dice.choice([2_000, 10_000])):
        db.execute(f"CREATE TABLE t{number} (a INTEGER)")
    db.execute("COMMIT")


def long_definition(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    columns = _away(db, table)
    check = dice.choice([" AND ".join(["1"] * 900), "1 /* " + "x" * 3_000_000 + " */"])
    db.execute(f'CREATE TABLE "{table}" ({", ".join(columns)}, CHECK ({check}))')
    db.execute(f'INSERT INTO "{table}" SELECT * FROM "was {table}"')


def odd_index(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    column = dice.choice(_columns(db, table))
    db.execute(f'CREATE INDEX odd ON "{table}" (length(hex({column})), {column})')
    db.execute(f'CREATE TRIGGER odd2 AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END')


def no_row_ids(dice: Dice, db: sqlite3.Connection, table: str) -> None:
    columns = _away(db, table)
    db.execute(f'CREATE TABLE "{table}" (own INTEGER PRIMARY KEY, {", ".join(columns)}) WITHOUT ROWID')
    db.execute(f'INSERT INTO "{table}" SELECT rowid, * FROM "was {table}"')


def _edit_schema(db: sqlite3.Connection, *deeds: str) -> None:
    db.execute("PRAGMA writable_schema = ON")
    for deed in deeds:
        db.execute(deed)


SCHEMAS: tuple[Callable[[Dice, sqlite3.Connection, str], None], ...] = (
    *(virtual_over_endless_view, endless_view, view_called_a_table, view_under_another_name, virtual_table),
    *(computed_columns, long_default, row_number_column, no_key, shared_text, many_tables, long_definition),
    *(odd_index, no_row_ids),
)


def schema(dice: Dice, place: Place) -> Made:
    path = write(place.given / "x.sqlite", timeline(dice.choice(SMALL_TIMELINES)))
    deed = dice.choice(SCHEMAS)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")  # each row is on the disk before the next, otherwise
        there = [t for t in TABLES if _columns(db, t)]
        with suppress(sqlite3.Error):  # what this SQLite cannot make is left as it is
            deed(dice, db, dice.choice(there[:4] if dice.random() < 0.8 else there))
    return _verb(dice, place, path)


def beside(dice: Dice, place: Place) -> Made:
    """A journal or a log beside the file: real, cut, of somebody else, or endless."""
    path = write(place.given / "x.sqlite", timeline("threads"))
    what = dice.choice(["hot", "hot", "wal", "wal", "endless", "noise", "zeros", "folder", "link", "other"])
    if what in ("hot", "wal"):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(f"PRAGMA journal_mode = {'WAL' if what == 'wal' else 'DELETE'}")
            db.execute("PRAGMA cache_size = 5")
            db.execute("BEGIN")
            db.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}")
            if what == "wal":
                db.execute("COMMIT")
            names = [name for name in ("x.sqlite", "x.sqlite-wal", "x.sqlite-journal") if (place.given / name).exists()]
            kept = {name: (place.given / name).read_bytes() for name in names}
        for name, data in kept.items():
            cut = data[: dice.randrange(len(data))] if name != "x.sqlite" and dice.random() < 0.3 else data
            (place.given / name).write_bytes(cut)
        with suppress(OSError):
            (place.given / "x.sqlite-shm").unlink()
    else:
        other = place.given / f"x.sqlite-{dice.choice(['wal', 'journal'])}"
        if what == "endless":
            with other.open("wb") as file:
                file.write(bytes.fromhex("377f0682002de218"))
                file.truncate(200 << 30)  # without a block on the disk
        elif what == "folder":
            other.mkdir()
        elif what == "link":
            other.symlink_to("/dev/zero")
        else:
            other.write_bytes({"noise": dice.randbytes(9000), "zeros": bytes(9000), "other": path.read_bytes()}[what])
    return _verb(dice, place, path)


# -- much to do in a small file --------------------------------------------------------------------


def _event(category: str, name: str, start: int, length: int, thread: Any = 1, **more: Any) -> str:
    return json.dumps(
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": more}
    )


def _kernel(number: int, name: str, start: int, **more: Any) -> list[str]:
    call = _event("cuda_runtime", "cudaLaunchKernel", start, 1, correlation=number)
    return [call, _event("kernel", name, start + 2, 1, 7, correlation=number, **({"device": 0, "stream": 7} | more))]


def nested_around_kernels(dice: Dice, size: int) -> str:
    """Every region lists the kernels of all regions inside it."""
    count = size // 450
    ranges = [_event("user_annotation", f"r{i}", i, 10**8 - 2 * i) for i in range(count)]
    return _trace([*ranges, *(e for i in range(count) for e in _kernel(i, f"k{i}", count + 10 * i))])


def overlapping(dice: Dice, size: int) -> str:
    count = size // 250
    ranges = [_event("user_annotation", f"r{i}", i, 10**8) for i in range(count)]
    return _trace([*ranges, *(e for i in range(count // 4) for e in _kernel(i, "k", count + 10 * i))])


def distinct_everything(dice: Dice, size: int) -> str:
    count = size // 450
    key = dice.choice(["device", "stream", "thread", "name"])
    events = []
    for i in range(count):
        name = f"k{i}" if key == "name" else "k"
        events += _kernel(i, name, 10 * i, **({key: i} if key in ("device", "stream") else {}))
        events.append(_event("user_annotation", f"r{i}", 10 * i, 9, i if key == "thread" else 1))
    return _trace(events)


def _trace(events: list[str]) -> str:
    return '{"traceEvents": [' + ", ".join(events) + "]}"


def no_events(dice: Dice, size: int) -> str:
    element = dice.choice(["1", "{}", "[]", '""', "null", "[[]]", '{"a":1}', "1e5", '{"ph":1}', '{"ph":"X"}'])
    return '{"traceEvents":[' + ",".join([element] * (size // (len(element) + 1))) + "]}"


def same_event(dice: Dice, size: int) -> str:
    made = [_event("user_annotation", "r", 5, 5), *_kernel(1, "k", 5), '{"ph":"M","pid":1,"args":{}}']
    event = dice.choice(made)
    return _trace([event] * (size // len(event)))


def other_member(dice: Dice, size: int) -> str:
    element = dice.choice(["[]", "{}", "0", '"a"', "1.5", '{"a":[]}'])
    return '{"x": [' + ",".join([element] * (size // (len(element) + 1))) + '], "traceEvents": []}'


def long_numbers(dice: Dice, size: int) -> str:
    number = dice.choice(["9" * 4000, "1" * 5000, "0." + "3" * 4000, "1e999999999", "1e-999999999", "7" * 18 + ".5"])
    event = f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{number},"dur":{number}}}'
    return _trace([event] * max(size // len(event), 1))


def deep(dice: Dice, size: int) -> str:
    opening = dice.choice(["[", '{"a":', '[{"ph":'])
    return '{"traceEvents":[' + opening * (size // len(opening))


def one_name(dice: Dice, size: int) -> str:
    name = dice.choice(["x", "\\u0000", "<", "a/", "😀"]) * (size // 20)
    return _trace([_event("user_annotation", name, 1, 100), *_kernel(1, name, 5)])


TRACES = (
    nested_around_kernels,
    overlapping,
    distinct_everything,
    no_events,
    same_event,
    other_member,
    long_numbers,
    deep,
    one_name,
)


def _csv(dice: Dice, size: int) -> str:
    lines = tables()[0].read_text(encoding="utf-8").splitlines(keepends=True)
    head = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    header, record = lines[head], next(line for line in lines[head + 1 :] if line.startswith('"0"'))
    what = dice.choice(["open", "wide", "headers", "rows", "quotes", "ranges", "commas", "text"])
    if what == "open":  # a record that every line might end
        return header + '"1","' + ('x","' + "y" * 50 + '"\n') * (size // 56)
    if what == "wide":
        return '"ID","Kernel Name",' + ",".join(f'"m{i}"' for i in range(size // 20)) + "\n" + '"0","k",\n' * 500
    if what == "headers":
        return header * (size // len(header))
    if what == "rows":
        return header + record * (size // len(record))
    if what == "quotes":
        return header + '"' * size
    if what == "ranges":
        return header + record.replace(record.split('","')[5], "a:none:none:" * (size // 12), 1)
    if what == "commas":
        return header + '"1"' + "," * size + "\n"
    return header + "x\n" * (size // 2)


def _sqlite(dice: Dice, place: Place) -> Path:
    """Rows that are cheap to store: of equal values, in a table without most of its columns."""
    path = place.given / "x.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        count = dice.choice([20_000, 100_000])
        many = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        what = dice.choice(["same", "nodes", "domains", "nested", "processes", "gpus", "samples"])
        db.execute(
            f"CREATE TABLE {KERNELS} (start, end, deviceId, correlationId, globalPid, demangledName, graphNodeId)"
        )
        db.execute(f"CREATE TABLE {RANGES} (start, end, eventType, text, globalTid, textId, domainId)")
        if what in ("same", "nodes"):
            db.execute(
                f"{many} INSERT INTO {KERNELS} SELECT 1, 1, 0, 1, 0, 1, {'i' if what == 'nodes' else 'NULL'} FROM n"
            )
        if what == "nodes":
            db.execute("CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start, globalTid, graphNodeId, originalGraphNodeId)")
            db.execute(f"{many} INSERT INTO CUDA_GRAPH_NODE_EVENTS SELECT 0, 0, i, i - 1 FROM n")
        if what == "domains":
            db.execute(f"{many} INSERT INTO {RANGES} SELECT 0, 0, 75, NULL, 0, i, i FROM n")
        if what == "nested":
            db.execute(f"{many} INSERT INTO {RANGES} SELECT i, 9999999 - i, 59, 'r' || i, 0, NULL, 0 FROM n")
        if what == "processes":
            db.execute(f"{many} INSERT INTO {RANGES} SELECT i, i, 59, 'r', i << 24, NULL, i FROM n")
        if what == "gpus":
            db.execute("CREATE TABLE TARGET_INFO_GPU (id, cuDevice, name)")
            db.execute(f"{many} INSERT INTO TARGET_INFO_GPU SELECT i, i, 'x' FROM n")
        if what == "samples":
            db.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (typeId, metricId, metricName)")
            db.execute("CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value)")
            db.execute(f"{many} INSERT INTO TARGET_INFO_GPU_METRICS SELECT i, i, 'x' FROM n")
            db.execute(f"{many} INSERT INTO GPU_METRICS SELECT i, i, i, i FROM n")
    return path


def disproportion(dice: Dice, place: Place) -> Made:
    what = dice.choice(["json", "json", "json", "packed", "packed", "packed", "csv", "csv", "sqlite", "utf16"])
    if what == "sqlite":
        return _verb(dice, place, _sqlite(dice, place))
    size = dice.choice([100_000, 500_000, 1_500_000])
    if what == "csv":
        return _verb(dice, place, write(place.given / "x.csv", _csv(dice, size).encode()))
    if what == "utf16":
        text = dice.choice([_csv, dice.choice(TRACES)])(dice, size // 4)
        coding = dice.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
        return _verb(dice, place, write(place.given / "x.csv", text.encode(coding, "replace")))
    if what == "json":
        data = dice.choice(TRACES)(dice, size).encode("utf-8", "replace")
        return _verb(dice, place, write(place.given / "x.json", data))
    made: tuple[Callable[[Dice, int], str], ...] = (no_events, same_event, same_event, other_member, deep, _csv)
    data = dice.choice(made)(dice, 40_000_000).encode("utf-8", "replace")
    ending = dice.choice(["gz", "xz"])
    packed = gzip.compress(data, 6) if ending == "gz" else lzma.compress(data, preset=0)
    return _verb(dice, place, write(place.given / f"x.json.{ending}", packed))
