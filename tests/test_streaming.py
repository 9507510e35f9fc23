"""Many timelines and large ones: one at a time in memory, the same figures as all at once, and a word where a limit is hit."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from conftest import codes, plain_bytes, recording, regions_of, timeline
from llm_perf_opt.analysis import build
from llm_perf_opt.analysis.build import ReportOptions, build_streamed_report, with_ranks
from llm_perf_opt.analysis.timeline_report import MOST_REGIONS
from llm_perf_opt.cli.main import main
from llm_perf_opt.readers import memory
from llm_perf_opt.readers.open import is_timeline, read_recording
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.regions.table import DEEPEST, POOLED, WHOLE, RegionTable
from llm_perf_opt.report import terminal as console
from synthetic import make_export

NAMES = ("train", "ranks", "threads", "graph_node", "graph_whole", "names")


def ranks() -> list[Timeline]:
    return [with_ranks(timeline(name), number) for number, name in enumerate(NAMES)]


def at_once(timelines: list[Timeline], options: ReportOptions) -> NCUProfileRegionReport:
    """The same through one merged timeline."""
    found = build._with_timeline(timelines, [], options, *build._filters(options))
    return build._finished(found, timelines, [], options, None, lambda others: at_once(timelines, others))


def comparable(report: NCUProfileRegionReport) -> dict[str, Any]:
    """Scopes with their regions, whatever their order."""
    found: dict[str, Any] = {}
    for scope in report.scopes:
        totals = attrs.asdict(scope.totals)
        if not scope.scope.startswith("process"):
            # Of devices: merged, work of different recordings is taken for simultaneous, which nobody can know.
            totals.pop("gpu_busy_ns")
        totals.pop("outside_ranges_ns")  # in a whole recording nothing is: see below
        kernels = sorted((attrs.asdict(k) for k in scope.kernels), key=str)
        regions = {}
        for region in scope.regions:
            told = attrs.asdict(region)
            told["kernels"].sort(key=str)
            # Whether ranges hold too little of a recording is found for each, or for all together.
            if not region.is_whole_recording:
                regions[region.key] = told
        found[scope.scope] = (totals, kernels, regions)
    return found


def without_what_one_explains(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Waiting is looked into in the heaviest regions of each recording, or of all: not of regions that one leaves out."""
    for scope, (_, _, regions) in one.items():
        for key, told in regions.items():
            performances = [told["performance"], other[scope][2].get(key, {}).get("performance")]
            if len({None if p is None else p["idle"] is None for p in performances}) == 2:
                told["performance"] = None
    return one


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attribution": "thread"},
        {"attribution": "process"},
        {"include": ["step*", "regex:back"], "exclude": ["*backward*"]},
        {"kernel_include": ["*gemm*", "regex:elementwise"]},
        {"aggregate": False},
    ],
    ids=str,
)
def test_one_after_the_other_gives_the_figures_of_all_at_once(options: dict[str, Any]) -> None:
    chosen = ReportOptions(**options)
    streamed, merged = build_streamed_report(ranks, chosen), at_once(ranks(), chosen)
    one, other = comparable(streamed), comparable(merged)
    explained = {
        key: without_what_one_explains(comparable(r), o) for key, r, o in (("s", streamed, other), ("m", merged, one))
    }
    assert explained["s"] == explained["m"]
    assert [s.scope for s in streamed.scopes] == [s.scope for s in merged.scopes]
    assert set(codes(streamed)) - {"LAUNCHES_OF_ONE"} == set(codes(merged))
    assert streamed.environment == merged.environment
    assert merged.stages in (streamed.stages, [WHOLE])
    assert sum(len(s.regions) for s in streamed.scopes) > 0


