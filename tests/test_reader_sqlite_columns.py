"""Columns read straight from the pages are those SQLite itself gives, whatever is in the file."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import define
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from conftest import RECORDINGS, examples, plain_bytes, read, recording
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers import sqlite_columns
from llm_perf_opt.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.readers.sqlite_columns import ROWID, Column, read_columns
from llm_perf_opt.readers.sqlite_open import sqlite_uri

SMALLEST, LARGEST = -(2**63), 2**63 - 1
# Around every width SQLite stores integers in.
EDGES = sorted({sign * (2**bits) + step for bits in (0, 7, 15, 23, 31, 47, 62) for sign in (1, -1) for step in (-1, 0)})

integers = st.sampled_from([0, 1, SMALLEST, LARGEST, *EDGES]) | st.integers(SMALLEST, LARGEST) | st.integers(-200, 200)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
others = st.one_of(
    texts,
    st.integers(100, 3000).map(lambda n: "x" * n),  # longer than a type code of one byte, or than a page
    st.binary(max_size=20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none(),
)


@define
class Plan:
    """A table to make: which columns hold whole numbers, and its rows."""

    page_size: int
    numeric: list[bool]
    alias: int | None  # the column that is INTEGER PRIMARY KEY
    without_rowid: bool
    rows: list[list[Any]]
    deleted: list[int]
    added: bool  # a column that came later: old rows do not have it
    followed: bool  # is another table behind it? Rows near the end of a file are read one by one.


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 8) | st.integers(9, 40))
    plain = draw(st.booleans())  # most tables of a recording: whole numbers only
    numeric = [plain or draw(st.booleans()) for _ in range(count)]
    alias = draw(st.none() | st.integers(0, count - 1))
    if alias is not None:
        numeric[alias] = True
    cell = integers | st.none()
    length = draw(st.integers(0, 12) | st.integers(13, 60))
    # Long tables repeat a few drawn rows: it is the number of pages that counts.
    drawn = draw(
        st.lists(st.tuples(*(cell if n else others for n in numeric)).map(list), min_size=min(length, 1), max_size=8)
    )
    rows = [list(drawn[i % len(drawn)]) for i in range(length)] if drawn else []
    if alias is not None:
        for row, key in zip(rows, draw(st.permutations(range(-3, len(rows) - 3))), strict=True):
            row[alias] = key * draw(st.sampled_from([1, 1, 10**6]))
        unique = {row[alias]: row for row in rows}
        rows = list(unique.values())
    return Plan(
        page_size=draw(st.sampled_from([512, 1024, 4096, 65536])),
        numeric=numeric,
        alias=alias,
        without_rowid=alias is not None and draw(st.sampled_from([False, False, False, True])),
        rows=rows,
        deleted=draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=5, unique=True)) if rows else [],
        added=draw(st.booleans()),
        followed=draw(st.booleans()),
    )


def make(path: Path, plan: Plan) -> None:
    kinds = ["INTEGER PRIMARY KEY" if i == plan.alias else "" for i in range(len(plan.numeric))]
    columns = ", ".join(f'"c{i}" {kind}' for i, kind in enumerate(kinds))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {plan.page_size}")
        db.execute(f'CREATE TABLE "t t" ({columns}){" WITHOUT ROWID" if plan.without_rowid else ""}')
        marks = ", ".join("?" * len(plan.numeric))
        if plan.without_rowid:
            # There a NULL key is refused.
            plan.rows = [row for row in plan.rows if row[plan.alias or 0] is not None]
        db.executemany(f'INSERT INTO "t t" VALUES ({marks})', plan.rows)
        if plan.added:
            db.execute('ALTER TABLE "t t" ADD COLUMN late INTEGER')
        key = f'"c{plan.alias}"' if plan.without_rowid else "rowid"
        everything = [k for (k,) in db.execute(f'SELECT {key} FROM "t t" ORDER BY {key}')]
        for place in plan.deleted:
            if place < len(everything):
                db.execute(f'DELETE FROM "t t" WHERE {key} = ?', (everything[place],))
        if plan.followed:
            add_behind(db)
        db.commit()


def add_behind(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE behind (a)")
    db.execute("INSERT INTO behind VALUES (zeroblob(100000))")


def read_all(path: Path, table: str, columns: dict[str, Column]) -> dict[str, np.ndarray]:
    with contextlib.closing(sqlite3.connect(sqlite_uri(path), uri=True)) as db:
        return read_columns(path, db, table, columns)


def by_sqlite(path: Path, table: str, names: list[str], null: int) -> dict[str, list[int]]:
    with contextlib.closing(sqlite3.connect(sqlite_uri(path), uri=True)) as db:
        rows = db.execute(f'SELECT {", ".join(names)} FROM "{table}" ORDER BY 1').fetchall()
    return {name: [null if row[i] is None else row[i] for row in rows] for i, name in enumerate(names)}


@pytest.mark.slow
@examples(250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plans(), st.data())
def test_any_table_is_read_as_sqlite_reads_it(plan: Plan, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any?name #1%.sqlite"
        make(path, plan)
        numbers = [f'"c{i}"' for i, numeric in enumerate(plan.numeric) if numeric] + ["late"] * plan.added
        asked = data.draw(st.lists(st.sampled_from(numbers), unique=True)) if numbers else []
        asked = [name.strip('"') for name in asked]
        key = f"c{plan.alias}" if plan.without_rowid else ROWID
        order = [key, *(name for name in asked if name != key)]
        if plan.without_rowid:
            # No row ids, no order to promise: such a table is not of nsys, and is refused by name.
            with pytest.raises(sqlite3.DatabaseError):
                read_all(path, "t t", {name: Column(name, -7) for name in order})
            return
        found = read_all(path, "t t", {name: Column(name, -7) for name in order})
        assert {name: values.tolist() for name, values in found.items()} == by_sqlite(path, "t t", order, -7)


@pytest.mark.slow
@examples(60)
@given(st.lists(st.tuples(integers | st.none(), integers), min_size=1, max_size=300), st.integers(0, 3))
@example([(SMALLEST, LARGEST), (None, SMALLEST)], 0)
def test_whole_numbers_of_every_width_need_nothing_but_the_pages(rows: list[tuple[int | None, int]], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_columns, "_read_slowly", _refuse)
        path = Path(folder) / "x.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA page_size = {512 << size}")
            db.execute("CREATE TABLE t (a INTEGER, skipped TEXT, b INTEGER NOT NULL)")
            db.executemany("INSERT INTO t VALUES (?, 'some text', ?)", rows)
            db.commit()
        found = read_all(path, "t", {"b": Column("b"), "a": Column("a", 5), "row": Column(ROWID)})
    assert found["a"].tolist() == [5 if a is None else a for a, _ in rows]
    assert found["b"].tolist() == [b for _, b in rows]
    assert found["row"].tolist() == list(range(1, len(rows) + 1))


def _refuse(*_: object) -> Any:
    raise AssertionError("the slow path was taken")


@pytest.mark.slow
@examples(60)
@given(
    st.lists(st.sampled_from([0, 1, None, 2, 300, -70_000, 2**40, SMALLEST]), min_size=3, max_size=3),
    st.lists(
        st.tuples(st.sampled_from([0, 1]), st.sampled_from([2, -2, 200, 2**40, LARGEST])), min_size=1, max_size=99
    ),
)
def test_rows_that_look_alike_are_decoded_together(first: list[int | None], rows: list[tuple[int, int]]) -> None:
    """Alike but for a 0 that is a 1 elsewhere, and for the size of the last number that is wanted."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_columns._Table, "_decode", _refuse)
        path = Path(folder) / "x.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE t (skipped, flag, a, b, last, rest)")
            whole = [(flag, flag, *first[:2], last, first[2]) for flag, last in rows]
            db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", whole)
            add_behind(db)
            db.commit()
        names = ["rowid", "flag", "a", "b", "last"]
        found = read_all(path, "t", {name: Column(name, -7) for name in names})
        assert {name: values.tolist() for name, values in found.items()} == by_sqlite(path, "t", names, -7)


