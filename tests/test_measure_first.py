"""`llm-perf profile` measures the program by itself first, and its report says what that took."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject import read_log
from llm_perf_opt.planning import program_end
from llm_perf_opt.regions.columns import CodeSpans, Process, Ranges, Timeline, Work
from llm_perf_opt.regions.model import NCUProfileRegionReport
from test_join_rules import timeline as recorded_timeline

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("json_alone")]

# The ranges of the recording that the stand-ins leave, at other times.
DECODER = """
import sys, time, nvtx
def mark(name):
    return nvtx.annotate(name, domain="LLM")
with mark("prefill"):
    time.sleep(0.05)
with mark("decode"):
    for step in range(int(sys.argv[1])):
        with mark("decode_step"):
            time.sleep(0.3 if step == 0 else 0.02)
"""


@pytest.fixture
def decoder(tools: Path) -> list[str]:
    program = tools / "decoder.py"
    program.write_text(DECODER)
    return [sys.executable, str(program), "8"]


def profile(*options: str, work: list[str]) -> int:
    return main(["profile", "--out", "run", *options, "--", *work])


def regions() -> dict[str, Any]:
    report = json.loads(Path("run/report.json").read_text())
    return {region["key"]: region for region in report["scopes"][-1]["regions"]}


def steps() -> list[str]:
    return [step["name"] for step in json.loads(Path("run/manifest.json").read_text())["steps"]]


def test_times_are_those_of_the_program_by_itself(decoder: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--no-counters", work=decoder) == 0
    shown = capsys.readouterr().err
    assert shown.index("measure: the program runs by itself") < shown.index("LLM@decode takes")
    assert shown.index("LLM@decode takes") < shown.index("timeline:")
    assert steps()[:2] == ["measure", "nsys"]
    found = regions()
    step = found["LLM@decode/decode_step"]
    timing = step["timing"]
    assert timing["source"] == "undisturbed"
    assert (timing["instances"], timing["warmup"]["instances"], timing["steady"]["instances"]) == (8, 1, 7)
    assert 20e6 <= timing["steady"]["median_ns"] < 40e6
    assert timing["disturbance"] == pytest.approx(
        timing["profiled_median_ns"] / timing["steady"]["median_ns"], rel=0.02
    )
    # Wall time from the measured run, what the GPU did from the timeline.
    time = step["performance"]["time"]
    each = timing["steady"]["total_ns"] / 7
    assert time["wall"]["value"] == pytest.approx(8 * each)
    assert time["profiled_wall"]["value"] == step["wall_ns"]
    assert time["idle"]["value"] == pytest.approx(8 * each - time["busy"]["value"], rel=0.01)
    assert step["performance"]["tokens"]["now"]["value"] == pytest.approx(1e9 / each)
    # A region without a partner keeps what the timeline says.
    assert found["LLM@decode/decode_step/layer0"]["timing"]["source"] == "timeline"


def test_without_measuring_times_are_those_of_the_timeline(decoder: list[str]) -> None:
    assert profile("--no-measure", "--no-counters", work=decoder) == 0
    assert steps()[0] == "nsys"
    assert {region["timing"]["source"] for region in regions().values()} == {"timeline"}
    assert not Path("run/measure").exists()


def test_a_program_that_fails_is_not_run_again(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(work=[sys.executable, "-c", "raise SystemExit(3)"]) == 4
    assert steps() == ["measure"]
    assert "--no-measure" in capsys.readouterr().err


def test_a_program_that_is_killed_is_not_said_to_be_broken(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the system where memory is short, or a scheduler."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert main(["measure", "--out", "run", "--", sys.executable, "-c", program]) == 4
    said = capsys.readouterr().err
    assert "killed from outside (SIGKILL, exit code -9)" in said
    assert "dmesg" in said
    assert "Fix the program" not in said


def test_a_program_without_ranges_is_recorded_all_the_same(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile("--no-counters", work=[sys.executable, "-c", "pass"]) == 0
    assert "no range could be timed" in capsys.readouterr().err
    assert regions()["LLM@prefill"]["timing"]["source"] == "timeline"


def test_a_program_that_cannot_be_entered_is_not_run_for_nothing(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile("--no-counters", work=[sys.executable, "-I", "-c", "pass"]) == 0
    assert "measure: left out" in capsys.readouterr().err
    assert steps()[0] == "nsys"


def test_a_program_that_takes_too_long_is_recorded_all_the_same(tools: Path) -> None:
    work = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert profile("--no-counters", "--timeout", "0.5", work=work) == 124
    assert steps()[:2] == ["measure", "nsys"]


def test_a_resumed_run_has_been_measured(decoder: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "nsys-disk-full")
    assert profile("--no-counters", work=decoder) == 5
    times = Path("run/measure/run.json").read_bytes()
    monkeypatch.setenv("FAKE_NSYS", "ok")
    assert main(["profile", "--resume", "run"]) == 0
    assert Path("run/measure/run.json").read_bytes() == times
    assert regions()["LLM@prefill"]["timing"]["source"] == "undisturbed"


# -- a program that goes on for long -----------------------------------------------------------------


@pytest.fixture
def any_saving_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_end, "_LEAST_SAVED_S", 0.1)
    for name in ("_ENOUGH_NS", "_LONGER_NS", "_LONG_NS"):
        monkeypatch.setattr(program_end, name, getattr(program_end, name) // 20)


@pytest.mark.usefixtures("any_saving_counts")
@pytest.mark.parametrize(("options", "last"), [(["--no-counters"], 4), (["--no-counters", "--instances", "7"], 8)])
def test_the_timeline_ends_when_every_stage_was_seen(
    decoder: list[str], options: list[str], last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step is warm-up; 50 ms of steady ones are enough here."""
    assert profile(*options, work=[*decoder[:2], "60"]) == 0
    assert f"until LLM@decode_step {last} of 60 is over" in capsys.readouterr().err
    notes = [json.loads(line) for line in Path("run/annotate.jsonl").read_text().splitlines()]
    assert [note["before"] for note in notes if note["event"] == "windows" and "ended" in note] == [
        f"decode_step {last + 1}"
    ]
    step = regions()["LLM@decode/decode_step"]
    assert step["timing"]["instances"] == 60


