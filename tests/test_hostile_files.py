"""Files made by somebody who knows the readers: each is refused in a sentence, or read as SQLite itself would."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conftest import plain_bytes, recording
from fuzzing import hostile
from fuzzing.material import tables
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers import sqlite_open
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.columns import CounterSet, Timeline
from llm_perf_opt.regions.table import DEEPEST
from synthetic import make_export

KERNELS = hostile.KERNELS


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "x.sqlite"
    path.write_bytes(plain_bytes(recording("nsys-*-train.sqlite")))
    return path


def changed(path: Path, deed: Any, table: str = KERNELS, seed: int = 1) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        deed(random.Random(seed), db, table)
    return path


def kernels(path: Path) -> int:
    found = read_recording(path)
    assert isinstance(found, Timeline)
    return len(found.kernels)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "x.json"
    os.mkfifo(pipe)
    for verb in (["report", str(pipe), "--out", str(tmp_path / "out")], ["ranges", str(pipe)]):
        assert main(verb) == 2
        assert "not a regular file" in capsys.readouterr().err


def refusal(path: Path) -> str:
    with pytest.raises(UnreadableInput) as told:
        read_recording(path)
    assert told.value.fix
    return told.value.message


# -- schemas that are code --------------------------------------------------------------------------


@pytest.mark.parametrize("deed", [hostile.virtual_over_endless_view, hostile.endless_view, hostile.virtual_table])
@pytest.mark.parametrize("verb", ["report", "ranges", "export", "scrub"])
def test_what_is_more_than_a_table_is_not_read(deed: Any, verb: str, export: Path, tmp_path: Path) -> None:
    """A virtual table over an endless view kept every verb busy until it was killed."""
    changed(export, deed)
    began = time.process_time()
    more = {"ranges": [], "export": ["--csv", str(tmp_path / "csv")]}.get(verb, ["--out", str(tmp_path / "out")])
    main([verb, str(export), *more])
    assert time.process_time() - began < 5


@pytest.mark.parametrize("deed", [hostile.view_called_a_table, hostile.view_under_another_name])
def test_a_view_that_is_called_a_table_is_none(deed: Any, export: Path) -> None:
    changed(export, deed)
    with contextlib.suppress(UnreadableInput):  # SQLite may call it malformed
        assert kernels(export) == 0


@pytest.mark.parametrize(
    ("deed", "told"),
    [(hostile.computed_columns, "computed columns"), (hostile.row_number_column, "has a column called")],
)
def test_columns_that_no_export_has_are_refused(deed: Any, told: str, export: Path) -> None:
    assert told in refusal(changed(export, deed))


def test_only_the_tables_that_are_read_can_be(export: Path) -> None:
    with closing(sqlite_open.connect(export, [KERNELS])) as db:
        assert db.execute(f"SELECT MAX(rowid) FROM {KERNELS}").fetchone()[0] > 0
        for statement in (
            "SELECT * FROM PROCESSES",
            f"SELECT hex(start) FROM {KERNELS}",
            "SELECT load_extension('x')",
            f"DELETE FROM {KERNELS}",
            "CREATE TABLE x (a)",
            "CREATE TEMP TABLE x (a)",
            "ATTACH 'other' AS other",
            "PRAGMA writable_schema = ON",
            "PRAGMA trusted_schema",
            f"{hostile.ENDLESS} i FROM n",
        ):
            if statement != "PRAGMA trusted_schema":
                with pytest.raises(sqlite3.DatabaseError):
                    db.execute(statement).fetchone()
        assert db.execute("PRAGMA trusted_schema").fetchone() == (0,)
        assert db.execute("PRAGMA cell_size_check").fetchone() == (1,)


def test_a_question_without_an_end_is_given_up(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_open, "_SECONDS", 0.05)
    with closing(sqlite_open.connect(export, [KERNELS])) as db, pytest.raises(sqlite3.OperationalError, match="inter"):
        db.execute(f"SELECT MAX(a.rowid + b.rowid + c.rowid) FROM {KERNELS} a, {KERNELS} b, {KERNELS} c").fetchone()


# -- what lies beside -------------------------------------------------------------------------------


def test_an_unfinished_journal_is_not_passed_over(export: Path) -> None:
    """Half of the rows of a transaction that was never finished are in the file: SQLite would take them out."""
    with closing(sqlite3.connect(export, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 5")
        db.execute("BEGIN")
        db.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}")
        folder = export.parent / "received"
        folder.mkdir()
        for name in ("x.sqlite", "x.sqlite-journal"):
            (folder / name).write_bytes((export.parent / name).read_bytes())
    assert "was not finished" in refusal(folder / "x.sqlite")
    assert sorted(path.name for path in folder.iterdir()) == ["x.sqlite", "x.sqlite-journal"]
    with closing(sqlite3.connect(folder / "x.sqlite")) as db:  # as the fix says
        db.execute("PRAGMA integrity_check").fetchall()
    assert kernels(folder / "x.sqlite") == kernels(export)


@pytest.mark.parametrize("content", [b"", bytes(5000), b"noise" * 1000])
def test_a_journal_that_is_done_is_nothing_to_wait_for(content: bytes, export: Path) -> None:
    before = kernels(export)
    export.with_name("x.sqlite-journal").write_bytes(content)
    assert kernels(export) == before


def test_a_log_many_times_as_large_as_the_recording_is_not_copied(export: Path) -> None:
    with export.with_name("x.sqlite-wal").open("wb") as log:
        log.write(bytes.fromhex("377f0682002de218"))
        log.truncate(200 << 30)
    assert "many times as large" in refusal(export)


# -- much to do in a small file ---------------------------------------------------------------------


def test_texts_without_a_key_are_gone_through_once(export: Path) -> None:
    changed(export, hostile.no_key, seed=3)
    began = time.process_time()
    assert kernels(export) >= 5_000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("table", [KERNELS, "NVTX_EVENTS", "StringIds"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_rows_that_share_a_long_default_cost_no_more_than_they_are(table: str, seed: int, export: Path) -> None:
    changed(export, hostile.long_default, table, seed)
    began = time.process_time()
    with contextlib.suppress(UnreadableInput):
        read_recording(export)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("element", ["1", "{}", "[]", '{"a":1}'])
def test_a_list_of_something_else_is_not_gone_through(element: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    text = '{"traceEvents":[' + ",".join([element] * 500_000) + "]}"
    path.write_bytes(gzip.compress(text.encode(), 1))
    began = time.process_time()
    assert "something other than events" in refusal(path)
    assert time.process_time() - began < 1


def test_names_of_two_megabytes_are_shown_in_no_time(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of the terminal took fifteen seconds to fold one of them."""
    changed(export, hostile.shared_text)
    began = time.process_time()
    assert main(["ranges", str(export)]) == 0
    assert time.process_time() - began < 4
    assert "characters: --json has it" in capsys.readouterr().out
    timeline = read_recording(export)
    assert isinstance(timeline, Timeline)
    assert max(map(len, [*timeline.strings, *timeline.domains])) < 20_000