def test_of_all_timelines_only_the_first_is_kept_until_its_launches_are_drawn(unpacked: Any) -> None:
    files = [unpacked(recording(f"nsys-*-{name}.sqlite")) for name in ("train", "threads", "names", "ranks")]
    alive: list[weakref.ref[Timeline]] = []
    most = 0

    def reading() -> Iterator[Timeline]:
        nonlocal most
        for file in files:
            found = read_recording(file)
            assert isinstance(found, Timeline)
            alive.append(weakref.ref(found))
            most = max(most, sum(ref() is not None for ref in alive))
            yield found
            del found

    report = build_streamed_report(reading, ReportOptions(launch_detail=True))
    assert [ref() is not None for ref in alive] == [False, False, False, False]
    assert most == 3  # the first, the last given over, and the new one
    assert report.timeline_detail is not None
    told = next(d for d in report.diagnostics if d.code == "LAUNCHES_OF_ONE")
    assert "4 recordings" in told.message


def owners(columns: Any) -> Iterator[Any]:
    """What holds the memory of its columns: a view of a few of its rows keeps all of it."""
    for name in attrs.fields_dict(type(columns)):
        value = getattr(columns, name)
        if isinstance(value, np.ndarray) and value.size:
            while isinstance(value.base, np.ndarray):
                value = value.base
            yield value
        elif attrs.has(type(value)):
            yield from owners(value)


def test_nothing_keeps_the_columns_of_a_rank(unpacked: Any) -> None:
    held: list[list[weakref.ref[Any]]] = []

    def reading() -> Iterator[Timeline]:
        for _ in range(4):
            found = read_recording(unpacked(recording("nsys-*-train.sqlite")))
            assert isinstance(found, Timeline)
            assert len(found.host)
            held.append([weakref.ref(owner) for owner in owners(found)])
            yield found
            del found
        left.extend(sum(ref() is not None for ref in refs) for refs in held)

    left: list[int] = []
    build_streamed_report(reading, ReportOptions())
    assert left[0] > 10  # those of the first are kept: single launches are drawn from it
    assert left[1:3] == [0, 0]


def test_the_command_reads_ranks_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for number, name in enumerate(("train", "threads")):
        files.append(tmp_path / f"rank{number}.sqlite")
        files[-1].write_bytes(plain_bytes(recording(f"nsys-*-{name}.sqlite")))
    assert main(["report", *map(str, files), "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"rank:0", "rank:1", "aggregate"} <= {s["scope"] for s in told["scopes"]}
    assert "LAUNCHES_OF_ONE" in {d["code"] for d in told["diagnostics"]}
    written = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert [i["path"] for i in written["inputs"]] == ["rank0.sqlite", "rank1.sqlite"]


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        ("nsys-*-train.sqlite", True),
        ("nsys-*-threads.sqlite", True),
        ("kineto-", True),
        ("ncu-*-h200-names.ncu-rep", False),
        ("ncu-*-h200-live-raw.csv", False),
    ],
)
def test_what_a_file_holds_is_told_from_its_beginning(pattern: str, answer: bool) -> None:
    assert is_timeline(recording(pattern)) is answer


# -- words on the way ------------------------------------------------------------------------------


