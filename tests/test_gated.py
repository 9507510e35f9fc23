"""Captures that the program itself switches on and off: which ranges, what ncu is told, and what is said of the end.

The timeline is a real one; where stages are annotated, its ranges were moved to the default domain, where annotation
puts its own, and those the annotation counts are of a real model with as many steps.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llm_perf_opt
from fake_tools import TIMELINE, write
from fake_tools import tools as tools
from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject import CaptureWindows, Named
from llm_perf_opt.planning import Plan
from llm_perf_opt.planning import windows as gated
from llm_perf_opt.planning.automatic import make_plan, with_gates
from llm_perf_opt.planning.windows import Opened, seen_inside, unseen
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Action, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.request import ProfileRequest

PREFILL, STEP = ("", "prefill"), ("", "decode_step")


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


def spans(timeline: Timeline, named: Named, turns: Sequence[int]) -> list[tuple[int, int]]:
    """When some instances of a range were open."""
    ranges = timeline.ranges
    names = [(timeline.domains[d], timeline.strings[n]) for d, n in zip(ranges.domain, ranges.name, strict=True)]
    mine = sorted((int(ranges.start[i]), int(ranges.end[i])) for i, n in enumerate(names) if n == named)
    return [mine[turn - 1] for turn in turns]


def kernels_in(timeline: Timeline, windows: Mapping[Named, Sequence[int]]) -> np.ndarray:
    """Kernels launched while a window was open, one by one."""
    times = [span for named, turns in windows.items() for span in spans(timeline, named, turns)]
    inside = [i for i, at in enumerate(timeline.kernels.host_time.tolist()) if any(a <= at < b for a, b in times)]
    return np.array(inside, dtype=np.int64)


def all_opened(timeline: Timeline) -> dict[int, dict[Named, int]]:
    """What a program that opens all its ranges through torch or nvtx would have counted."""
    ranges = timeline.ranges
    names = [(timeline.domains[d], timeline.strings[n]) for d, n in zip(ranges.domain, ranges.name, strict=True)]
    return {timeline.processes[0].pid: dict(Counter(names))}


def gate_around(
    timeline: Timeline, kernels: np.ndarray, opened: Opened, *, stop: bool, exact: bool = False
) -> tuple[CaptureWindows, np.ndarray] | str:
    return gated.gate_around(seen_inside(timeline, kernels, opened), kernels, stop=stop, exact=exact)


@pytest.mark.parametrize("turns", [(1,), (2, 8), (3, 4, 5)])
def test_where_the_program_knows_its_stages_only_they_are_the_windows(annotated: Path, turns: tuple[int, ...]) -> None:
    timeline = recorded(annotated)
    chosen = kernels_in(timeline, {PREFILL: (1,), STEP: turns})
    opened = {timeline.processes[0].pid: {PREFILL: 1, STEP: 8}}
    found = gate_around(timeline, chosen, opened, stop=True)
    assert not isinstance(found, str)
    assert found[0] == CaptureWindows({STEP: turns, PREFILL: (1,)}, stop=True)
    assert np.flatnonzero(found[1]).tolist() == chosen.tolist()


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_wanted_launch_is_in_a_window_and_none_could_be_left_out(data: st.DataObject) -> None:
    """Against the timeline itself: windows hold all wanted launches, each of them some, and none lies in another."""
    timeline = recorded(TIMELINE)
    inside = kernels_in(timeline, {("LLM", "prefill"): (1,), ("LLM", "decode"): (1,)}).tolist()
    chosen = np.array(sorted(data.draw(st.sets(st.sampled_from(inside), min_size=1, max_size=12))), dtype=np.int64)
    found = gate_around(timeline, chosen, all_opened(timeline), stop=False)
    assert not isinstance(found, str)
    gate, held = found
    inside = set(kernels_in(timeline, gate.windows).tolist()) - set(kernels_in(timeline, gate.pauses).tolist())
    assert set(np.flatnonzero(held).tolist()) == inside
    assert held[chosen].all()
    assert held.sum() <= len(chosen) * 60, "a layer has 55 launches: no more than those around each that is wanted"
    each = [span for named, turns in gate.windows.items() for span in spans(timeline, named, turns)]
    times = timeline.kernels.host_time[chosen].tolist()
    assert all(any(a <= t < b for t in times) for a, b in each)
    assert not any(a <= c and d <= b for a, b in each for c, d in each if (a, b) != (c, d))


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exact_windows_hold_what_is_launched_in_the_wanted_ranges_themselves_and_nothing_else(
    data: st.DataObject,
) -> None:
    timeline = recorded(TIMELINE)
    inside = kernels_in(timeline, {("LLM", "prefill"): (1,), ("LLM", "decode"): (1,)}).tolist()
    chosen = np.array(sorted(data.draw(st.sets(st.sampled_from(inside), min_size=1, max_size=12))), dtype=np.int64)
    around = seen_inside(timeline, chosen, all_opened(timeline))
    assert not isinstance(around, str)
    found = gated.gate_around(around, chosen, stop=False, exact=True)
    assert not isinstance(found, str)
    gate, held = found
    assert set(np.flatnonzero(held).tolist()) == set(np.flatnonzero(np.isin(around.tops, around.tops[chosen])).tolist())
    switched = [(span, True) for named, turns in gate.windows.items() for span in spans(timeline, named, turns)]
    switched += [(span, False) for named, turns in gate.pauses.items() for span in spans(timeline, named, turns)]
    for kernel in data.draw(st.lists(st.sampled_from(inside), max_size=20)):
        at = int(timeline.kernels.host_time[kernel])
        # As the program does it: the range that began last, of those that are open, decides.
        open_now = [(span[0], -span[1], on) for span, on in switched if span[0] <= at < span[1]]
        assert held[kernel] == (bool(open_now) and max(open_now)[2])


@pytest.fixture(scope="module")
def waymarked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The timeline of a program that marks its stages, the ranges below being waymarks."""
    file = tmp_path_factory.mktemp("waymarked") / "run.sqlite"
    file.write_bytes(lzma.decompress(TIMELINE.read_bytes()))
    with sqlite3.connect(file) as rows:
        named = "(SELECT value FROM StringIds WHERE id = textId)"
        own = "('prefill', 'decode', 'decode_step')"
        moved = f"UPDATE NVTX_EVENTS SET text = 'llm-perf:' || coalesce(text, {named}), textId = NULL, domainId = 0"
        rows.execute(f"{moved} WHERE eventType = 59 AND coalesce(text, {named}) NOT IN {own}")
    return file


