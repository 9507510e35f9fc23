"""`llm_perf_opt.open`: everything that `llm-perf report` takes, as data frames, a page and a short summary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import llm_perf_opt
from conftest import recording, report
from llm_perf_opt.api.result import Report
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import MissingTool, UnreadableInput, UserError
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.json_report import as_json
from llm_perf_opt.report.tables import kernels_table, metrics_table, regions_table
from llm_perf_opt.report.write import write_report
from synthetic import make_export

ROOT = Path(__file__).resolve().parents[1]
DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `report.json` and no recording."""
    folder = tmp_path_factory.mktemp("run")
    write_report(report(*DECODER), folder, ["json"])
    return folder


@pytest.fixture(scope="module")
def opened() -> Report:
    """A report of a timeline and the counters that belong to it."""
    return llm_perf_opt.open(*map(recording, DECODER))


# -- what can be opened --------------------------------------------------------------------------------


def test_a_finished_report_is_read_as_it_was_written(finished: Path) -> None:
    found = llm_perf_opt.load(finished)
    assert isinstance(found.data, NCUProfileRegionReport)
    assert found.scope("aggregate").totals.kernel_count > 0
    assert found == llm_perf_opt.open(finished / "report.json")
    assert as_json(found.data) == json.loads((finished / "report.json").read_text(encoding="utf-8"))


def test_a_report_under_another_name_is_no_trace(finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "yesterday.json"
    other.write_bytes((finished / "report.json").read_bytes())
    assert llm_perf_opt.open(other) == llm_perf_opt.open(finished)


@pytest.mark.parametrize(
    "name",
    [
        "nsys-*-threads.sqlite",
        "nsys-*-graph_node.sqlite",
        "kineto-",
        "ncu-*-2layers-basic.ncu-rep",
        "ncu-2025*-basic-raw.csv",
    ],
)
def test_recordings_of_every_kind(name: str) -> None:
    found, expected = llm_perf_opt.load(recording(name)), report(name)
    assert [as_json(expected)["scopes"]] == [as_json(found.data)["scopes"]]


def test_a_timeline_and_counters_are_joined(opened: Report) -> None:
    assert opened.coverage is not None
    assert as_json(opened.data)["scopes"] == as_json(report(*DECODER))["scopes"]


def test_a_run_directory_with_recordings(tmp_path: Path) -> None:
    (tmp_path / "nsys").mkdir()
    make_export(tmp_path / "nsys" / "run.sqlite", [("a", 0, 900), ("b", 1000, 1900)], [("k", 10, 20, 400)])
    built = llm_perf_opt.open(tmp_path)
    assert [r.key for r in built.main_scope.regions] == ["a", "b"]  # type: ignore[union-attr]
    assert main(["report", str(tmp_path), "--format", "json", "--quiet"]) == 0
    assert (tmp_path / "report.json").is_file()
    read = llm_perf_opt.open(tmp_path)
    assert read.data.generated_at  # the one that was written
    assert len(read.ranges) == 2  # from the recording beside it
    chosen = llm_perf_opt.open(tmp_path, include="a", attribution="process")
    assert chosen.data.attribution == "process"
    assert [r.key for r in chosen.scope("aggregate").regions] == ["a"]


def test_several_run_directories_are_their_recordings(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("rank0", "rank1")]
    for number, run in enumerate(runs):
        (run / "nsys").mkdir(parents=True)
        make_export(run / "nsys" / f"rank{number}.sqlite", [("a", number, 900)], [("k", 10, 20 + number, 400)])
        assert main(["report", str(run), "--format", "json", "--quiet"]) == 0
    both = llm_perf_opt.open(*runs)
    assert both.scope("aggregate").totals.kernel_count == 2
    assert len(both.launches) == 2


def test_what_is_none_of_ours_is_refused_clearly(tmp_path: Path, finished: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "x.bin").write_bytes(bytes(range(256)))
    (tmp_path / "x.json").write_text('{"a": 1}')
    for name, words in {
        "notes.txt": "a text file",
        "x.bin": "a binary file",
        "x.json": "without `traceEvents`",
    }.items():
        with pytest.raises(UnreadableInput, match=words):
            llm_perf_opt.load(tmp_path / name)
    with pytest.raises(UnreadableInput, match="does not exist"):
        llm_perf_opt.open(tmp_path / "nowhere.sqlite")
    with pytest.raises(UserError, match="finished report"):
        llm_perf_opt.open(finished / "report.json", recording(DECODER[0]))
    with pytest.raises(UserError, match="Nothing to open"):
        llm_perf_opt.open()


def test_options_that_cannot_be_met_are_refused(finished: Path) -> None:
    with pytest.raises(UserError, match="attribution='threads'"):
        llm_perf_opt.open(finished, attribution="threads")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="was built with attribution='auto'"):
        llm_perf_opt.open(finished, attribution="thread")
    with pytest.raises(UserError, match="only ncu can evaluate"):
        llm_perf_opt.open(finished, include="ncu:LLM@prefill/")


