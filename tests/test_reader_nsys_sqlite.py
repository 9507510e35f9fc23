"""Exports of every year are read whole; what is missing is named, and nothing that is secret gets out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import codes, plain_bytes, recording, regions_of, timeline
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.nsys_schema import KERNELS, NVTX, RUNTIME
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import UNKNOWN, Timeline, Work
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.json_report import render_json

Change = Callable[..., Timeline]

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"


@pytest.fixture
def changed(tmp_path: Path) -> Change:
    """A function that applies SQL to a copy of a recording, takes columns `without=(table, column)` out, and reads it."""

    def change(name: str, *statements: str, without: tuple[str, ...] = ()) -> Timeline:
        path = tmp_path / "changed.sqlite"
        path.write_bytes(plain_bytes(recording(f"nsys-*-{name}.sqlite")))
        with closing(sqlite3.connect(path)) as db:
            for statement in statements:
                db.execute(statement)
            if without:
                drop_columns(db, *without)
            db.commit()
        found = read_recording(path, launch_config=True)
        assert isinstance(found, Timeline)
        return found

    return change


def drop_columns(db: sqlite3.Connection, table: str, *columns: str) -> None:
    """Make a table anew without some columns; ALTER TABLE would refuse the ones with an index."""
    kept = ", ".join(f'"{row[1]}"' for row in db.execute(f"PRAGMA table_info({table})") if row[1] not in columns)
    db.execute(f"CREATE TABLE rebuilt AS SELECT {kept} FROM {table}")
    db.execute(f"DROP TABLE {table}")
    db.execute(f"ALTER TABLE rebuilt RENAME TO {table}")


def report_of(found: Timeline, **options: Any) -> NCUProfileRegionReport:
    return build_report([found], ReportOptions(**options))


def shape(found: Timeline, **options: Any) -> dict[str, tuple[int, int | None, int | None]]:
    """Everything that must not change: kernels, time and instances of every region."""
    regions = regions_of(report_of(found, verdicts=False, **options).main_scope)
    return {key: (r.inclusive.kernel_count, r.inclusive.gpu_time_ns, r.instances) for key, r in regions.items()}


# -- what is shipped -------------------------------------------------------------------------------

COUNTS = {
    "decoder-8layers": (6100, 235),
    "decoder-8layers-warm": (9022, 235),
    "decoder-36layers": (43288, 1871),
    "names": (92, 93),
    "threads": (5, 3),
    "train": (220, 15),
    "graph_node": (159, 54),
    "graph_whole": (69, 54),
    "ranks": (24, 10),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_recording_is_read_whole(name: str) -> None:
    found = timeline(name)
    assert (len(found.kernels), len(found.ranges)) == COUNTS[name]
    assert (found.kernels.host_time != UNKNOWN).all()
    assert (np.diff(found.kernels.start) >= 0).all()
    assert found.devices == {0: "NVIDIA H200"}
    assert found.environment["tool_version"].startswith("2025.3")
    assert set(codes(found)) <= {"WHOLE_GRAPHS"}


@pytest.mark.parametrize("name", ["decoder-8layers", "train"])
def test_rows_are_counted_before_they_are_read(name: str, unpacked: Callable[[Path], Path]) -> None:
    seen: list[int] = []

    class Watch:
        total: int | None = None

        def begin(self, source: str, total: int | None) -> Callable[[int], None]:
            self.total = total
            return seen.append

    watch, path = Watch(), unpacked(recording(f"nsys-*-{name}.sqlite"))
    read_recording(path, observer=watch)
    with closing(sqlite3.connect(path)) as db:
        rows = [db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in (KERNELS, RUNTIME, NVTX)]
    assert sum(seen) == watch.total == sum(rows)


def test_a_compressed_recording_is_the_same_as_a_plain_one(unpacked: Callable[[Path], Path]) -> None:
    plain = read_recording(unpacked(recording("nsys-*-train.sqlite")))
    assert isinstance(plain, Timeline)
    assert shape(plain) == shape(timeline("train"))


def test_launch_configurations_are_read_only_where_counters_are_to_be_joined() -> None:
    path = recording("nsys-*-train.sqlite")
    without, with_them = read_recording(path), read_recording(path, launch_config=True)
    assert isinstance(without, Timeline)
    assert isinstance(with_them, Timeline)
    assert without.kernels.config is None
    config = with_them.kernels.config
    assert config is not None
    assert config.grid.shape == config.block.shape == (220, 3)
    assert config.grid.min() >= 1
    assert with_them.strings[config.short[0]] in with_them.strings[with_them.kernels.name[0]]


# -- other schemas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["mangledName", "graphNodeId", "shortName", "staticSharedMemory", "deviceId"])
def test_a_kernel_column_that_came_later_may_be_missing(changed: Change, column: str) -> None:
    found = changed("train", without=(KERNELS, column))
    assert shape(found) == shape(timeline("train"))
    assert codes(found) == []


def test_without_demangled_names_kernels_go_by_their_short_name(changed: Change) -> None:
    found = changed("train", without=(KERNELS, "demangledName"))
    assert shape(found) == shape(timeline("train"))
    names = {found.strings[i] for i in found.kernels.name.tolist()}
    assert "vectorized_elementwise_kernel" in names


def test_without_a_process_column_one_process_needs_none(changed: Change) -> None:
    found = changed("train", without=(KERNELS, "globalPid"))
    assert shape(found) == shape(timeline("train"))


def test_without_a_process_column_and_without_ranges_the_process_is_that_of_the_calls(changed: Change) -> None:
    tables = (f"ALTER TABLE CUPTI_ACTIVITY_KIND_{table} DROP COLUMN globalPid" for table in ("MEMCPY", "MEMSET"))
    found = changed("train", f"DELETE FROM {NVTX}", *tables, without=(KERNELS, "globalPid"))
    assert [process.pid for process in found.processes] == [process.pid for process in timeline("train").processes]
    whole = report_of(found).main_scope
    assert whole is not None
    assert whole.totals.kernel_count == len(timeline("train").kernels)


def test_without_graph_node_ids_the_kernels_of_a_graph_stay_at_its_launch(changed: Change) -> None:
    found = changed("graph_node", without=(KERNELS, "graphNodeId"))
    assert shape(found)["LLM@replay_all/decode_step"][0] == 90
    assert "LLM@replay_all/decode_step/capture" not in shape(found)


def test_without_the_table_of_graph_nodes_the_kernels_of_a_graph_stay_at_its_launch(changed: Change) -> None:
    found = changed("graph_node", "DROP TABLE CUDA_GRAPH_NODE_EVENTS")
    assert shape(found)["LLM@replay_all/decode_step"][0] == 90
    whole = report_of(found).main_scope
    assert whole is not None
    assert whole.totals.graph_kernel_count == 90


def test_names_as_text_are_as_good_as_names_by_id(changed: Change) -> None:
    as_text = (
        f"UPDATE {NVTX} SET text = (SELECT value FROM StringIds WHERE id = textId), textId = NULL WHERE text IS NULL"
    )
    assert shape(changed("names", as_text)) == shape(timeline("names"))
    assert shape(changed("names", as_text, without=(NVTX, "textId"))) == shape(timeline("names"))


def test_names_by_id_are_as_good_as_names_as_text(changed: Change) -> None:
    found = changed(
        "names",
        "INSERT INTO StringIds SELECT 1000000 + rowid, text FROM NVTX_EVENTS WHERE text IS NOT NULL",
        f"UPDATE {NVTX} SET textId = 1000000 + rowid WHERE text IS NOT NULL",
        without=(NVTX, "text"),
    )
    assert shape(found) == shape(timeline("names"))


def test_a_range_without_any_name_is_still_a_region(changed: Change) -> None:
    found = changed("threads", f"UPDATE {NVTX} SET text = NULL, textId = NULL WHERE eventType = 59")
    assert {key.rsplit("/")[-1] for key in shape(found)} == {"(unnamed)"}


def test_a_domain_without_its_name_keeps_its_number(changed: Change) -> None:
    found = changed("ranks", f"DELETE FROM {NVTX} WHERE eventType = 75")
    assert {key.split("@")[1]: value for key, value in shape(found).items()} == {
        key.split("@")[1]: value for key, value in shape(timeline("ranks")).items()
    }
    assert all(key.startswith("domain ") for key in shape(found))


def test_rows_in_any_order_give_the_same(changed: Change) -> None:
    tables = (KERNELS, RUNTIME, NVTX, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
    shuffled = [
        statement
        for table in tables
        for statement in (
            f"CREATE TABLE shuffled AS SELECT * FROM {table} ORDER BY (start * 7919) % 104729",
            f"DROP TABLE {table}",
            f"ALTER TABLE shuffled RENAME TO {table}",
        )
    ]
    found = changed("train", *shuffled)
    for mode in ("auto", "thread", "process"):
        assert shape(found, attribution=mode) == shape(timeline("train"), attribution=mode)
    assert (np.diff(found.kernels.start) >= 0).all()


def test_ranges_that_were_never_closed_count_until_the_end_and_are_named(changed: Change) -> None:
    name = "(SELECT value FROM StringIds WHERE id = textId)"
    found = changed("train", f"UPDATE {NVTX} SET end = NULL WHERE COALESCE(text, {name}) = 'optimizer'")
    assert codes(found) == ["OPEN_RANGES"]
    assert "3 ranges were never closed" in found.diagnostics[0].message
    last = max(int(found.kernels.end.max()), int(found.ranges.start.max()), int(found.copies.end.max()))
    assert (found.ranges.end >= found.ranges.start).all()
    assert int(found.ranges.end.max()) >= last
    # An open range lies across the steps that follow: it is in several stacks, and still three instances.
    regions = regions_of(report_of(found).main_scope)
    assert sum(r.instances or 0 for r in regions.values() if r.name == "optimizer") == 3


# -- what is missing -------------------------------------------------------------------------------


def test_without_api_calls_kernels_are_counted_in_no_region_and_the_cause_is_named(changed: Change) -> None:
    found = changed("train", f"DROP TABLE {RUNTIME}")
    assert codes(found) == ["UNKNOWN_LAUNCHES"]
    assert "220 of 220 kernels" in found.diagnostics[0].message
    assert "no CUDA API calls" in found.diagnostics[0].message
    scope = report_of(found).main_scope
    assert scope is not None
    assert (scope.totals.kernel_count, scope.totals.unknown_launch_count) == (220, 220)
    assert {r.inclusive.kernel_count for r in scope.regions if not r.is_whole_recording} == {0}
    assert [r.inclusive.kernel_count for r in scope.regions if r.is_whole_recording] == [220]


def test_of_kernels_whose_launch_was_not_recorded_the_number_is_named(changed: Change) -> None:
    first = f"DELETE FROM {RUNTIME} WHERE correlationId IN (SELECT correlationId FROM {KERNELS} ORDER BY start LIMIT 7)"
    found = changed("train", first)
    assert codes(found) == ["UNKNOWN_LAUNCHES"]
    assert "7 of 220 kernels" in found.diagnostics[0].message


def test_without_ranges_all_kernels_are_one_stage(changed: Change) -> None:
    found = changed("train", f"DROP TABLE {NVTX}")
    assert codes(found) == []
    report = report_of(found)
    assert codes(report)[0] == "NO_RANGES"
    scope = report.main_scope
    assert scope is not None
    assert (scope.totals.kernel_count, sum(k.calls for k in scope.kernels)) == (220, 220)
    assert [(r.key, r.inclusive.kernel_count) for r in scope.regions] == [("whole recording", 220)]


def test_without_kernels_the_ranges_are_still_there(changed: Change) -> None:
    found = changed("train", f"DROP TABLE {KERNELS}")
    assert codes(found) == ["NO_KERNELS"]
    assert shape(found)["step"] == (0, 0, 3)


def test_launches_without_kernels_are_said_to_be_that(changed: Change) -> None:
    """Another profiler had the GPU: the host's calls are there, and nothing else."""
    found = changed("train", f"DROP TABLE {KERNELS}")
    assert "CUDA was not traced" in found.diagnostics[0].message  # there are copies
    copies = ("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY", "DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET")
    found = changed("train", f"DROP TABLE {KERNELS}", *copies)
    assert "calls of the CUDA API but no GPU activity" in found.diagnostics[0].message
    found = changed("train", f"DROP TABLE {KERNELS}", f"DROP TABLE {RUNTIME}", *copies)
    assert "CUDA was not traced" in found.diagnostics[0].message


