"""Captures that the program itself switches on and off: which windows, which samples, and what is said of the end.

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
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import llm_perf_opt
from conftest import examples, recording
from fake_tools import TIMELINE
from fake_tools import tools as tools
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject import CaptureWindows, Named, RangesSeen
from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.planning import CounterPlan, decide, facts_of
from llm_perf_opt.planning import windows as planned_windows
from llm_perf_opt.planning.candidates import Ask, Fit, Search
from llm_perf_opt.planning.costs import default_costs
from llm_perf_opt.planning.decision import launches_of
from llm_perf_opt.planning.plan import SampleTable
from llm_perf_opt.planning.samples import choose_windows
from llm_perf_opt.planning.windows import known_ranges, unseen
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Action, Timeline
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.request import CounterRequest, ProfileRequest

PREFILL, STEP = ("", "prefill"), ("", "decode_step")


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The timeline of a program whose ranges are in the default domain."""
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


def windows_around(
    timeline: Timeline, kernels: np.ndarray, ranges_seen: RangesSeen, *, stop: bool
) -> tuple[CaptureWindows, np.ndarray] | str:
    known = known_ranges(timeline, kernels, ranges_seen)
    return known if isinstance(known, str) else planned_windows.windows_around(known, kernels, stop=stop)


@pytest.mark.parametrize("turns", [(1,), (2, 8), (3, 4, 5)])
def test_where_the_program_knows_its_stages_only_they_are_the_windows(annotated: Path, turns: tuple[int, ...]) -> None:
    timeline = recorded(annotated)
    chosen = kernels_in(timeline, {PREFILL: (1,), STEP: turns})
    ranges_seen = {timeline.processes[0].pid: {PREFILL: 1, STEP: 8}}
    found = windows_around(timeline, chosen, ranges_seen, stop=True)
    assert not isinstance(found, str)
    assert found[0] == CaptureWindows({STEP: turns, PREFILL: (1,)}, stop=True)
    assert np.flatnonzero(found[1]).tolist() == chosen.tolist()


@pytest.mark.slow
@given(data=st.data())
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_wanted_launch_is_in_a_window_and_none_could_be_left_out(data: st.DataObject) -> None:
    """Against the timeline itself: windows hold all wanted launches, each of them some, and none lies in another."""
    timeline = recorded(TIMELINE)
    inside = kernels_in(timeline, {("LLM", "prefill"): (1,), ("LLM", "decode"): (1,)}).tolist()
    chosen = np.array(sorted(data.draw(st.sets(st.sampled_from(inside), min_size=1, max_size=12))), dtype=np.int64)
    found = windows_around(timeline, chosen, all_opened(timeline), stop=False)
    assert not isinstance(found, str)
    windows, held = found
    inside = set(kernels_in(timeline, windows.windows).tolist()) - set(kernels_in(timeline, windows.pauses).tolist())
    assert set(np.flatnonzero(held).tolist()) == inside
    assert held[chosen].all()
    assert held.sum() <= len(chosen) * 60, "a layer has 55 launches: no more than those around each that is wanted"
    each = [span for named, turns in windows.windows.items() for span in spans(timeline, named, turns)]
    times = timeline.kernels.host_time[chosen].tolist()
    assert all(any(a <= t < b for t in times) for a, b in each)
    assert not any(a <= c and d <= b for a, b in each for c, d in each if (a, b) != (c, d))


@given(data=st.data())
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exact_windows_hold_what_is_launched_in_the_wanted_ranges_themselves_and_nothing_else(
    data: st.DataObject,
) -> None:
    timeline = recorded(TIMELINE)
    inside = kernels_in(timeline, {("LLM", "prefill"): (1,), ("LLM", "decode"): (1,)}).tolist()
    chosen = np.array(sorted(data.draw(st.sets(st.sampled_from(inside), min_size=1, max_size=12))), dtype=np.int64)
    around = known_ranges(timeline, chosen, all_opened(timeline))
    assert not isinstance(around, str)
    found = planned_windows.windows_around(around, chosen, stop=False, exact=True)
    assert not isinstance(found, str)
    windows, held = found
    assert set(np.flatnonzero(held).tolist()) == set(np.flatnonzero(np.isin(around.tops, around.tops[chosen])).tolist())
    switched = [(span, True) for named, turns in windows.windows.items() for span in spans(timeline, named, turns)]
    switched += [(span, False) for named, turns in windows.pauses.items() for span in spans(timeline, named, turns)]
    for kernel in data.draw(st.lists(st.sampled_from(inside), max_size=20)):
        at = int(timeline.kernels.host_time[kernel])
        # As the program does it: the range that began last, of those that are open, decides.
        open_now = [(span[0], -span[1], on) for span, on in switched if span[0] <= at < span[1]]
        assert held[kernel] == (bool(open_now) and max(open_now)[2])