def test_waymarks_are_windows_and_no_regions(waymarked: Path) -> None:
    plan, seen, request = a_plan(waymarked)
    assert seen.main_scope is not None
    assert {r.name for r in seen.main_scope.regions} == {"prefill", "decode", "decode_step"}
    timeline = read_recording(waymarked, launch_config=True, waymarks=True)
    assert isinstance(timeline, Timeline)
    found = with_gates(plan, waymarked, seen, request, all_opened(timeline))
    (gate,) = found.gates
    assert isinstance(gate, CaptureWindows)
    assert ("", "llm-perf:layer5") in gate.pauses | gate.windows


def test_a_few_launches_of_a_layer_open_that_layer_and_not_the_step() -> None:
    timeline = recorded(TIMELINE)
    chosen = kernels_in(timeline, {("LLM", "layer5"): (4,)})
    found = gate_around(timeline, chosen[:2], all_opened(timeline), stop=False)
    assert not isinstance(found, str)
    assert set(found[0].windows) == {("LLM", "layer5")}
    assert found[0].count == 1


def test_a_layer_of_which_nothing_is_wanted_is_a_hole_even_where_its_launches_are_in_ranges_below() -> None:
    """Half of a step's layers are wanted, and something outside of them, so that the step is the window."""
    timeline = recorded(TIMELINE)
    in_step = kernels_in(timeline, {("LLM", "decode_step"): (3,)})
    names = [("LLM", f"layer{i}") for i in range(8)]
    in_layers = {name: kernels_in(timeline, {name: (4,)}) for name in names}  # the first time was prefill
    outside = sorted(set(in_step.tolist()) - {k for kernels in in_layers.values() for k in kernels.tolist()})
    wanted = [*outside, *(int(k) for name in names[:4] for k in in_layers[name])]
    found = gate_around(timeline, np.array(sorted(wanted), dtype=np.int64), all_opened(timeline), stop=False)
    assert not isinstance(found, str)
    assert found[0].windows == {("LLM", "decode_step"): (3,)}
    assert found[0].pauses == dict.fromkeys(names[4:], (4,))
    assert np.flatnonzero(found[1]).tolist() == sorted(wanted)