@pytest.mark.usefixtures("any_saving_counts")
def test_under_ncu_the_program_ends_there_too(decoder: list[str]) -> None:
    """Also where ncu's own filters choose the launches: this program has no PyTorch that could switch ncu."""
    assert profile(work=[*decoder[:2], "60"]) == 0
    assert read_log(Path("run/ncu/run-windows.jsonl")).ended_before == "decode_step 5"
    assert not json.loads(Path("run/ncu/run-windows.json").read_text())["switch"]
    assert "--profile-from-start" not in Path("run/ncu/cmd.txt").read_text()


@pytest.mark.usefixtures("any_saving_counts")
@pytest.mark.parametrize("options", [["--run-to-end"], ["--no-windows"], ["--no-measure"]])
def test_the_program_may_run_to_its_end(decoder: list[str], options: list[str]) -> None:
    assert profile("--no-counters", *options, work=[*decoder[:2], "30"]) == 0
    assert not Path("run/nsys/window.json").exists()


@pytest.mark.usefixtures("any_saving_counts")
def test_a_second_run_that_does_less_is_recorded_whole(tools: Path) -> None:
    program = tools / "forgetful.py"
    program.write_text(
        DECODER.replace("int(sys.argv[1])", "60 if not os.path.exists('done') else 2", 1) + "open('done', 'w')"
    )
    program.write_text("import os\n" + program.read_text())
    assert profile("--no-counters", work=[sys.executable, str(program)]) == 0
    assert Path("run/nsys/window.json").exists()
    assert not Path("run/annotate.jsonl").exists()  # the range after which it would have been ended never came
    assert regions()["LLM@prefill"]["timing"]["source"] == "undisturbed"