def test_progress_is_a_line_now_and_then_where_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(plain_bytes(recording("nsys-*-train.sqlite")))
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err == ""  # it was quick
    monkeypatch.setattr(console, "_SECONDS_A_LINE", 0.0)
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("reading x.sqlite: ") and line.endswith(" rows") for line in lines)
    assert main(["report", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_progress_of_several_files_counts_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SECONDS_A_LINE", 0.0)
    with console.reading(quiet=False, files=64) as observer:
        observer.begin("rank0.sqlite", 10)(5)
        observer.begin("rank1.sqlite", None)(7)
    assert capsys.readouterr().err.splitlines() == [
        "reading rank0.sqlite (file 1 of 64): 50% of 10 rows",
        "reading rank1.sqlite (file 2 of 64): 7 results",
    ]


def test_too_large_for_the_memory_is_said_before_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(plain_bytes(recording("nsys-*-train.sqlite")))
    monkeypatch.setattr(memory, "free_bytes", lambda: 100_000_000)
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "x.sqlite needs about 0.2 GB of memory" in told
    assert "0.1 GB are free" in told
    assert "nsys profile --duration" in told
    assert not (tmp_path / "out").exists()


def test_free_memory_is_known_here() -> None:
    free = memory.free_bytes()
    assert free is not None
    assert 0 < free < 1e15


# -- limits of the tree ----------------------------------------------------------------------------


def nested(path: Path, depth: int) -> Path:
    ranges = [(f"level {i}", i, 10_000_000 - i) for i in range(depth)]
    return make_export(path, ranges, [("k", depth + 1, depth + 2, depth + 1002)])


@pytest.mark.slow
def test_a_thousand_levels_are_a_thousand_regions(tmp_path: Path) -> None:
    found = read_recording(nested(tmp_path / "x.sqlite", 1000))
    report = build.build_report([found], ReportOptions())
    regions = regions_of(report.main_scope)
    assert len(regions) == 1000
    assert {r.inclusive.kernel_count for r in regions.values()} == {1}
    assert sum(r.exclusive.kernel_count for r in regions.values()) == 1
    assert "RANGES_POOLED" not in codes(report)


@pytest.mark.slow
def test_deeper_ranges_are_counted_together_and_it_is_said(tmp_path: Path) -> None:
    found = read_recording(nested(tmp_path / "x.sqlite", DEEPEST + 500))
    report = build.build_report([found], ReportOptions())
    assert report.main_scope is not None
    deepest = max(report.main_scope.regions, key=lambda r: r.depth)
    assert (deepest.name, deepest.depth) == (POOLED, DEEPEST)
    assert deepest.instances == 500
    assert deepest.inclusive.kernel_count == 1
    assert "RANGES_POOLED" in codes(report)


def test_a_table_that_is_full_pools_below_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.regions.table.MOST_CHARACTERS", 20)
    table = RegionTable()
    outer = table.intern("", False, -1, "outer range")
    inner = table.intern("", False, outer, "inner range")
    pooled = table.intern("", False, outer, "one more")
    assert table.name[pooled] == POOLED
    assert table.intern("", False, outer, "another") == pooled
    assert table.intern("", False, pooled, "below") == pooled
    assert table.intern("", False, outer, "inner range") == inner  # what is there stays


@pytest.mark.slow
def test_ranges_that_all_overlap_take_no_more_than_seconds(tmp_path: Path) -> None:
    """Each begins and ends after the one before: every moment has another stack, thousands deep."""
    count = 6000
    ranges = [(f"r{i % 50}", i, 10_000_000 + i) for i in range(count)]
    kernels = [("k", 10_000_000 + i, 20_000_000 + i, 20_000_001 + i) for i in range(0, count, 3)]
    found = read_recording(make_export(tmp_path / "x.sqlite", ranges, kernels))
    report = build.build_report([found], ReportOptions())
    assert "RANGES_POOLED" in codes(report)
    assert report.main_scope is not None
    assert report.main_scope.totals.kernel_count == len(kernels)


@pytest.mark.slow
def test_with_very_many_regions_only_the_main_scope_lists_all(tmp_path: Path) -> None:
    count = MOST_REGIONS // 2 + 500
    ranges = [(f"layer {i}", 10 * i, 10 * i + 9) for i in range(count)]
    found = read_recording(make_export(tmp_path / "x.sqlite", ranges, [("k", 1, 2, 3), ("k", 11, 12, 19)]))
    report = build.build_report([found], ReportOptions())
    sizes = {scope.scope: len(scope.regions) for scope in report.scopes}
    assert sizes["aggregate"] == count
    assert sizes["device:0"] == sizes["process:7"] == MOST_REGIONS // 2
    told = next(d for d in report.diagnostics if d.code == "REGION_LISTS_CUT")
    assert f"{count:,} regions in 3 scopes" in told.message
    assert {s.totals.kernel_count for s in report.scopes} == {2}