def test_a_process_is_known_by_its_number_or_because_there_is_no_other(annotated: Path) -> None:
    timeline = recorded(annotated)
    chosen = kernels_in(timeline, {STEP: (1,)})
    for pid in (timeline.processes[0].pid, 1):  # in a container it may have another
        assert not isinstance(gate_around(timeline, chosen, {pid: {STEP: 8}}, stop=False), str)
    two = {1: {STEP: 8}, 2: {STEP: 8}}
    assert gate_around(timeline, chosen, two, stop=False) == "the program was not seen to open any range"


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        ({}, "not seen to open any range"),
        ({PREFILL: 1, STEP: 9}, "in no range that the program was seen to open"),
        ({PREFILL: 2, STEP: 9}, "in a way that cannot be seen"),
        ({("LLM", "decode_step"): 8}, "in a way that cannot be seen"),
    ],
)
def test_where_the_ranges_are_not_those_of_the_timeline_nothing_is_gated(
    annotated: Path, opened: dict[Named, int], why: str
) -> None:
    timeline = recorded(annotated)
    found = gate_around(timeline, kernels_in(timeline, {STEP: (1,)}), {1: opened}, stop=False)
    assert isinstance(found, str)
    assert why in found


def a_plan(file: Path, launches: int = 3) -> tuple[Plan, NCUProfileRegionReport, ProfileRequest]:
    seen = make_report([str(file)], ReportOptions(verdicts=False), quiet=True)
    request = ProfileRequest(command=["program"])
    request = attrs.evolve(request, counters=attrs.evolve(request.counters, launches=launches))
    plan = make_plan(file, seen, request, {})
    assert plan is not None
    return plan, seen, request


def test_a_plan_is_gated_to_ranges_that_hold_what_its_launches_tell() -> None:
    """Every step has a concatenation of its own (the cache grows): the first stands in for the others."""
    plan, seen, request = a_plan(TIMELINE)
    timeline = recorded(TIMELINE)
    gated = with_gates(plan, TIMELINE, seen, request, all_opened(timeline))
    (gate,) = gated.gates
    assert isinstance(gate, CaptureWindows)
    assert gate.windows[("LLM", "prefill")] == (1,)
    assert ("LLM", "layer5") in gate.pauses
    profiled = set(kernels_in(timeline, gate.windows).tolist()) - set(kernels_in(timeline, gate.pauses).tolist())
    assert len(profiled) < 0.1 * plan.launches
    assert gated.plan.results < plan.results
    assert gated.plan.seconds < plan.seconds
    left_out = [s for s in gated.plan.signatures if not s.planned]
    assert left_out
    assert {s.reason for s in left_out} == {
        "another stands in for it: the same kernel on a grid of nearly the same size"
    }
    assert {s.signature.name for s in left_out} <= {s.signature.name for s in gated.plan.signatures if s.planned}
    assert {s.signature for s in gated.plan.signatures} == {s.signature for s in plan.signatures}


def test_what_cannot_be_gated_stays_as_planned() -> None:
    plan, seen, request = a_plan(TIMELINE)
    gated = with_gates(plan, TIMELINE, seen, request, {})
    assert gated.gates == ["the program was not seen to open any range"]
    assert gated.plan == plan


def test_windows_without_results_are_named() -> None:
    here = Action("kernel", "k", push_pop={"LLM": ["prefill", "layer0"]})
    assert unseen(CaptureWindows({("LLM", "prefill"): (1,), ("LLM", "decode_step"): (1,)}), [here]) == ["decode_step"]


# -- the command -----------------------------------------------------------------------------------

STUBS = repr(str(Path(__file__).with_name("stubs")))
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


def opening(ranges: dict[Named, int]) -> str:
    """A program that opens as many ranges of each name; it has no model, so the stub of torch will do."""
    start = f"import sys\nsys.path.insert(0, {STUBS})\nimport torch\n"
    loop = f"import nvtx\nfor (domain, name), count in {ranges!r}.items():\n    for _ in range(count):\n"
    return start + loop + "        nvtx.push_range(name, domain=domain); nvtx.pop_range(domain=domain)\n"


def profile(*options: str, answer: str) -> int:
    Path("program.py").write_text(PROGRAM.replace("ANSWER", answer), encoding="utf-8")
    work = [sys.executable, "program.py"]
    return main(["profile", "--out", "run", "--annotate", "stages", "--sample", "first", *options, "--", *work])