def test_a_table_of_many_pages_and_parts_comes_in_the_order_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_columns, "_read_slowly", _refuse)
    monkeypatch.setattr(sqlite_columns, "_CELLS_AT_ONCE", 1000)
    path = tmp_path / "x.sqlite"
    rows = [(i, i * i, -i) for i in range(50_000)]
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA page_size = 512")  # three levels of pages
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER)")
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        db.commit()
    seen: list[int] = []
    with contextlib.closing(sqlite3.connect(path)) as db:
        columns = {"b": Column("b"), "id": Column("id"), "a": Column("a")}
        found = read_columns(path, db, "t", columns, seen.append)
    assert list(zip(*(found[name].tolist() for name in ("id", "a", "b")), strict=True)) == rows
    assert sum(seen) == len(rows)
    assert len(seen) > 10


def test_a_column_may_be_given_a_smaller_type(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (a INTEGER)")
        db.executemany("INSERT INTO t VALUES (?)", [(1,), (None,), (-5,)])
        db.commit()
    found = read_all(path, "t", {"a": Column("a", 9, np.int32)})["a"]
    assert found.dtype == np.int32
    assert found.tolist() == [1, 9, -5]


@pytest.mark.parametrize("value", ["text", 1.5, b"\x01"])
def test_what_is_no_whole_number_is_refused_not_guessed(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (a)")
        db.executemany("INSERT INTO t VALUES (?)", [(1,), (value,)])
        db.commit()
    with pytest.raises(sqlite3.DatabaseError, match="whole numbers"):
        read_all(path, "t", {"a": Column("a")})


def test_a_table_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (a)")
        db.commit()
    with pytest.raises(sqlite3.DatabaseError, match="no such table"):
        read_all(path, "u", {"a": Column("a")})


def test_rows_still_in_a_write_ahead_log_are_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE t (a INTEGER)")
        writer.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(1000)])
        writer.commit()
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert read_columns(path, db, "t", {"a": Column("a")})["a"].tolist() == list(range(1000))