@pytest.fixture(scope="module")
def with_markers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The timeline of a program that marks its stages, the ranges below being marker ranges."""
    file = tmp_path_factory.mktemp("with_markers") / "run.sqlite"
    file.write_bytes(lzma.decompress(TIMELINE.read_bytes()))
    with sqlite3.connect(file) as rows:
        named = "(SELECT value FROM StringIds WHERE id = textId)"
        own = "('prefill', 'decode', 'decode_step')"
        moved = f"UPDATE NVTX_EVENTS SET text = 'llm-perf:' || coalesce(text, {named}), textId = NULL, domainId = 0"
        rows.execute(f"{moved} WHERE eventType = 59 AND coalesce(text, {named}) NOT IN {own}")
    return file


def test_marker_ranges_are_windows_and_no_regions(with_markers: Path) -> None:
    scope = report_of(with_markers).main_scope
    assert scope is not None
    assert {r.name for r in scope.regions} == {"prefill", "decode", "decode_step"}
    (capture,) = decided(with_markers).captures
    assert capture.windows is not None
    assert ("", "llm-perf:layer5") in capture.windows.pauses | capture.windows.windows


def test_a_few_launches_of_a_layer_open_that_layer_and_not_the_step() -> None:
    timeline = recorded(TIMELINE)
    chosen = kernels_in(timeline, {("LLM", "layer5"): (4,)})
    found = windows_around(timeline, chosen[:2], all_opened(timeline), stop=False)
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
    found = windows_around(timeline, np.array(sorted(wanted), dtype=np.int64), all_opened(timeline), stop=False)
    assert not isinstance(found, str)
    assert found[0].windows == {("LLM", "decode_step"): (3,)}
    assert found[0].pauses == dict.fromkeys(names[4:], (4,))
    assert np.flatnonzero(found[1]).tolist() == sorted(wanted)


def test_a_process_is_known_by_its_number_or_because_there_is_no_other(annotated: Path) -> None:
    timeline = recorded(annotated)
    chosen = kernels_in(timeline, {STEP: (1,)})
    for pid in (timeline.processes[0].pid, 1):  # in a container it may have another
        assert not isinstance(windows_around(timeline, chosen, {pid: {STEP: 8}}, stop=False), str)
    two = {1: {STEP: 8}, 2: {STEP: 8}}
    assert windows_around(timeline, chosen, two, stop=False) == "the program was not seen to open any range"


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        ({}, "not seen to open any range"),
        ({PREFILL: 1, STEP: 9}, "in no range that the program was seen to open"),
        ({PREFILL: 2, STEP: 9}, "in a way that cannot be seen"),
        ({("LLM", "decode_step"): 8}, "in a way that cannot be seen"),
    ],
)
def test_where_the_ranges_are_not_those_of_the_timeline_there_are_no_windows(
    annotated: Path, opened: dict[Named, int], why: str
) -> None:
    timeline = recorded(annotated)
    found = windows_around(timeline, kernels_in(timeline, {STEP: (1,)}), {1: opened}, stop=False)
    assert isinstance(found, str)
    assert why in found


@lru_cache
def report_of(file: Path) -> NCUProfileRegionReport:
    return make_report([str(file)], ReportOptions(verdicts=False), quiet=True)


def marked(file: Path) -> Timeline:
    found = read_recording(file, launch_config=True, marker_ranges=True)
    assert isinstance(found, Timeline)
    return found


def decided(file: Path, ranges_seen: RangesSeen | None = None, **counters: int | float | bool) -> CounterPlan:
    """The plan for a timeline whose program opened all its ranges where it could be seen, unless others are given."""
    timeline = marked(file)
    seen = all_opened(timeline) if ranges_seen is None else ranges_seen
    asked = ProfileRequest(command=["program"], counters=CounterRequest(**counters))  # type: ignore[arg-type]
    return decide(asked, report_of(file), timeline, facts_of({}), seen)


def table(plan: CounterPlan) -> SampleTable:
    assert plan.table is not None
    return plan.table


def test_windows_hold_what_the_chosen_launches_tell() -> None:
    """Every step has a concatenation of its own (the cache grows): the first stands in for the others."""
    plan, found = decided(TIMELINE, {}), decided(TIMELINE)
    timeline = recorded(TIMELINE)
    (capture,) = found.captures
    windows = capture.windows
    assert windows is not None
    assert windows.windows[("LLM", "prefill")] == (1,)
    assert ("LLM", "layer5") in windows.pauses
    profiled = set(kernels_in(timeline, windows.windows).tolist()) - set(kernels_in(timeline, windows.pauses).tolist())
    assert len(profiled) < 0.1 * table(plan).launches
    assert found.results < plan.results
    assert found.seconds < plan.seconds
    left_out = [s for s in table(found).signatures if not s.planned]
    assert left_out
    assert {s.reason for s in left_out} == {
        "another stands in for it: the same kernel on a grid of nearly the same size"
    }
    assert {s.signature.name for s in left_out} <= {s.signature.name for s in table(found).signatures if s.planned}
    assert {s.signature for s in table(found).signatures} == {s.signature for s in table(plan).signatures}
    assert capture.alternatives == (attrs.evolve(plan.captures[0], no_windows=""),)
    assert "--profile-from-start" in capture.argv(["program"])


@pytest.mark.parametrize(("ranges_seen", "windows"), [({}, True), (None, False)])
def test_without_windows_the_plan_is_that_of_ncu_s_own_filters(ranges_seen: RangesSeen | None, windows: bool) -> None:
    plan = decided(TIMELINE, ranges_seen, windows=windows)
    (capture,) = plan.captures
    assert capture.windows is None
    assert capture.no_windows == ("the program was not seen to open any range" if windows else "")
    assert (plan.results, all(s.planned for s in table(plan).signatures)) == (248, True)


def test_the_program_ends_with_the_last_sample_and_that_is_known_beforehand() -> None:
    (early,), (whole,) = decided(TIMELINE).captures, decided(TIMELINE, run_to_end=True).captures
    assert early.program_s is not None
    assert 0 < early.program_s < table(decided(TIMELINE)).program_s
    assert whole.program_s is None


def test_the_samples_of_a_deep_decoder() -> None:
    """Of 36 layers and 8 steps, one layer and one step stand for the others."""
    plan = decided(recording("nsys-*-decoder-36layers.sqlite"))
    assert (plan.results, table(plan).launches) == (
        179,
        35_815,
    )  # 167 where the bytes were sampled for the whole GPU, too


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
    return main(
        ["profile", "--no-measure", "--out", "run", "--annotate", "stages", "--sample", "first", *options, "--", *work]
    )


def commands() -> list[str]:
    lines = Path("run/ncu/cmd.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if " --import " not in line and not line.startswith("#")]


@pytest.fixture
def profiler(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recording has its stages in domain LLM, as the annotation opens them."""
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    return tools / "profiler"