def _measured(*rows: tuple[str, float, float]) -> Timeline:
    """Ranges of one thread: name, begin and end in seconds."""
    names = list(dict.fromkeys(name for name, _, _ in rows))
    start, end = (np.array([round(row[k] * 1e9) for row in rows]) for k in (1, 2))
    process, thread, domain = np.zeros((3, len(rows)), dtype=np.int32)
    which = np.array([names.index(name) for name, _, _ in rows], dtype=np.int32)
    empty = Work.empty()
    ranges = Ranges(start, end, process, thread, domain, which, np.zeros(len(rows), dtype=np.bool_))
    return Timeline("run.json", "measured", names, [""], [Process(1)], [0], empty, empty, empty, ranges)


def _steps(name: str, begin: float, each: float, count: int) -> list[tuple[str, float, float]]:
    return [(name, begin + i * each, begin + (i + 0.99) * each) for i in range(count)]


def test_a_long_range_is_seen_by_its_parts() -> None:
    decoding = [("prefill", 0.0, 1.0), ("decode", 1.0, 101.0), *_steps("step", 1.0, 0.1, 1000)]
    end = program_end.choose_end(_measured(*decoding), 110.0)
    assert end is not None
    assert (end.name, end.number, end.of) == ("step", 11, 1000)  # a second of them
    assert end.saved_s == pytest.approx(98.9, abs=0.1)
    assert end.windows.as_json() == {"windows": [["", "step", [11]]], "pauses": [], "stop": True, "switch": False}
    some = program_end.choose_end(_measured(*decoding), 110.0, 5)
    assert some is not None
    assert some.number == 5


def test_warm_up_is_not_what_has_to_be_seen() -> None:
    compiled = [("step", 0.0, 20.0), ("step", 20.0, 30.0), *_steps("step", 30.0, 0.1, 1000)]
    end = program_end.choose_end(_measured(*compiled), 140.0)
    assert end is not None
    assert end.number == 2 + 11


@pytest.mark.parametrize(
    "rows",
    [
        [("load", 0.0, 60.0), ("run", 60.0, 120.0)],  # nothing repeats
        [("train", 0.0, 60.0), *_steps("step", 0.0, 0.1, 600), ("evaluate", 60.0, 70.0)],  # a stage comes last
        _steps("step", 0.0, 0.1, 80),  # little to save
    ],
)
def test_a_program_that_has_to_run_to_its_end(rows: list[tuple[str, float, float]]) -> None:
    assert program_end.choose_end(_measured(*rows), 120.0) is None


def test_a_small_stage_at_the_end_is_not_waited_for_but_told() -> None:
    end = program_end.choose_end(_measured(*_steps("step", 0.0, 0.1, 600), ("save", 60.0, 60.5)), 60.0)
    assert end is not None
    assert end.not_reached == ("save",)


def test_processes_end_by_themselves() -> None:
    one = _measured(*_steps("step", 0.0, 0.1, 600))
    one.ranges.process[300:] = 1
    assert program_end.choose_end(one, 60.0) is None


# -- the report of a recording that was ended early --------------------------------------------------


def _recorded(steps: int, *more: tuple[str, float, float]) -> Timeline:
    """Steps that take 150 ms under the profiler, of which the GPU works 50 ms."""
    rows = [("decode", 1.0, 1.0 + 0.15 * steps), *_steps("decode_step", 1.0, 0.15, steps), *more]
    kernels = [("gemm", round(1e9 * (1.02 + 0.15 * i)), 50_000_000) for i in range(steps)]
    return recorded_timeline([(name, round(a * 1e9), round(b * 1e9)) for name, a, b in rows], kernels)


def _found(report: NCUProfileRegionReport) -> dict[str, Any]:
    return {region.key: region for region in report.scopes[-1].regions}


