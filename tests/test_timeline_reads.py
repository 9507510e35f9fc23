"""A timeline is read once a run and passed on as a value: to the plan, to the report it is made from, to the last one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from conftest import RECORDINGS, plain_bytes
from fake_tools import TIMELINE
from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.readers import nsys_sqlite
from llm_perf_opt.readers.marker_ranges import for_report
from llm_perf_opt.readers.ncu_rep import read_ncu_rep
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.report.json_report import as_json

WORK = [sys.executable, "-c", "pass"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that the reader of timelines has read."""
    found: list[Path] = []
    really = nsys_sqlite.read_nsys_sqlite

    def counted(path: Path, *positional: Any, **options: Any) -> Timeline:
        found.append(path)
        return really(path, *positional, **options)

    monkeypatch.setattr(nsys_sqlite, "read_nsys_sqlite", counted)
    return found


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        ["profile", "--no-measure", "--out", "run"],
        ["profile", "--no-measure", "--out", "run", "--no-counters"],
        ["profile", "--no-measure", "--out", "run", "--verify"],
        ["profile", "--no-measure", "--out", "run", "--sample", "first"],
        ["plan", "--out", "run"],
        ["plan", "--timeline", str(TIMELINE)],
        ["report", str(TIMELINE)],
    ],
    ids=lambda command: " ".join(command[0:1] + [word for word in command if word.startswith("--")]),
)
@pytest.mark.usefixtures("json_alone", "tools")
def test_a_command_reads_its_timeline_once(command: list[str], reads: list[Path]) -> None:
    assert main([*command, *(["--", *WORK] if command[0] != "report" else ["--out", "told"])]) == 0
    assert len(reads) == 1, reads


@pytest.mark.process
@pytest.mark.usefixtures("json_alone", "tools")
def test_a_resumed_run_reads_its_timeline_once(reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "ncu-missing-slash")
    assert main(["profile", "--no-measure", "--out", "run", "--", *WORK]) == 5
    monkeypatch.delenv("FAKE_NCU")
    reads.clear()
    assert main(["profile", "--resume", "run"]) == 0
    assert len(reads) == 1


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    file = tmp_path / "run.sqlite"
    file.write_bytes(plain_bytes(RECORDINGS / "nsys-2025.3.1-h200-threads.sqlite.xz"))
    return file


def read(file: Path, **options: bool) -> Timeline:
    found = read_recording(file, **options)
    assert isinstance(found, Timeline)
    return found


@pytest.mark.parametrize("launch_config", [True, False])
def test_a_report_sees_of_a_timeline_what_it_would_have_read(timeline: Path, launch_config: bool) -> None:
    seen = for_report(
        read(timeline, launch_config=True, marker_ranges=True), timeline.name, launch_config=launch_config
    )
    own = read(timeline, launch_config=launch_config)
    assert (seen.kernels.config is None) == (own.kernels.config is None) == (not launch_config)
    assert (seen.kernels.start == own.kernels.start).all()
    assert len(seen.ranges) == len(own.ranges)
    names = [[t.strings[n] for n in t.kernels.name.tolist()] for t in (seen, own)]
    assert names[0] == names[1]


def test_what_a_report_adds_to_a_timeline_stays_with_the_report(timeline: Path) -> None:
    whole = read(timeline, launch_config=True, marker_ranges=True)
    first = for_report(whole, "a", launch_config=True)
    first.diagnostics.append(Diagnosis("OF_MINE", "info", "…"))
    first.environment["mine"] = first.gpu_facts[99] = {}
    second = for_report(whole, "b", launch_config=True)
    assert "OF_MINE" not in [d.code for d in second.diagnostics]
    assert "mine" not in second.environment
    assert 99 not in second.gpu_facts


def test_a_report_of_a_timeline_that_was_read_already_is_the_same(timeline: Path, reads: list[Path]) -> None:
    def told(**options: Any) -> dict[str, object]:
        report = make_report([str(timeline)], ReportOptions(), quiet=True, **options)
        return as_json(attrs.evolve(report, generated_at=""))

    alone, whole = told(), {timeline: read(timeline, launch_config=True, marker_ranges=True)}
    reads.clear()
    assert [told(known=whole), told(known=whole)] == [alone, alone]
    assert reads == []


def test_a_report_of_counters_that_were_read_already_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.ncu-rep"
    file.write_bytes(plain_bytes(RECORDINGS / "ncu-2025.3.1-h200-threads-scope-thread.ncu-rep.xz"))

    def told(**options: Any) -> dict[str, object]:
        report = make_report([str(file)], ReportOptions(), quiet=True, **options)
        return as_json(attrs.evolve(report, generated_at=""))

    alone, known = told(), {file: read_ncu_rep(file, file.name)}
    monkeypatch.setattr("llm_perf_opt.readers.open.read_recording", None)  # nothing is read again
    assert [told(known=known), told(known=known)] == [alone, alone]
