"""What people read of the verdicts: the stakeholder summary, report.md, and the options that change the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import llm_perf_opt
from conftest import recording, regions_of, report
from llm_perf_opt.calibration import store
from llm_perf_opt.cli.main import main
from llm_perf_opt.metrics.quantity import shown
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.markdown import render_markdown, render_region
from llm_perf_opt.report.stakeholder import render_stakeholder
from llm_perf_opt.report.view import view_of

TIMELINE = "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite"
COUNTERS = "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config"


@pytest.fixture(scope="module")
def demo() -> NCUProfileRegionReport:
    return report(TIMELINE, COUNTERS)


def test_the_summary_is_one_page_of_this_run_s_numbers(demo: NCUProfileRegionReport) -> None:
    text = render_stakeholder(view_of(demo))
    decode = regions_of(demo.main_scope)["LLM@decode"].performance
    assert decode is not None
    assert decode.tokens is not None
    limit = shown(decode.tokens.limit).removesuffix(" token/s")
    assert 2_000 < float(limit.replace(",", "")) < 3_000
    assert len(text.splitlines()) <= 60
    for wanted in (
        "NVIDIA H200",
        "`LLM@prefill`",
        "`LLM@decode`",
        "launch-bound",
        "114 ms of 125 ms",
        "990 TFLOP/s",
        limit,
    ):
        assert wanted in text, wanted
    assert text.index("## Stages") < text.index("## Recommendations") < text.index("## Where the GPU's time goes")
    MarkdownIt("commonmark").enable("table").parse(text)


def test_the_summary_follows_the_recording(demo: NCUProfileRegionReport) -> None:
    """Another run, other sentences."""
    other = render_stakeholder(view_of(report("nsys-2025.3.1-h200-decoder-36layers.sqlite")))
    mine = render_stakeholder(view_of(demo))
    shared = {line for line in mine.splitlines() if len(line) > 60} & set(other.splitlines())
    assert {line for line in shared if not line.startswith("|")} == set()
    assert "What is not known" in other
    assert "llm-perf profile --include LLM@prefill -- CMD" in other


def test_the_summary_of_nothing_says_why() -> None:
    text = render_stakeholder(view_of(report("nsys-2025.3.1-h200-names.sqlite", include=["no_such_region"])))
    assert "No stage could be evaluated" in text
    assert "No matching regions" in text


def test_report_md_has_the_verdicts(demo: NCUProfileRegionReport) -> None:
    text = render_markdown(view_of(demo))
    for title in (
        "## Verdicts",
        "## What to fix first",
        "## Speed of light",
        "## Kinds of work",
        "## Kernels against the roofs",
        "## The GPU",
    ):
        assert title in text, title
    assert "Denominators: tensor bf16 990 TFLOP/s (datasheet), bandwidth 4.8 TB/s (datasheet)" in text


def test_a_region_s_report_has_its_work_and_verdict(demo: NCUProfileRegionReport) -> None:
    text = render_region(regions_of(demo.main_scope)["LLM@prefill"])
    for wanted in (
        "## Verdict",
        "## Work",
        "MFU, busy time | 31.1 %",
        "the roof bends at 206 FLOP/B",
        "## What could be won",
    ):
        assert wanted in text, wanted


def paths() -> list[str]:
    return [str(recording(TIMELINE)), str(recording(COUNTERS))]


def test_figures_of_the_user_change_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["report", *paths(), "--out", str(tmp_path), "--format", "json,md", "--hardware", "bandwidth=9.6TB/s", "--json"]
    )
    assert code == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert "stakeholder_summary.md" in files
    found = llm_perf_opt.load(tmp_path)
    assert found.hardware[0].bandwidth is not None
    assert found.hardware[0].bandwidth.of("B/s") == 9.6e12
    of = regions_of(found.main_scope)["LLM@prefill"].performance
    assert of is not None
    (mbu,) = [u for u in of.utilisation if (u.metric, u.time_basis) == ("mbu", "busy")]
    assert mbu.value == pytest.approx(0.0986, abs=2e-4)


@pytest.mark.parametrize(
    ("word", "said"), [("bandwidth", "no value"), ("bandwidth=4.8", "no unit"), ("speed=1TB/s", "no hardware setting")]
)
def test_bad_figures_are_refused_before_anything_is_read(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "no-such-file", "--hardware", word]) == 2
    assert said in capsys.readouterr().err


def test_a_calibration_file_gives_the_second_denominator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(
        {
            "gpu": "NVIDIA H200",
            "uuid": "",
            "measured_at": "2026-01-02T00:00:00+00:00",
            "torch": "2.11",
            "driver": "580",
            "peaks": {"tensor_bf16": {"value": 7.5e14, "unit": "FLOP/s"}},
            "bandwidth": {"value": 4.2e12, "unit": "B/s"},
        },
        tmp_path / "c.json",
    )
    main(
        [
            "report",
            *paths(),
            "--out",
            str(tmp_path),
            "--format",
            "json,md",
            "--calibration",
            str(tmp_path / "c.json"),
            "--json",
        ]
    )
    text = (tmp_path / "report.md").read_text()
    assert "31.1 % (41.0 % cal.)" in text
    assert "measured 2026-01-02" in text
    assert main(["report", *paths(), "--out", str(tmp_path), "--calibration", str(tmp_path / "none.json")]) == 2
    assert "llm-perf calibrate" in capsys.readouterr().err


def run_directory(tmp_path: Path, static: str) -> Path:
    run = tmp_path / "run"
    (run / "nsys").mkdir(parents=True)
    (run / "ncu").mkdir()
    (run / "static_analysis").mkdir()
    (run / "nsys" / "run.sqlite.xz").write_bytes(recording(TIMELINE).read_bytes())
    (run / "ncu" / "run.ncu-rep.xz").write_bytes(recording(COUNTERS).read_bytes())
    (run / "static_analysis" / "static_compute.json").write_text(static)
    return run


def test_flops_by_formula_stand_beside_the_counted_ones(tmp_path: Path) -> None:
    """The projections alone, as a stage's formula gives them: 92 % of what the tensor cores did."""
    matrices = 2048 * (2048 + 2 * 1024) + 2048 * 2048 + 3 * 2048 * 6144
    stage = {
        "name": "prefill",
        "repeats": 1,
        "formula": {"flops_needed": 2 * 2048 * 8 * matrices},
        "count": {"matrix_flops": 1},
    }
    run = run_directory(tmp_path, json.dumps({"stages": [stage]}))
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    of = regions_of(llm_perf_opt.load(run).main_scope)["LLM@prefill"].performance
    assert of is not None
    assert of.work.counted_over_formula == pytest.approx(1.0923, abs=1e-3)
    assert "1.09 times the model's work" in of.work.formula_note


def test_a_damaged_formula_is_left_out_with_a_word(tmp_path: Path) -> None:
    run = run_directory(tmp_path, "{")
    assert main(["report", str(run), "--format", "json", "--json"]) == 0
    found = llm_perf_opt.load(run)
    assert "FORMULA_UNREADABLE" in {d.code for d in found.diagnostics}


def test_a_damaged_calibration_of_the_machine_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store.default_path().parent.mkdir(parents=True)
    store.default_path().write_text("no json")
    out = tmp_path / "out"
    assert main(["report", str(recording(TIMELINE)), "--out", str(out), "--format", "json", "--json"]) == 0
    assert "CALIBRATION_UNREADABLE" in {d.code for d in llm_perf_opt.load(out).diagnostics}
