"""The program under ncu begins while nsys writes: once where the guess was right, again where it was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import llm_perf_opt
from fake_tools import TIMELINE
from fake_tools import tools as tools
from llm_perf_opt.cli.main import main
from llm_perf_opt.planning import likely
from test_background import GPU, counting
from test_supervise import alive
from test_window_samples import all_opened, commands, opening, recorded

NOTES_STARTS = """
import os
with open("starts", "a") as file: file.write(os.environ.get("LLM_PERF_WINDOWS_WAIT", "0"))
"""
PROFILE = ["profile", "--no-measure", "--out", "run", "--", sys.executable, "program.py"]
pytestmark = pytest.mark.process


@pytest.fixture
def machine(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose nsys takes seconds to write; the program opens as many ranges of each name as its timeline has."""
    counting(tools, "nvidia-smi", GPU)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    monkeypatch.setenv("FAKE_PACE_NSYS", "0.05")
    (ranges,) = all_opened(recorded(TIMELINE)).values()
    Path("program.py").write_text(NOTES_STARTS + opening(ranges), encoding="utf-8")
    return tools


def test_what_began_early_is_what_was_planned(machine: Path) -> None:
    assert main(PROFILE) == 0
    assert Path("starts").read_text() == "01", "once under nsys, and once under ncu, before the plan was there"
    windows = json.loads(Path("run/ncu/run-windows.json").read_text())["windows"]
    count = sum(len(numbers) for _, _, numbers in windows)
    assert (machine / "profiler").read_text().split() == ["cudaProfilerStart", "cudaProfilerStop"] * count
    (command,) = commands()
    assert "LLM_PERF_WINDOWS_WAIT" not in command, "whoever repeats it has the windows already"
    report = llm_perf_opt.load("run")
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert report.coverage is not None
    assert report.coverage.signatures_matched == report.coverage.signatures


def test_a_wrong_guess_is_ended_and_the_plan_carried_out(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likely, "_TYPES", ("fp64_tensor",))
    assert main(PROFILE) == 0
    assert Path("starts").read_text() in ("010", "00"), "the wrong one may have been ended before it began"
    report = llm_perf_opt.load("run")
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert report.coverage is not None
    assert report.coverage.signatures_matched == report.coverage.signatures


@pytest.mark.parametrize("options", [["--no-windows"], ["--no-counters"], ["--replay-mode", "range"]])
def test_nothing_begins_early_where_the_plan_will_be_another(machine: Path, options: list[str]) -> None:
    main([PROFILE[0], *options, *PROFILE[1:]])
    assert set(Path("starts").read_text()) == {"0"}


def test_an_interrupt_ends_what_waits(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PACE_NSYS", "1")
    entry = "from llm_perf_opt.cli.entry import entry; entry()"
    program = str(Path("program.py").resolve())
    run = subprocess.Popen([sys.executable, "-c", entry, *PROFILE[:-1], program], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not Path("starts").exists() or Path("starts").read_text() != "01":
        assert run.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    assert not alive(program)
    assert json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["state"] == "interrupted"