def test_include_means_the_same_with_and_without_recordings(finished: Path) -> None:
    read = llm_perf_opt.open(finished, include=["LLM@decode"], exclude="mlp")
    built = llm_perf_opt.open(*map(recording, DECODER), include="LLM@decode", exclude=["mlp"])
    assert [r.key for r in read.scope("aggregate").regions] == [r.key for r in built.scope("aggregate").regions]
    assert not [r for r in read.scope("aggregate").regions if "mlp" in r.path or r.path[0] != "decode"]


# -- frames --------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(finished: Path, library: str) -> None:
    """In a process of its own: which library is taken depends on what was imported before."""
    pytest.importorskip(library)
    code = f"""
import {library}, llm_perf_opt
found = llm_perf_opt.load({str(finished)!r})
for frame in (found.regions, found.kernels, found.metrics):
    assert type(frame) is {library}.DataFrame, type(frame)
rows = found.regions[found.regions["scope"] == "aggregate"] if "{library}" == "pandas" else found.regions.filter({library}.col("scope") == "aggregate")
assert len(rows) == len(found.main_scope.regions)
assert rows["gpu_time_ns"].sum() == sum(r.inclusive.gpu_time_ns for r in found.main_scope.regions)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_frames_are_built_once(opened: Report) -> None:
    for name in ("regions", "kernels", "metrics", "launches", "ranges", "answer"):
        assert getattr(opened, name) is getattr(opened, name)


def test_launches_and_ranges_are_those_of_the_report(opened: Report) -> None:
    totals = opened.scope("aggregate").totals
    assert len(opened.launches) == totals.kernel_count + totals.memory.count
    assert len(opened.ranges) == sum(r.instances or 0 for r in opened.scope("aggregate").regions)
    assert str(opened.launches["start_ns"].dtype).lower() == "int64"


def test_integers_stay_integers_where_some_are_missing() -> None:
    pytest.importorskip("pandas")
    from llm_perf_opt.api.frames import data_frame

    frame = data_frame({"a": [2**60 + 1, None], "b": [1.5, None], "c": [1, 2]})
    if type(frame).__module__.startswith("pandas"):
        assert [str(kind) for kind in frame.dtypes] == ["Int64", "float64", "int64"]
        assert frame["a"][0] == 2**60 + 1


def test_a_report_without_its_timeline_says_where_launches_are(finished: Path) -> None:
    with pytest.raises(UserError, match=r"report\.json has no single launches"):
        _ = llm_perf_opt.load(finished).launches
    with pytest.raises(UserError, match="only counters"):
        _ = llm_perf_opt.open(recording("ncu-*-2layers-basic.ncu-rep")).ranges


def test_without_pandas_and_polars_it_says_what_to_do(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingTool, match="pip install pandas"):
        _ = llm_perf_opt.load(finished).regions


def test_tables_have_columns_of_one_length(opened: Report) -> None:
    for table in (regions_table(opened.data), kernels_table(opened.data), metrics_table(opened.data)):
        assert len({len(column) for column in table.values()}) == 1


# -- the answer, selections, comparisons, the page -----------------------------------------------------


def test_the_answer_is_that_of_the_stage_that_takes_longest(opened: Report) -> None:
    answer = opened.answer
    stage = next(r for r in opened.scope("aggregate").regions if r.key == answer.stage)
    assert answer.stage == "LLM@decode"
    assert stage.performance is not None
    assert (answer.verdict, answer.confidence) == (
        stage.performance.verdict.bound,
        stage.performance.verdict.confidence,
    )
    assert answer.where.startswith("LLM@decode takes")
    assert stage.performance.verdict.text in answer.why
    assert answer.do_first
    assert str(answer).splitlines()[0] == f"Where: {answer.where}"


def test_an_answer_of_nothing_says_what_would_tell(tmp_path: Path) -> None:
    answer = llm_perf_opt.open(make_export(tmp_path / "r.sqlite", [], [])).answer
    assert (answer.stage, answer.verdict, answer.confidence, answer.fixes) == ("", "unknown", "low", [])
    assert answer.where
    assert answer.why.startswith("Cannot tell, because ")
    assert answer.do_first


def test_the_answer_of_a_recording_without_ranges_is_about_all_of_it(tmp_path: Path) -> None:
    answer = llm_perf_opt.open(make_export(tmp_path / "r.sqlite", [], [("k", 10, 20, 400)])).answer
    assert answer.stage == "whole recording"
    assert answer.where
    chosen = llm_perf_opt.open(tmp_path / "r.sqlite").select("whole*")
    assert list(chosen.launches["region"]) == ["whole recording"]
    assert list(chosen.ranges["range_kind"]) == ["recording"]
    assert str(answer)


def test_a_selection_holds_the_matching_regions_alone(opened: Report) -> None:
    chosen = opened.select("LLM@decode/**/attention")
    keys = {r.key for r in chosen.scope("aggregate").regions}
    assert keys == {
        r.key for r in opened.scope("aggregate").regions if r.key.startswith("LLM@decode") and "attention" in r.path
    }
    assert keys
    assert set(chosen.regions["region"]) == keys
    assert set(chosen.launches["region"]) <= keys
    assert len(chosen.launches) == sum(
        r.exclusive.kernel_count + r.exclusive.memory.count for r in chosen.scope("aggregate").regions
    )
    assert chosen.data.selection["include_patterns"] == ["LLM@decode/**/attention"]
    assert opened.data.selection.get("include_patterns", []) == []
    assert not opened.select("nothing of the kind").scope("aggregate").regions
    assert len(chosen.select("attention").scope("aggregate").regions) == len(keys)


def test_a_comparison_puts_regions_side_by_side(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    before = llm_perf_opt.open(make_export(tmp_path / "a.sqlite", [("x", 0, 100_000), ("gone", 200_000, 250_000)], []))
    after = llm_perf_opt.open(make_export(tmp_path / "b.sqlite", [("x", 0, 150_000), ("new", 200_000, 400_000)], []))
    compared = before.compare(after)
    rows = compared.regions
    if not isinstance(rows, pandas.DataFrame):
        rows = rows.to_pandas()
    rows = rows.set_index("region")
    assert list(rows.index) == ["x", "gone", "new"]
    assert (rows.loc["x", "before_ns"], rows.loc["x", "after_ns"]) == pytest.approx((100_000, 150_000))
    assert rows.loc["x", "change"] == pytest.approx(0.5)
    assert pandas.isna(rows.loc["gone", "after_ns"])
    assert pandas.isna(rows.loc["new", "before_ns"])
    assert compared.to_html(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(repr(compared)) < 500
    assert "100 µs → 150 µs" in repr(compared)
    with pytest.raises(UserError, match="takes another report"):
        before.compare("after.sqlite")  # type: ignore[arg-type]


def test_the_page_is_that_of_the_report(opened: Report, tmp_path: Path) -> None:
    page = opened.to_html(tmp_path / "deep" / "page.html")
    assert page == tmp_path / "deep" / "page.html"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "LLM@decode" in text


# -- shown ---------------------------------------------------------------------------------------------


def test_texts_are_short(opened: Report) -> None:
    assert repr(opened).startswith("<Report of nsys-")
    assert len(repr(opened)) < 400
    assert "\n" not in repr(opened)
    assert len(repr(opened.data)) < 400
    assert len(repr(opened.scopes)) < 1000 * len(opened.scopes)
    assert len(opened._repr_html_()) < 10_000


def test_names_cannot_break_what_is_shown(tmp_path: Path) -> None:
    found = llm_perf_opt.open(
        make_export(tmp_path / "\x1b[31mr.sqlite", [("<b onload=x>", 0, 900)], [("k<i>", 10, 20, 400)])
    )
    shown = found._repr_html_()
    assert "&lt;b onload=x&gt;" in shown
    assert "<b onload" not in shown
    assert ".kernels" in shown
    assert "\x1b" not in repr(found)


@pytest.mark.process
def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, llm_perf_opt; print([m for m in sys.modules if m in ('attrs', 'numpy', 'pandas', 'polars', 'torch')])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout == "[]\n"


@pytest.mark.slow
def test_the_page_of_the_documentation_shows_what_its_snippets_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise: python tools/document_python_api.py"""
    pytest.importorskip("pandas")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import document_python_api

    written = document_python_api.PAGE.read_text(encoding="utf-8")
    now = document_python_api.page(written)
    assert [line.split() for line in now.splitlines()] == [line.split() for line in written.splitlines()]