@pytest.mark.parametrize("later", [0.1, 0.2])
def test_the_part_that_was_recorded_is_compared_with_the_same_part(later: float) -> None:
    steps = [*_steps("decode_step", 1.0, 0.1, 100), *_steps("decode_step", 11.0, later, 900)]
    measured = _measured(("decode", 1.0, 11.0 + 900 * later), *steps)
    report = build_report([_recorded(10)], ReportOptions(), measured=[measured])
    step, decode = (_found(report)[key] for key in ("decode/decode_step", "decode"))
    assert step.timing.source == decode.timing.source == "undisturbed"
    assert (step.timing.instances, step.instances) == (1000, 10)
    assert step.timing.disturbance == pytest.approx(1.5)
    # Ten steps of the measured run, not what a thousand take.
    time = step.performance.time
    assert time.wall.of("s") == pytest.approx(0.99)
    assert time.idle.of("s") == pytest.approx(0.49)
    assert decode.performance.time.wall.of("s") == pytest.approx(1.0, abs=0.02)
    assert decode.performance.time.idle.of("s") == pytest.approx(0.5, abs=0.02)
    # Tokens a second are those of all steps.
    assert step.performance.tokens.now.value == pytest.approx(1000 / step.timing.steady.total_ns * 1e9)
    unlike = [d.message for d in report.diagnostics if d.code == "RECORDED_UNLIKE_ALL"]
    assert ("take 99 ms each" in unlike[0]) if later > 0.1 else not unlike
    # The recording ended inside `decode`: what repeats in it is the stage.
    assert report.stages == ["decode/decode_step"]
    where = report.answer.where
    assert where.startswith(f"decode/decode_step takes {step.timing.steady.total_ns / 1e9:.3g} s in 1,000 instances")
    assert "Of that, 990 ms were recorded" in where


def test_all_numbers_of_an_answer_are_of_the_undisturbed_program() -> None:
    """Forty launches a step, 25 µs apart under the profiler and 10 µs without, and a wait of 2 ms in both."""
    rows = [("step", round(1e9 + i * 3.41e6), round(1e9 + i * 3.41e6 + 3.4e6)) for i in range(10)]
    starts = [start + 30_000 * k + (2_000_000 if k >= 20 else 0) for _, start, _ in rows for k in range(40)]
    timeline = recorded_timeline(rows, [("gemm", start, 5_000) for start in starts])
    measured = _measured(*[("step", 1 + 0.004 * i, 1 + 0.004 * i + 0.0026) for i in range(10)])
    report = build_report([timeline], ReportOptions(), measured=[measured])
    of = _found(report)["step"].performance
    assert of.time.idle.of("ns") == pytest.approx(of.idle.total_ns) == pytest.approx(10 * 2_400_000, rel=0.01)
    parts = of.idle.by_cause()
    # What the profiler adds, it adds to the launches.
    assert parts["unseen"] == pytest.approx(10 * 2_025_000, rel=0.01)
    assert parts["launch"] == pytest.approx(10 * 375_000, rel=0.05)
    assert sum(parts.values()) == pytest.approx(of.idle.total_ns, rel=0.001)
    assert sum(size.time_ns for size in of.idle.sizes) == pytest.approx(of.idle.total_ns, rel=0.001)
    waits = {o.rule: o.time.of("ns") for o in of.opportunities}
    assert waits["host.unknown"] == pytest.approx(parts["unseen"])
    assert waits["launch.graph"] == pytest.approx(parts["launch"])
    assert "84 % of that while the host does something that was not recorded: 20.2 ms in 10 gaps" in report.answer.why


@pytest.mark.parametrize(
    ("took", "on_gpu", "busy"),
    [(0.08, True, 0.08), (0.08, False, 0.1), (0.05, True, 0.1), (0.12, True, 0.1)],
    ids=["at a lower clock", "the host's clock", "work of other streams", "it waits"],
)
def test_work_that_took_longer_in_the_recording_takes_what_the_gpu_was_timed_with(
    took: float, on_gpu: bool, busy: float
) -> None:
    """A kernel of 100 ms in each step, and steps that take less than that by themselves."""
    rows = [("step", round(1e9 + i * 2e8), round(1e9 + i * 2e8 + 1.01e8)) for i in range(10)]
    recorded = recorded_timeline(rows, [("gemm", start + 500_000, 100_000_000) for _, start, _ in rows])
    measured = _measured(*[("step", 1 + 0.2 * i, 1 + 0.2 * i + took) for i in range(10)])
    if on_gpu:
        measured = evolve(measured, ranges=evolve(measured.ranges, gpu_start=measured.ranges.start))
    found = _found(build_report([recorded], ReportOptions(), measured=[measured]))["step"].performance
    assert found.time.busy.of("s") == pytest.approx(10 * busy)
    if busy < 0.1:
        assert found.speed_of_light.now.of("s") == pytest.approx(10 * took)
    assert found.families[0].time.of("s") == pytest.approx(10 * busy)


