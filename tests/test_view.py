"""One view of a finished report: rendering changes nothing, and all outputs and commands agree."""

from __future__ import annotations

import copy
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import exceptions, fields

from conftest import recording, report
from fake_tools import tools  # noqa: F401  a fixture
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.cli.main import main
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.renderers import EXPORTS, FORMATS, exporter, renderer
from llm_perf_opt.report.stages import STAGE_COLUMNS
from llm_perf_opt.report.terminal import show_report, stage_table
from llm_perf_opt.report.view import view_of
from llm_perf_opt.report.write import write_report
from llm_perf_opt.rundir.layout import REPORT_LIST

DECODER = ("nsys-*-decoder-8layers-warm.sqlite", "ncu-*-decoder-8layers-warm-per-launch-config.ncu-rep")
DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def decoder() -> NCUProfileRegionReport:
    return report(*DECODER, launch_detail=True)


# -- the report is never changed ---------------------------------------------------------------------


def test_rendering_leaves_the_report_as_it_was(decoder: NCUProfileRegionReport, tmp_path: Path) -> None:
    before = copy.deepcopy(decoder)
    written = {path.name for path in write_report(decoder, tmp_path, FORMATS, regions="ncu/regions")}
    show_report(view_of(decoder))
    assert {"report.json", "report.md", "report.html", "regions.csv"} <= written
    assert decoder == before
    assert all(region.folder == "" for scope in decoder.scopes for region in scope.regions)
    # and yet what was written names the folders
    found = json.loads((tmp_path / "report.json").read_text())
    aggregate = next(scope for scope in found["scopes"] if scope["scope"] == "aggregate")
    assert all((tmp_path / "ncu/regions" / region["folder"] / "report.md").is_file() for region in aggregate["regions"])


def test_a_finished_report_cannot_be_assigned_to(decoder: NCUProfileRegionReport) -> None:
    with pytest.raises(exceptions.FrozenInstanceError):
        decoder.diagnostics = []  # type: ignore[misc]


def test_launches_are_worked_out_only_for_outputs_that_draw_them() -> None:
    assert report(DECODER[0]).timeline_detail is None
    assert [name for name in FORMATS if renderer(name).needs_launches] == ["html"]


# -- the fingerprint ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "value"),
    [
        ("formula", {"decode": {"flops": 1e12}}),
        ("alone", {"decode": 0.125}),
        ("calibrations", [{"gpu": "NVIDIA H200"}]),
        ("launch_detail", True),
    ],
)
def test_what_was_measured_is_no_part_of_the_fingerprint(measured: str, value: Any) -> None:
    assert ReportOptions(**{measured: value}).fingerprint() == ReportOptions().fingerprint()


@pytest.mark.parametrize(
    "asked",
    [{"include": ["a"]}, {"kernel_exclude": ["b"]}, {"attribution": "thread"}, {"top": 5}, {"hardware": {"a": "b"}}],
    ids=str,
)
def test_what_the_user_asks_for_is_the_fingerprint(asked: dict[str, Any]) -> None:
    assert ReportOptions(**asked).fingerprint() != ReportOptions().fingerprint()
    assert set(asked) <= {field.name for field in fields(ReportOptions)}


# -- one of everything -------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_is_one_regions_csv(tmp_path: Path) -> None:
    """The file of a report and the one of an export have the same columns, rows and values."""
    paths = [str(recording(name)) for name in DECODER]
    assert main(["report", *paths, "--out", str(tmp_path / "report"), "--format", "csv", "--json"]) == 0
    assert main(["export", *paths, "--csv", str(tmp_path / "export"), "--json"]) == 0
    assert (tmp_path / "report" / "regions.csv").read_text() == (tmp_path / "export" / "regions.csv").read_text()