def test_the_gpu_of_an_old_export_is_known(changed: Change) -> None:
    """Until 2021 the table was CUPTI's record of the device: clock in kHz, bandwidth in kB/s."""
    old = """
        DROP TABLE TARGET_INFO_GPU;
        CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId INT, name TEXT, numMultiprocessors INT, coreClockRate INT,
            globalMemorySize INT, globalMemoryBandwidth INT, computeCapabilityMajor INT, computeCapabilityMinor INT);
        INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'Tesla V100-SXM2-16GB', 80, 1530000, 16945512448, 898048000, 7, 0)
    """
    found = changed("train", *old.split(";"))
    assert found.devices == {0: "Tesla V100-SXM2-16GB"}
    assert found.gpu_facts[0] == {
        **{"name": "Tesla V100-SXM2-16GB", "sm_count": 80, "clock_hz": 1_530_000_000, "compute_capability": "7.0"},
        **{"memory_bytes": 16945512448, "bandwidth_bytes_per_s": 898_048_000_000},
    }


def test_copies_of_an_old_export_have_a_direction(changed: Change) -> None:
    """It has CUPTI's numbers, and no table of what they mean."""
    found = changed("train", without=("ENUM_CUDA_MEMCPY_OPER",))
    named = {found.strings[name] for name in found.copies.name.tolist()}
    assert named == {timeline("train").strings[name] for name in timeline("train").copies.name.tolist()}
    assert any("Host-to-Device" in name for name in named)


