"""Captures that the program itself switches on and off: which stages, what ncu is told, and what is said of the end.

The timeline is a real one whose ranges were moved to the default domain, where annotation puts its own; the stages
the annotation counts are those of a real model with as many steps.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import llm_perf_opt
from fake_tools import TIMELINE, write
from fake_tools import tools as tools
from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.annotate import Gate
from llm_perf_opt.cli.main import main
from llm_perf_opt.pipeline.gated import gate_around
from llm_perf_opt.pipeline.planned import gates, make_plan
from llm_perf_opt.pipeline.reporting import make_report
from llm_perf_opt.pipeline.request import AnnotateRequest, CounterRequest, ProfileRequest
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Timeline

STAGES = {"prefill": 1, "decode_step": 8}


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The timeline of a program that marks nothing itself."""
    file = tmp_path_factory.mktemp("annotated") / "run.sqlite"
    file.write_bytes(lzma.decompress(TIMELINE.read_bytes()))
    with sqlite3.connect(file) as rows:
        rows.execute("UPDATE NVTX_EVENTS SET domainId = 0")
        rows.execute("DELETE FROM NVTX_EVENTS WHERE eventType = 75")
    return file


@lru_cache
def recorded(file: Path) -> Timeline:
    found = read_recording(file, launch_config=True)
    assert isinstance(found, Timeline)
    return found


def kernels_in(timeline: Timeline, name: str, turns: tuple[int, ...]) -> np.ndarray:
    """Kernels launched in some instances of a range."""
    ranges = timeline.ranges
    mine = sorted(i for i, n in enumerate(ranges.name.tolist()) if timeline.strings[n] == name)
    spans = [(int(ranges.start[mine[t - 1]]), int(ranges.end[mine[t - 1]])) for t in turns]
    inside = [i for i, at in enumerate(timeline.kernels.host_time.tolist()) if any(a <= at < b for a, b in spans)]
    return np.array(inside, dtype=np.int64)


@pytest.mark.parametrize("turns", [(1,), (2, 8), (3, 4, 5)])
def test_the_windows_are_the_innermost_stages_around_the_launches(annotated: Path, turns: tuple[int, ...]) -> None:
    timeline = recorded(annotated)
    chosen = np.append(kernels_in(timeline, "prefill", (1,)), kernels_in(timeline, "decode_step", turns))
    gate = gate_around(timeline, chosen, STAGES, stop=True)
    assert gate == Gate({"decode_step": turns, "prefill": (1,)}, stop=True)


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        ({}, "no stage was annotated"),
        ({"prefill": 1, "decode_step": 9}, "has 8 ranges 'decode_step', and the annotation opened 9"),
        ({"prefill": 1}, "in no stage"),
    ],
)
def test_where_the_stages_are_not_those_of_the_timeline_nothing_is_gated(
    annotated: Path, stages: dict[str, int], why: str
) -> None:
    timeline = recorded(annotated)
    found = gate_around(timeline, kernels_in(timeline, "decode_step", (1,)), stages, stop=False)
    assert isinstance(found, str)
    assert why in found


def test_ranges_of_the_program_s_own_domain_are_not_taken_for_stages() -> None:
    timeline = read_recording(TIMELINE, launch_config=True)
    assert isinstance(timeline, Timeline)
    found = gate_around(timeline, kernels_in(timeline, "decode_step", (1,)), STAGES, stop=False)
    assert found == "the timeline has 0 ranges 'prefill', and the annotation opened 1"


def test_a_plan_is_gated_to_the_stages_that_hold_its_launches(annotated: Path) -> None:
    """Every step has a kernel of its own here (the cache grows), so all of them are needed; others are not."""
    seen = make_report([str(annotated)], ReportOptions(include=["prefill", "decode*"]), quiet=True)
    request = ProfileRequest(
        command=["program"],
        counters=CounterRequest(stop_when_done=True),
        annotate=AnnotateRequest(mode="stages"),
        report=ReportOptions(include=["prefill", "decode*"]),
    )
    plan = make_plan(annotated, seen, request, {})
    assert plan is not None
    assert gates(annotated, seen, request, plan.captures, STAGES) == [
        Gate({"decode_step": (1, 2, 3, 4, 5, 6, 7, 8), "prefill": (1,)}, stop=True)
    ]


# -- the command -----------------------------------------------------------------------------------

PROGRAM = """
import os, sys, torch

class Runtime:
    def cudaProfilerStart(self): return say(ANSWER, "cudaProfilerStart")
    def cudaProfilerStop(self): return say(ANSWER, "cudaProfilerStop")

def say(answer, word):
    with open(os.environ["FAKE_PROFILER"], "a") as file: file.write(word + "\\n")
    return answer

torch.cuda.cudart = lambda: Runtime()
torch.set_grad_enabled(False)
model = torch.nn.Sequential(torch.nn.Embedding(8, 2)).eval()
try:
    for length in (5, *[1] * 8):
        model(torch.zeros(1, length, dtype=torch.long))
    print("all steps")
except SystemExit:
    sys.exit(3)  # a program may think that being ended is a failure
"""
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install -e '.[torch]'")


def profile(*options: str, answer: str) -> int:
    Path("program.py").write_text(PROGRAM.replace("ANSWER", answer), encoding="utf-8")
    work = [sys.executable, "program.py"]
    return main(["profile", "--out", "run", "--annotate", "stages", "--sample", "first", *options, "--", *work])


def commands() -> list[str]:
    return [
        line for line in Path("run/ncu/cmd.txt").read_text(encoding="utf-8").splitlines() if " --import " not in line
    ]


@pytest.fixture
def profiler(tools: Path, annotated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tools, timeline=annotated)
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    return tools / "profiler"


@needs_torch
def test_steps_of_two_stages_in_one_run_that_ends_when_both_are_in(
    profiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile("--stop-when-done", answer="0") == 0
    (command,) = commands()
    assert "--profile-from-start off" in command
    assert "--range-filter" not in command
    assert "--nvtx-include prefill/ --nvtx-include decode_step/" in command
    assert json.loads(Path("run/ncu/run-gate.json").read_text()) == {
        "windows": {"prefill": [1], "decode_step": [1]},
        "stop": True,
    }
    assert profiler.read_text().split() == ["cudaProfilerStart", "cudaProfilerStop"] * 2
    assert "all steps" in Path("run/workload.log").read_text()  # under nsys
    assert "all steps" not in Path("run/ncu/run-workload.log").read_text()
    report = llm_perf_opt.load("run")
    (told,) = [d for d in report.diagnostics if d.code == "ENDED_ON_PURPOSE"]
    assert "before decode_step 2" in told.message
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert "ended on purpose" in capsys.readouterr().err
    steps = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["steps"]
    assert [(s["status"], s["exit_code"]) for s in steps if s["name"] == "ncu"] == [("captured", 3)]


@needs_torch
def test_a_gate_that_does_not_open_is_told_and_ncu_s_own_filters_do_the_work(profiler: Path) -> None:
    assert profile(answer="1 / 0") == 0
    first, *others = commands()
    assert "--profile-from-start off" in first
    assert [("--range-filter ::1" in c, "--profile-from-start" in c) for c in others] == [(False, False), (True, False)]
    report = llm_perf_opt.load("run")
    (told,) = [d for d in report.diagnostics if d.code == "GATE_DID_NOT_OPEN"]
    assert "ZeroDivisionError" in told.message
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert report.coverage is not None


def test_without_annotation_nothing_knows_when_to_stop(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--stop-when-done", "--", sys.executable, "-c", "pass"]) == 2
    assert "--annotate stages" in capsys.readouterr().err