# -- real recordings -------------------------------------------------------------------------------

TIMELINES = sorted(RECORDINGS.glob("nsys-*.sqlite.*"))


@pytest.mark.parametrize("path", TIMELINES, ids=lambda p: p.name)
def test_real_recordings_never_take_the_slow_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_columns, "_read_slowly", _refuse)
    read_recording(path, launch_config=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", TIMELINES, ids=lambda p: p.name)
def test_real_recordings_are_the_same_by_the_slow_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_plain(*_: object) -> Any:
        raise sqlite_columns.NotPlain

    fast = read(path, True)
    monkeypatch.setattr(sqlite_columns._Table, "open", not_plain)
    slow = read_recording(path, launch_config=True)
    for part in ("kernels", "copies", "graphs", "ranges", "graph_nodes"):
        for name in type(getattr(fast, part)).__slots__:
            ours, theirs = getattr(getattr(fast, part), name, None), getattr(getattr(slow, part), name, None)
            if isinstance(ours, np.ndarray):
                assert ours.dtype == theirs.dtype
                assert (ours == theirs).all(), f"{part}.{name}"


# -- damage ----------------------------------------------------------------------------------------

NUMBERS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ["start", "end", "correlationId", "globalPid", "graphNodeId", "demangledName"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "globalTid", "correlationId"],
    "NVTX_EVENTS": ["start", "end", "eventType", "globalTid", "domainId", "textId"],
}
SMALL = plain_bytes(recording("nsys-*-names.sqlite"))


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    flips = draw(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(1, 255)), max_size=40))
    page = draw(st.none() | st.integers(0, len(SMALL) // 4096 - 1))
    head = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=4))
    cut = draw(st.none() | st.integers(1, len(SMALL)))

    def damage(data: bytes) -> bytes:
        broken = bytearray(data)
        for place, mask in flips:
            broken[place] ^= mask
        if page is not None:
            for place, value in head:  # the beginning of a page is where damage hurts
                broken[page * 4096 + place] = value
        return bytes(broken[:cut])

    return damage


@pytest.mark.slow
@examples(150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(damages())
def test_damage_is_an_error_of_the_database_or_goes_unseen_but_never_a_crash(damage: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(damage(SMALL))
        for table, names in NUMBERS.items():
            with (
                contextlib.suppress(sqlite3.DatabaseError),
                contextlib.closing(sqlite3.connect(sqlite_uri(path), uri=True)) as db,
            ):
                db.text_factory = lambda raw: raw.decode("utf-8", "replace")
                found = read_columns(path, db, table, {name: Column(name) for name in names})
                assert len({len(values) for values in found.values()}) == 1


@examples(100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(damages())
def test_a_damaged_recording_is_refused_in_a_sentence_or_read(damage: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(damage(SMALL))
        with contextlib.suppress(UnreadableInput):
            timeline = read_nsys_sqlite(path, "x.sqlite", launch_config=True)
            assert (timeline.kernels.end >= timeline.kernels.start).all()
            assert (timeline.ranges.end >= timeline.ranges.start).all()