def test_without_strings_nothing_is_lost_but_the_names(changed: Change) -> None:
    found = changed("train", "DROP TABLE StringIds")
    assert len(found.kernels) == 220
    assert all("is not in the recording" in found.strings[i] for i in found.kernels.name.tolist())
    scope = report_of(found).main_scope
    assert scope is not None
    assert scope.totals.kernel_count == 220


def test_a_table_of_unknown_shape_is_named_not_skipped_in_silence(changed: Change) -> None:
    found = changed("train", without=("CUPTI_ACTIVITY_KIND_MEMCPY", "end"))
    assert codes(found) == ["UNKNOWN_SCHEMA"]
    assert "CUPTI_ACTIVITY_KIND_MEMCPY" in found.diagnostics[0].message


def test_an_export_with_nothing_but_strings_is_read_and_everything_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.commit()
    found = read_recording(path)
    assert isinstance(found, Timeline)
    assert codes(found) == ["NO_KERNELS"]
    assert codes(report_of(found)) == ["NO_KERNELS", "NO_RANGES"]


# -- several processes -----------------------------------------------------------------------------


def launches(work: Work) -> list[tuple[int, int, int]]:
    return list(zip(work.start.tolist(), work.host_time.tolist(), work.process.tolist(), strict=True))


def test_equal_correlation_ids_of_two_processes_are_not_mixed_up(changed: Change) -> None:
    """ids start anew in every process: here both processes are made to use exactly the same ones."""
    renumbered = [
        f"CREATE TEMP TABLE ids AS SELECT globalTid & ~0xFFFFFF AS pid, correlationId AS old, "
        f"ROW_NUMBER() OVER (PARTITION BY globalTid & ~0xFFFFFF ORDER BY correlationId) AS new FROM {RUNTIME}",
        "CREATE INDEX temp.fast ON ids (pid, old)",
        *(
            f"UPDATE {table} SET correlationId = COALESCE((SELECT new FROM ids WHERE pid = {pid} AND old = correlationId), -5)"
            for table, pid in ((KERNELS, "globalPid"), (RUNTIME, "globalTid & ~0xFFFFFF"))
        ),
    ]
    found, original = changed("ranks", *renumbered), timeline("ranks")
    assert launches(found.kernels) == launches(original.kernels)
    assert shape(found) == shape(original)