def test_lines_of_copies_that_were_slower_in_the_recording_add_up_to_what_they_take() -> None:
    """Steps of a copy of 100 ms, which take 80 ms by themselves."""
    rows = [("step", round(1e9 + i * 2e8), round(1e9 + i * 2e8 + 1.01e8)) for i in range(10)]
    name = "[CUDA memcpy Host-to-Device]"
    copied = recorded_timeline(rows, [(name, start + 500_000, 100_000_000) for _, start, _ in rows])
    alike = np.zeros(10, dtype=np.int32)
    place = alike + len(copied.strings)
    start = np.array([start for _, start, _ in rows])
    timeline = evolve(
        recorded_timeline(rows, [("gemm", start, 1) for _, start, _ in rows]),
        strings=[*copied.strings, "/home/me/train.py(7): step", "gemm"],
        ranges=copied.ranges,
        copies=copied.kernels,
        code=CodeSpans(start, start + 10**8, alike, alike, place),
    )
    timeline.kernels.name[:] = place + 1
    measured = _measured(*[("step", 1 + 0.2 * i, 1 + 0.2 * i + 0.08) for i in range(10)])
    measured = evolve(measured, ranges=evolve(measured.ranges, gpu_start=measured.ranges.start))
    found = _found(build_report([timeline], ReportOptions(), measured=[measured]))["step"].performance
    (copies,) = [one for one in found.opportunities if one.kind == "host copies"]
    assert copies.time.of("s") == pytest.approx(0.8, rel=0.001)
    assert [line.line for line in copies.lines] == [7]
    assert copies.lines[0].time_ns == pytest.approx(copies.time.of("ns"), rel=0.001)


def test_a_program_that_did_something_else_is_compared_as_a_whole() -> None:
    """The second run opened one range less of one name, in the middle: that is not where it was ended."""
    measured = _measured(
        ("decode", 1.0, 11.0), *_steps("decode_step", 1.0, 0.1, 100), ("retry", 1.35, 1.36), ("retry", 9.0, 9.01)
    )
    report = build_report([_recorded(100, ("retry", 1.5, 1.51))], ReportOptions(), measured=[measured])
    assert _found(report)["decode"].performance.time.wall.of("s") == pytest.approx(10.0)


def test_of_several_processes_only_the_sum_has_undisturbed_times() -> None:
    """Which process of one run is which of another is not known."""
    steps = _steps("step", 1.0, 0.1, 20)
    measured = _measured(*steps, *steps)
    measured.ranges.process[20:] = measured.ranges.thread[20:] = 1
    measured.processes.append(Process(2))
    measured.threads.append(1)
    rows = [(name, round(a * 1e9), round(b * 1e9)) for name, a, b in _steps("step", 1.0, 0.15, 20)]
    ranks = recorded_timeline(rows, [("gemm", 1_020_000_000, 50_000_000)], processes=2)
    report = build_report([ranks], ReportOptions(), measured=[measured])
    sources = {
        scope.scope: [region.timing.source for region in scope.regions if region.timing] for scope in report.scopes
    }
    assert sources.pop("aggregate") == ["undisturbed"]
    assert {source for found in sources.values() for source in found} == {"timeline"}
    (step,) = report.scopes[-1].regions
    assert step.timing is not None
    assert (step.timing.instances, step.instances) == (40, 40)


def test_the_recorded_part_is_known_although_only_its_parent_is_shown() -> None:
    measured = _measured(("decode", 1.0, 101.0), *_steps("decode_step", 1.0, 0.1, 1000))
    report = build_report(
        [_recorded(10)], ReportOptions(include=["decode"], exclude=["decode_step"]), measured=[measured]
    )
    assert _found(report)["decode"].performance.time.wall.of("s") == pytest.approx(1.0, abs=0.02)