@pytest.mark.process
@needs_torch
def test_steps_of_two_stages_in_one_run_that_ends_when_both_are_in(
    profiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(answer="0") == 0
    (command,) = commands()
    assert "--profile-from-start off" in command
    assert "--range-filter" not in command
    assert "--nvtx-include LLM@prefill/ --nvtx-include LLM@decode_step/" in command
    assert json.loads(Path("run/ncu/run-windows.json").read_text()) == {
        "windows": [["LLM", "prefill", [1]], ["LLM", "decode_step", [1]]],
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


@pytest.mark.process
def test_a_program_with_ranges_of_its_own_has_windows_without_being_asked_for(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program opens as many ranges of each name as the timeline has, in another order."""
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    (ranges,) = all_opened(recorded(TIMELINE)).values()
    Path("program.py").write_text(opening(ranges), encoding="utf-8")
    assert main(["profile", "--no-measure", "--out", "run", "--", sys.executable, "program.py"]) == 0
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

    assert (
        main(["profile", "--no-measure", "--out", "no-windows", "--no-windows", "--", sys.executable, "program.py"])
        == 0
    )
    assert "--profile-from-start" not in Path("no-windows/ncu/cmd.txt").read_text()


@pytest.mark.process
@needs_torch
def test_windows_that_do_not_open_are_told_and_ncu_s_own_filters_do_the_work(profiler: Path) -> None:
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


@pytest.mark.process
@pytest.mark.parametrize("words", [[], ["--annotate", "stages"]])
def test_ranges_that_cannot_be_counted_are_not_told_as_a_program_that_is_not_annotated(
    words: list[str], tools: Path
) -> None:
    Path("nvtx").mkdir()
    Path("nvtx/__init__.py").write_text("from nvtx.nvtx import *\nfrom nvtx import nvtx\n")
    Path("nvtx/nvtx.py").write_text(UNCHANGEABLE)
    Path("program.py").write_text("import nvtx\nwith nvtx.annotate('a'): pass\n")
    assert main(["profile", "--no-measure", "--out", "run", *words, "--", sys.executable, "program.py"]) == 0
    diagnostics = llm_perf_opt.load("run").diagnostics
    (told,) = [d for d in diagnostics if d.code == "RANGES_NOT_COUNTED"]
    assert "it is as it is" in told.message
    assert told.severity == "info"
    # Who asked for annotation hears of the other reason too: there is no torch.
    messages = [d.message for d in diagnostics if d.code == "NOT_ANNOTATED"]
    assert ["No Python process" in message for message in messages] == [True] * bool(words)


@pytest.mark.process
def test_windows_that_give_too_little_are_discarded_and_count_nothing_twice(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for ncu gives results of other windows than were asked for, and fewer than planned."""
    monkeypatch.setenv("FAKE_PROFILER", str(tools / "profiler"))
    monkeypatch.setattr("llm_perf_opt.capture.steps.counters.unseen", lambda windows, results: ["decode_step"])
    monkeypatch.setattr("llm_perf_opt.capture.steps.counters._FEW_RESULTS", 10)
    (ranges,) = all_opened(recorded(TIMELINE)).values()
    Path("program.py").write_text(opening(ranges), encoding="utf-8")
    assert main(["profile", "--no-measure", "--out", "run", "--", sys.executable, "program.py"]) == 0
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


def searched(budget_s: float | None = None, launches: int = 3) -> tuple[Search, Ask]:
    request = ProfileRequest(command=["program"], counters=CounterRequest(launches=launches, budget_s=budget_s))
    launched = launches_of(marked(TIMELINE), report_of(TIMELINE), request)
    assert launched is not None
    search = Search(launched, groups_for("9.0")[0], request.counters, default_costs(), 17.0, budget_s)
    return search, search.asks()[0]


def in_windows(search: Search, fit: Fit, ranges_seen: RangesSeen) -> Fit:
    timeline, kernels = marked(TIMELINE), search.launches.kernels
    assert kernels is not None
    return choose_windows(search, fit, known_ranges(timeline, kernels, ranges_seen), stop=True)


def test_what_needs_two_runs_of_ncu_s_own_filters_is_had_in_one_with_windows() -> None:
    """The first launches of a kernel are those of the prefill; its others need a capture of their own, or a window."""
    search, ask = searched()
    first = attrs.evolve(search.named(search.all_names, search.launches.regions), launch_count=3)
    region = next(r for r in search.launches.regions if r.key.endswith("decode"))
    two = search.fit(ask, [first, attrs.evolve(first, regions=(region,))])
    found = in_windows(search, two, all_opened(recorded(TIMELINE)))
    (capture,) = found.captures
    assert capture.windows is not None
    assert search.error(found.taken) <= max(search.error(two.taken), 0.05)
    assert len(in_windows(search, two, {}).captures) == 2, "no window, no shortcut"


def test_windows_that_leave_kernels_out_do_not_stand_for_several_captures() -> None:
    """Only the ranges of one layer are known inside the program: the rest of the program has no window."""
    search, ask = searched()
    first = attrs.evolve(search.named(search.all_names, search.launches.regions), launch_count=3)
    (counted,) = all_opened(recorded(TIMELINE)).values()
    known = {name: count for name, count in counted.items() if name[1] == "layer5"}
    found = in_windows(search, search.fit(ask, [first, first]), {recorded(TIMELINE).processes[0].pid: known})
    assert len(found.captures) == 2


@pytest.mark.parametrize("launches", [1, 16, 17, 100])
def test_as_many_launches_as_are_asked_for_are_planned(launches: int) -> None:
    (without,) = decided(TIMELINE, {}, launches=launches).captures
    assert without.options.launch_count == launches
    plan = decided(TIMELINE, launches=launches)
    assert plan.captures[0].options.launch_count in range(launches, max(launches, 16) + 1)
    assert table(plan).coverage == pytest.approx(1)


@pytest.mark.parametrize("budget_s", [29.0, 40.0, 60.0])
def test_a_budget_holds_for_windows_too(budget_s: float) -> None:
    assert 0 < decided(TIMELINE, budget_s=budget_s).seconds <= budget_s


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
    assert not isinstance(windows_around(busy, chosen, all_opened(busy), stop=False), str)


def test_samples_are_of_steady_instances() -> None:
    """The first of the steps captures a CUDA graph; what it has in common with the others is sampled there."""
    file = recording("nsys-*-graph_node.sqlite")
    timeline = recorded(file)
    table = launches_of(marked(file), report_of(file), ProfileRequest(command=["program"]))
    assert table is not None
    assert table.warmup is not None
    (capture,) = decided(file).captures
    assert capture.windows is not None
    profiled = set(kernels_in(timeline, capture.windows.windows).tolist())
    profiled -= set(kernels_in(timeline, capture.windows.pauses).tolist())
    assert table.kernels is not None
    warm = {k for k, w in zip(table.kernels.tolist(), table.warmup.tolist(), strict=True) if w}
    assert len(profiled & warm) < 0.2 * len(profiled)