@pytest.mark.slow
def test_ranges_around_all_kernels_list_the_longest_of_them(tmp_path: Path) -> None:
    """Each of a thousand regions listed each of a thousand kernels: half a megabyte took gigabytes."""
    from llm_perf_opt.analysis.build import ReportOptions, build_report

    path = tmp_path / "x.json"
    path.write_text(hostile.nested_around_kernels(random.Random(1), 500_000), encoding="utf-8")
    scope = build_report([read_recording(path)], ReportOptions()).main_scope
    assert scope is not None
    assert len(scope.regions) > DEEPEST
    assert sum(len(region.kernels) for region in scope.regions) <= 300_000
    outermost = scope.regions[0]
    assert len(outermost.kernels) + outermost.kernels_omitted == len(scope.kernels) == outermost.inclusive.kernel_count


def test_of_very_many_kernels_the_small_ones_are_pooled(tmp_path: Path) -> None:
    """Eleven megabytes with sixty thousand names became a report of a hundred, in fifteen seconds."""
    from llm_perf_opt.analysis.build import ReportOptions, build_report

    named, more = 10_000, 40
    times = [(f"gemm_{n}" if n % 2 else f"k{n}", 10 * n, 100 * n, 100 * n + 1 + n % 51) for n in range(named + more)]
    path = make_export(tmp_path / "x.sqlite", [("stage", 0, 10**9)], times)
    report = build_report([read_recording(path)], ReportOptions())
    told = next(d.message for d in report.diagnostics if d.code == "KERNELS_POOLED")
    assert f"{named + more:,} different kernels" in told
    for scope in report.scopes:
        for listed in (scope.kernels, scope.regions[0].kernels):
            pooled = {kernel.family: kernel for kernel in listed if kernel.kernel_name.startswith("(further kernels: ")}
            assert set(pooled) == {"gemm", "other"}
            assert sum(kernel.calls for kernel in pooled.values()) == more
            assert len(listed) == named + 2
            assert sum(round(1e6 * (kernel.total_ms or 0)) for kernel in listed) == scope.totals.gpu_time_ns
        assert scope.regions[0].kernels_omitted == 0


@pytest.mark.parametrize("around", [800, 8000])
def test_start_end_ranges_around_all_kernels_are_not_kept_for_each(around: int, tmp_path: Path) -> None:
    """Every launch is in every one of them: a megabyte took eight gigabytes."""
    launches, after = 1000, 10**6
    path = make_export(
        tmp_path / "x.sqlite",
        [(f"r{i}", i, 10**9 + i) for i in range(around)],
        [("k", after + 10 * i, after + 10 * i + 1, after + 10 * i + 5) for i in range(launches)],
    )
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE NVTX_EVENTS SET eventType = 60")
        db.commit()
    timeline = read_recording(path)
    assert isinstance(timeline, Timeline)
    found = attribute(timeline)
    members = found.kernels.start_end
    assert all(len(part) == launches for part in members.values())  # also where many are one
    assert (len(members) == around) == (not found.table.pooled) == (around == 800)
    assert sum(map(len, members.values())) < 4_000_000


# -- UTF-16 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_text_that_powershell_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    (original,) = [path for path in tables() if "basic-raw-base" in path.name]
    path = tmp_path / "x.csv"
    path.write_bytes(original.read_text(encoding="utf-8").replace("\n", "\r\n").encode(encoding))
    found, plain = read_recording(path), read_recording(original)
    assert isinstance(found, CounterSet)
    assert isinstance(plain, CounterSet)
    assert [action.metrics for action in found.actions] == [action.metrics for action in plain.actions]
    assert [action.name for action in found.actions] == [action.name for action in plain.actions]