def test_the_columns_of_regions_csv_are_documented(decoder: NCUProfileRegionReport, tmp_path: Path) -> None:
    write_report(decoder, tmp_path, ["csv"])
    with (tmp_path / "regions.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    assert len(set(columns)) == len(columns)
    told = set(re.findall(r"`(\w+)`", (DOCS / "export.md").read_text()))
    assert set(columns) <= told


def test_every_output_shows_the_same_answer(
    decoder: NCUProfileRegionReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(decoder, tmp_path, FORMATS)
    view = view_of(decoder)
    show_report(view)
    full = capsys.readouterr().out
    show_report(view, brief=True)
    brief = capsys.readouterr().out
    for line in view.answer.lines:
        assert f"{line.name}: {line.text}" in full
        assert f"{line.name}: {line.text}" in brief
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    for name in ("Where", "Why", "Do first"):
        assert f"<dt>{name}</dt>" in page
        assert f"- **{name}**: " in text
    summary = (tmp_path / "stakeholder_summary.md").read_text()
    told = [line for line in text.splitlines() if re.match(r"- \*\*(Where|Why|Do first)\*\*: ", line)]
    assert len(told) == 3
    assert all(line in summary for line in told)
    written = json.loads((tmp_path / "report.json").read_text())["answer"]
    assert [written[name] for name in ("where", "why", "do_first")] == [line.text for line in view.answer.lines]
    for number, found in enumerate(view.answer.fixes[:5], 1):
        assert f"fix {number} {found.text}" in full
        assert found.fix.rule == written["fixes"][number - 1]["rule"]


def test_every_column_of_the_stage_table_is_shown_somewhere(decoder: NCUProfileRegionReport, tmp_path: Path) -> None:
    text = ""
    for found in (decoder, report("nsys-*-graph_node.sqlite")):  # one has counters, the other warm-up
        write_report(found, tmp_path, ["md"])
        text += (tmp_path / "report.md").read_text()
    assert [column.title for column in STAGE_COLUMNS if f"| {column.title} |" not in text] == []


@pytest.mark.parametrize("width", [50, 66, 76, 88, 98, 110, 130, 160])
def test_the_stage_table_never_cuts_a_number(decoder: NCUProfileRegionReport, width: int) -> None:
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as shown:
        console.print(stage_table(view_of(decoder), width))
    assert "…" not in shown.get()
    assert "125 ms" in shown.get()


@pytest.mark.process
def test_report_of_a_run_gives_the_answer_of_the_run_itself(
    tools: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`llm-perf profile` and `llm-perf report RUN`: the same files, and the same first lines on the screen."""
    run = tools / "run"
    assert main(["profile", "--no-measure", "--out", str(run), "--", sys.executable, "-c", "print('done')"]) == 0
    first = _answer(capsys.readouterr().out)
    files = {p: p.read_text() for p in run.rglob("*") if p.suffix in (".md", ".csv") or p.name == "report.json"}
    assert main(["report", str(run)]) == 0
    assert _answer(capsys.readouterr().out) == first
    assert list(first) == ["Where", "Why", "Do first"]
    for path, before in files.items():
        assert _undated(path.read_text()) == _undated(before), path


def _answer(shown: str) -> dict[str, str]:
    return dict(re.findall(r"^(Where|Why|Do first): (.*)$", shown, re.MULTILINE))


def _undated(text: str) -> str:
    dated = re.sub(r"\d{4}-\d\d-\d\d(T[0-9:]+\+00:00)?", "DATE", text)  # midnight may lie between the two
    return re.sub(r"\d{8}T\d{6}-[0-9a-f]{12}", "GENERATION", dated)


# -- the registry ------------------------------------------------------------------------------------


def test_the_command_lines_and_the_docs_follow_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, words in (("report", FORMATS), ("export", [f"--{option.name}" for option in EXPORTS])):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        shown = capsys.readouterr().out
        assert all(word in shown for word in words)
    assert all(callable(exporter(option).write) for option in EXPORTS)
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(DOCS.parent / "tools"))
    from mkdocs_hooks import on_page_markdown

    page = on_page_markdown((DOCS / "running.md").read_text())
    assert all(f"- `{name}`: {renderer(name).what}" in page for name in FORMATS)


# A renderer of somebody else: a module anywhere, and one entry in the registry.
_TSV = """
from llm_perf_opt.report.renderers import File, Renderer

def render(view):
    rows = [f"{region.key}\\t{region.instances}\\n" for region in view.regions]
    yield File("report.tsv", "region\\tinstances\\n" + "".join(rows))

RENDERER = Renderer("`report.tsv`: regions and their instances", render)
"""
_REGISTERED = """
import sys
from llm_perf_opt.formats import FORMATS, Format
FORMATS["tsv"] = Format("tsv_of_mine", {".tsv": rb"region\\tinstances\\n"})
from llm_perf_opt.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.process
def test_a_format_is_a_module_and_one_entry_in_the_registry(tmp_path: Path) -> None:
    """Its name in the help, its files written, known as ours when they are replaced, and nobody else's touched."""
    (tmp_path / "tsv_of_mine.py").write_text(_TSV)
    out, given = tmp_path / "out", str(recording("nsys-2025.3.1-h200-decoder-8layers-warm.sqlite"))

    def llm_perf(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _REGISTERED, "report", *words]
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "300"}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert "comma-separated list of json, md, csv, html, tsv (default: all)" in llm_perf("--help").stdout
    refused = llm_perf(given, "--out", str(out), "--format", "tvs")
    assert refused.returncode == 2
    assert "json, md, csv, html, tsv" in refused.stderr
    for _ in range(2):  # the second replaces the first
        done = llm_perf(given, "--out", str(out), "--format", "json,tsv")
        assert done.returncode == 0, done.stderr
        assert "decode" in (out / "report.tsv").read_text()
    assert set(json.loads((out / REPORT_LIST).read_text())["files"]) >= {"report.json", "report.tsv"}
    (out / "report.tsv").write_text("mine\n")
    assert llm_perf(given, "--out", str(out), "--format", "tsv").returncode == 2
    assert (out / "report.tsv").read_text() == "mine\n"
