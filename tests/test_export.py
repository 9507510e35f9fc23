"""`llm-perf export`: what other programs get is what the report says."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import recording, report
from llm_perf_opt.cli.main import main
from llm_perf_opt.report.perfetto import nested_lanes
from synthetic import make_export

DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")


def exported(tmp_path: Path, *names: str) -> dict[str, Any]:
    """The trace of some recordings, as JSON."""
    target = tmp_path / "trace.json.gz"
    assert main(["export", *(str(recording(name)) for name in names), "--perfetto", str(target)]) == 0
    trace: dict[str, Any] = json.loads(gzip.decompress(target.read_bytes()))
    return trace


# -- Perfetto ------------------------------------------------------------------------------------------


def test_a_trace_read_back_is_the_same_program(tmp_path: Path) -> None:
    exported(tmp_path, DECODER[0])
    before = report(DECODER[0]).main_scope
    after = report(tmp_path / "trace.json.gz").main_scope
    assert before
    assert after
    assert after.totals.kernel_count == before.totals.kernel_count
    assert after.totals.gpu_time_ns == before.totals.gpu_time_ns
    assert after.totals.gpu_busy_ns == before.totals.gpu_busy_ns
    assert [(r.path, r.instances, r.wall_ns, r.gpu_idle_ns, r.inclusive.kernel_count) for r in after.regions] == [
        (r.path, r.instances, r.wall_ns, r.gpu_idle_ns, r.inclusive.kernel_count) for r in before.regions
    ]


def test_calls_that_take_the_host_time_are_on_the_track_of_their_thread(tmp_path: Path) -> None:
    events = exported(tmp_path, "lines-*-waits.sqlite")["traceEvents"]
    frees = [event for event in events if event.get("name") == "cudaFree_v3020"]
    assert sum(event["dur"] for event in frees) > 40_000  # µs: most of the gaps that are named after them
    steps = {(event["pid"], event["tid"]) for event in events if event.get("name") == "step"}
    assert {(event["pid"], event["tid"]) for event in frees} <= steps


def test_a_gap_says_why_the_gpu_waits_and_for_what(tmp_path: Path) -> None:
    gaps = [event for event in exported(tmp_path, "lines-*-waits.sqlite")["traceEvents"] if event.get("cat") == "idle"]
    long = [event["name"] for event in gaps if event["dur"] >= 10_000]
    assert long.count("idle: python, lines.py(163): waits") >= 5  # the lock, in each of five steps
    assert any(name.startswith("idle: host.alloc, cudaFree") for name in long)
    assert {event["name"] for event in gaps if event["dur"] < 100} == {"idle"}


@pytest.mark.parametrize(
    "name",
    ["nsys-*-threads.sqlite", "nsys-*-ranks.sqlite", "nsys-*-graph_node.sqlite", "nsys-*-names.sqlite", "kineto-"],
)
def test_every_event_is_what_the_format_asks_for(tmp_path: Path, name: str) -> None:
    events = exported(tmp_path, name)["traceEvents"]
    open_spans: dict[tuple[int, int], list[float]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["pid"] in processes
        track = event["pid"], event["tid"]
        assert track in named or event["cat"] == "cuda_runtime"
        # On one track slices nest or stand apart; others are drawn wrongly.
        around = open_spans[track]
        while around and around[-1] <= event["ts"] + 1e-6:
            around.pop()
        end = event["ts"] + event["dur"]
        assert not around or end <= around[-1] + 1e-3
        if event["dur"]:
            around.append(end)
    starts = [e["id"] for e in events if e["ph"] == "b"]
    assert sorted(starts) == sorted(e["id"] for e in events if e["ph"] == "e")
    busy = [e["args"]["percent"] for e in events if e["ph"] == "C"]
    assert busy
    assert all(0 <= value <= 100 for value in busy)


def test_kernels_are_on_their_streams_and_gaps_between_them(tmp_path: Path) -> None:
    trace = exported(tmp_path, DECODER[0])
    kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
    streams = {e["args"]["stream"] for e in kernels}
    assert streams == {7}
    gaps = [(e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"] if e.get("cat") == "idle"]
    starts = np.array(sorted(e["ts"] for e in kernels))
    assert gaps
    for begin, end in gaps[:500]:
        inside = np.searchsorted(starts, end - 1e-6) - np.searchsorted(starts, begin + 1e-6)
        assert inside == 0  # nothing begins in a gap


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=40))
def test_lanes_hold_only_what_nests(spans: list[tuple[int, int]]) -> None:
    spans = sorted(spans, key=lambda span: (span[0], -span[1]))
    start = np.array([a for a, _ in spans], dtype=np.int64)
    end = np.array([a + b for a, b in spans], dtype=np.int64)
    lanes = nested_lanes(start, end)
    for i in range(len(spans)):
        for j in range(i):
            if lanes[i] == lanes[j]:
                assert end[j] <= start[i] or end[i] <= end[j]


def test_the_same_recording_gives_the_same_bytes(tmp_path: Path) -> None:
    exported(tmp_path, DECODER[0])
    first = (tmp_path / "trace.json.gz").read_bytes()
    exported(tmp_path, DECODER[0])
    assert (tmp_path / "trace.json.gz").read_bytes() == first


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    names = ['</script>"\\', "\u2028", "a\x00b", "half \ud800 pair"[:5], "", "x" * 5000]
    source = make_export(
        tmp_path / "run.sqlite",
        [(name, 1000 * i, 1000 * i + 900) for i, name in enumerate(names)],
        [(name, 1000 * i + 10, 1000 * i + 20, 1000 * i + 400) for i, name in enumerate(names)],
    )
    out = tmp_path / "out"
    assert main(["export", str(source), "--perfetto", str(out / "trace.json"), "--csv", str(out / "tables")]) == 0
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "kernel"} == set(names)
    assert {path.name for path in out.rglob("*") if path.is_file()} == {
        "trace.json", "regions.csv", "kernels.csv", "metrics.csv", "launches.csv", "ranges.csv"
    }  # fmt: skip


# -- tables --------------------------------------------------------------------------------------------


def test_csv_tables(tmp_path: Path) -> None:
    found = report(*DECODER)
    paths = [str(recording(name)) for name in DECODER]
    assert main(["export", *paths, "--csv", str(tmp_path), "--json"]) == 0
    tables = {}
    for name in ("regions", "kernels", "metrics", "launches", "ranges"):
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            tables[name] = list(csv.DictReader(file))
    assert len(tables["regions"]) == sum(len(s.regions) for s in found.scopes)
    assert found.main_scope
    kernels = [row for row in tables["launches"] if row["kind"] == "kernel"]
    assert len(kernels) == found.main_scope.totals.kernel_count
    assert sum(int(row["duration_ns"]) for row in kernels) == found.main_scope.totals.gpu_time_ns
    assert {row["stream"] for row in kernels} == {"7"}
    inside = defaultdict(int)
    for row in kernels:
        inside[row["region"]] += 1
    for region in found.main_scope.regions:
        assert inside[region.key] == region.exclusive.kernel_count
    assert len(tables["ranges"]) == sum(r.instances or 0 for r in found.main_scope.regions)


@pytest.mark.slow
def test_parquet_tables(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["export", str(recording(DECODER[0])), "--parquet", str(tmp_path)]) == 0
    launches = parquet.read_table(tmp_path / "launches.parquet")
    found = report(DECODER[0]).main_scope
    assert found
    assert launches.num_rows == found.totals.kernel_count + found.totals.memory.count
    assert str(launches.schema.field("start_ns").type) == "int64"
    regions = parquet.read_table(tmp_path / "regions.parquet").to_pylist()
    assert {row["region"] for row in regions} == {r.key for r in found.regions}


def test_parquet_without_pyarrow_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(recording(DECODER[0])), "--parquet", str(tmp_path / "x")]) == 3
    assert "pip install pyarrow" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), [([], "--perfetto FILE"), (["--perfetto", "."], "is a folder")])
def test_what_cannot_be_exported_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(recording(DECODER[0])), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_counters_alone_make_tables_and_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(recording("ncu-*-decoder-2layers-basic.ncu-rep"))
    assert main(["export", source, "--perfetto", str(tmp_path / "t.json")]) == 2
    assert "only counters" in capsys.readouterr().err
    assert not (tmp_path / "t.json").exists()
    assert main(["export", source, "--csv", str(tmp_path / "tables")]) == 0
    assert {p.name for p in (tmp_path / "tables").iterdir()} == {"regions.csv", "kernels.csv", "metrics.csv"}