# -- what is no export -----------------------------------------------------------------------------


def test_a_view_in_place_of_a_table_is_not_run(changed: Change) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end FROM n"
    found = changed("train", f"DROP TABLE {KERNELS}", f"CREATE VIEW {KERNELS} AS {endless}")
    assert len(found.kernels) == 0
    assert "NO_KERNELS" in codes(found)


def test_another_program_s_database_is_refused_with_the_tables_it_has(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE moz_places (id INTEGER)")
        db.commit()
    with pytest.raises(UnreadableInput, match=r"another program \(tables: moz_places\)"):
        read_recording(path)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.9999])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    data = plain_bytes(recording("nsys-*-train.sqlite"))
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UnreadableInput, match="truncated"):
        read_recording(path)


def test_an_empty_file_is_refused_with_the_next_thing_to_do(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    with pytest.raises(UnreadableInput, match="0 bytes") as told:
        read_recording(path)
    assert told.value.fix


@pytest.mark.parametrize(
    "content",
    [b"\x00" * 5000, bytes(range(256)) * 20, b"SQLite format 3\x00" + b"\xff" * 5000, b"SQLite format 3\x00"],
    ids=["zeros", "noise", "a header and noise", "a header alone"],
)
def test_garbage_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "garbage.sqlite"
    path.write_bytes(content)
    with pytest.raises(UnreadableInput, match=r"garbage\.sqlite"):
        read_recording(path)


def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    for name in ("nsys-*-train.sqlite", "nsys-*-names.sqlite"):
        source = recording(name)
        path = tmp_path / source.name
        path.write_bytes(source.read_bytes()[:2000])
        with pytest.raises(UnreadableInput, match="compressed file that is truncated or damaged"):
            read_recording(path)


def test_kernels_that_end_before_they_start_are_damage(changed: Change) -> None:
    with pytest.raises(UnreadableInput, match="3 rows of CUPTI_ACTIVITY_KIND_KERNEL end before they start"):
        changed("train", f"UPDATE {KERNELS} SET end = start - 1 WHERE rowid IN (5, 6, 7)")


def test_text_where_numbers_should_be_is_damage(changed: Change) -> None:
    with pytest.raises(UnreadableInput, match="whole numbers"):
        changed("train", f"UPDATE {KERNELS} SET correlationId = 'x' WHERE rowid = 5")


# -- secrets ---------------------------------------------------------------------------------------


def test_nothing_of_the_program_s_environment_reaches_the_report(changed: Change) -> None:
    found = changed(
        "train",
        "CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV "
        "(globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT)",
        "CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)",
        f"INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('HF_TOKEN', '{SECRET}'), "
        f"('EnvironmentVariables', 'A=1;HF_TOKEN={SECRET}'), ('NvDriverVersion', '580.1')",
        f"INSERT INTO META_DATA_CAPTURE (name, value) VALUES ('PROCESS_ENVIRONMENT', 'HF_TOKEN={SECRET}')",
        f"INSERT INTO StringIds (id, value) VALUES (99999999, CAST(x'41' || char(0) || 'HF_TOKEN={SECRET}' AS TEXT))",
    )
    text = render_json(report_of(found))
    assert SECRET not in text
    assert SECRET not in repr(found.environment)
    assert SECRET not in repr(found.strings)
    assert "HF_TOKEN" not in text
    assert found.environment["driver"] == "580.1"