def commands() -> list[str]:
    lines = Path("run/ncu/cmd.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if " --import " not in line and not line.startswith("#")]


@pytest.fixture
def profiler(tools: Path, annotated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tools, timeline=annotated)
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    return tools / "profiler"


@needs_torch
def test_steps_of_two_stages_in_one_run_that_ends_when_both_are_in(
    profiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(answer="0") == 0
    (command,) = commands()
    assert "--profile-from-start off" in command
    assert "--range-filter" not in command
    assert "--nvtx-include prefill/ --nvtx-include decode_step/" in command
    assert json.loads(Path("run/ncu/run-windows.json").read_text()) == {
        "windows": [["", "prefill", [1]], ["", "decode_step", [1]]],
        "pauses": [],
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


def test_a_program_with_ranges_of_its_own_is_gated_without_being_asked_for(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program opens as many ranges of each name as the timeline has, in another order."""
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    (ranges,) = all_opened(recorded(TIMELINE)).values()
    Path("program.py").write_text(opening(ranges), encoding="utf-8")
    assert main(["profile", "--out", "run", "--", sys.executable, "program.py"]) == 0
    (command,) = commands()
    assert "--profile-from-start off" in command
    assert "--launch-count 3" in command
    windows = json.loads(Path("run/ncu/run-windows.json").read_text())["windows"]
    assert ["LLM", "prefill", [1]] in windows
    count = sum(len(numbers) for _, _, numbers in windows)
    assert (tools / "profiler").read_text().split() == ["cudaProfilerStart", "cudaProfilerStop"] * count
    assert f"ncu is switched on from inside the program, in {count} ranges" in capsys.readouterr().err
    report = llm_perf_opt.load("run")
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert report.coverage is not None
    assert report.coverage.signatures_matched == report.coverage.signatures

    assert main(["profile", "--out", "ungated", "--no-windows", "--", sys.executable, "program.py"]) == 0
    assert "--profile-from-start" not in Path("ungated/ncu/cmd.txt").read_text()


@needs_torch
def test_a_gate_that_does_not_open_is_told_and_ncu_s_own_filters_do_the_work(profiler: Path) -> None:
    assert profile(answer="1 / 0") == 0
    first, *others = commands()
    assert "--profile-from-start off" in first
    assert [("--range-filter ::1" in c, "--profile-from-start" in c) for c in others] == [(False, False), (True, False)]
    report = llm_perf_opt.load("run")
    (told,) = [d for d in report.diagnostics if d.code == "WINDOWS_DID_NOT_OPEN"]
    assert "ZeroDivisionError" in told.message
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert report.coverage is not None


# A package of the program's own that cannot be changed.
UNCHANGEABLE = """
class Fixed(type):
    def __setattr__(self, name, value): raise TypeError("it is as it is")
class annotate(metaclass=Fixed):
    def __init__(self, message): pass
    def __enter__(self): pass
    def __exit__(self, *error): pass
    def __call__(self, function): return function
def push_range(message): pass
def pop_range(): pass
"""


@pytest.mark.parametrize("words", [[], ["--annotate", "stages"]])
def test_ranges_that_cannot_be_counted_are_not_told_as_a_program_that_is_not_annotated(
    words: list[str], tools: Path
) -> None:
    Path("nvtx").mkdir()
    Path("nvtx/__init__.py").write_text("from nvtx.nvtx import *\nfrom nvtx import nvtx\n")
    Path("nvtx/nvtx.py").write_text(UNCHANGEABLE)
    Path("program.py").write_text("import nvtx\nwith nvtx.annotate('a'): pass\n")
    assert main(["profile", "--out", "run", *words, "--", sys.executable, "program.py"]) == 0
    diagnostics = llm_perf_opt.load("run").diagnostics
    (told,) = [d for d in diagnostics if d.code == "RANGES_NOT_COUNTED"]
    assert "it is as it is" in told.message
    assert told.severity == "info"
    # Who asked for annotation hears of the other reason too: there is no torch.
    messages = [d.message for d in diagnostics if d.code == "NOT_ANNOTATED"]
    assert ["No Python process" in message for message in messages] == [True] * bool(words)


def test_a_gate_that_gives_too_little_is_given_up_and_counts_nothing_twice(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for ncu gives results of other windows than were asked for, and fewer than planned."""
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    monkeypatch.setattr("llm_perf_opt.capture.steps.counters.unseen", lambda gate, results: ["decode_step"])
    monkeypatch.setattr("llm_perf_opt.capture.steps.counters._FEW_RESULTS", 10)
    (ranges,) = all_opened(recorded(TIMELINE)).values()
    Path("program.py").write_text(opening(ranges), encoding="utf-8")
    assert main(["profile", "--out", "run", "--", sys.executable, "program.py"]) == 0
    first, second = commands()
    assert ("--profile-from-start" in first, "--profile-from-start" in second) == (True, False)
    assert sorted(p.name for p in Path("run/ncu").glob("*.ncu-rep")) == ["run-filtered.ncu-rep"]
    steps = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))["steps"]
    assert [(s["capture"], s["status"]) for s in steps if s["name"] == "ncu"] == [
        ("run", "failed"),
        ("run-filtered", "captured"),
    ]
    report = llm_perf_opt.load("run")
    (told,) = [d for d in report.diagnostics if d.code == "WINDOWS_DID_NOT_OPEN"]
    assert "gave 248 of" in told.message
    assert not [d for d in report.diagnostics if d.severity == "error" or d.code == "SAME_RECORDING"]


def test_what_needs_two_runs_of_ncu_s_own_filters_is_had_in_one_with_windows() -> None:
    """The first launches of a kernel are those of the prefill; its others need a capture of their own, or a window."""
    plan, seen, request = a_plan(TIMELINE)
    first = plan.captures[0]
    region = next(r for r in first.filter.regions if r.key.endswith("decode"))
    later = attrs.evolve(first, name="run-2", filter=attrs.evolve(first.filter, regions=(region,)))
    two = attrs.evolve(plan, captures=[attrs.evolve(first, name="run-1"), later])
    found = with_gates(two, TIMELINE, seen, request, all_opened(recorded(TIMELINE)))
    assert [capture.name for capture in found.plan.captures] == ["run"]
    (gate,) = found.gates
    assert isinstance(gate, CaptureWindows)
    assert found.plan.error is not None
    assert found.plan.error <= max(plan.error or 0.0, 0.05)
    without = with_gates(two, TIMELINE, seen, request, {})
    assert [capture.name for capture in without.plan.captures] == ["run-1", "run-2"], "no window, no shortcut"


def test_windows_that_leave_kernels_out_do_not_stand_for_several_captures() -> None:
    """Only the ranges of one layer are known inside the program: the rest of the program has no window."""
    plan, seen, request = a_plan(TIMELINE)
    first = plan.captures[0]
    two = attrs.evolve(plan, captures=[attrs.evolve(first, name="run-1"), attrs.evolve(first, name="run-2")], error=0.2)
    (counted,) = all_opened(recorded(TIMELINE)).values()
    known = {name: count for name, count in counted.items() if name[1] == "layer5"}
    found = with_gates(two, TIMELINE, seen, request, {recorded(TIMELINE).processes[0].pid: known})
    assert [capture.name for capture in found.plan.captures] == ["run-1", "run-2"]


@pytest.mark.parametrize("launches", [1, 16, 17, 100])
def test_as_many_launches_as_are_asked_for_are_planned(launches: int) -> None:
    plan, seen, request = a_plan(TIMELINE, launches)
    assert plan.captures[0].filter.launch_count == launches
    found = with_gates(plan, TIMELINE, seen, request, all_opened(recorded(TIMELINE)))
    assert found.plan.captures[0].filter.launch_count in range(launches, max(launches, 16) + 1)
    assert found.plan.coverage == pytest.approx(1)


def test_a_budget_holds_for_windows_too() -> None:
    plan, seen, request = a_plan(TIMELINE)
    tight = attrs.evolve(plan, budget_s=plan.seconds)
    found = with_gates(tight, TIMELINE, seen, request, all_opened(recorded(TIMELINE)))
    assert found.plan.seconds <= plan.seconds


def test_the_thread_whose_ranges_hold_the_launches_tells_when_to_switch() -> None:
    """Another thread opens more ranges, and launches nothing."""
    timeline = recorded(TIMELINE)
    ranges, count = timeline.ranges, 5_000
    added = {
        "start": np.full(count, int(ranges.start.min()) - 10), "end": np.full(count, int(ranges.start.min()) - 5),
        "process": np.zeros(count, dtype=np.int32), "thread": np.full(count, len(timeline.threads)),
        "domain": np.zeros(count, dtype=np.int32), "name": np.full(count, ranges.name[0]),
        "start_end": np.zeros(count, dtype=np.bool_),
    }  # fmt: skip
    more = {name: np.concatenate([getattr(ranges, name), column]) for name, column in added.items()}
    busy = attrs.evolve(timeline, ranges=attrs.evolve(ranges, **more), threads=[*timeline.threads, 0])
    chosen = kernels_in(timeline, {("LLM", "layer5"): (4,)})
    assert not isinstance(gate_around(busy, chosen, all_opened(busy), stop=False), str)
