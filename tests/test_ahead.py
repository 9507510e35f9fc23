"""The program is started for ncu while nsys still writes: what comes of it is what the ordinary way gives, or that follows.

The stand-ins for nsys and ncu replay what the real ones said; the program really runs, really waits on a port, and
opens as many ranges of each name as the timeline has. Signals are in `fault_matrix`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

import llm_perf_opt
from fake_tools import TRANSCRIPTS, write
from fake_tools import json_alone as json_alone
from fake_tools import tools as tools
from fault_matrix import (
    AHEAD_COUNTERS,
    AHEAD_RANGES,
    AHEAD_TIMELINE,
    COUNTERS,
    STUBS,
    TIMELINE,
    opening,
    processes_with,
)
from llm_perf_opt import inject as annotate
from llm_perf_opt.capture import start_ahead as ahead
from llm_perf_opt.capture.ahead import CONNECTIONS, Parked, free_ports, is_listening
from llm_perf_opt.capture.start_ahead import Ahead, begins_after_first_work, can_start
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject import Gate
from llm_perf_opt.nsight.help_text import parse_ncu_help, validate
from llm_perf_opt.nsight.ncu.argv import FOR_ATTACHING, NcuOptions, build_ncu_attach_cmd, build_ncu_launch_cmd
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.request import CounterRequest, ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory


@pytest.fixture
def desk(tools: Path, monkeypatch: pytest.MonkeyPatch, json_alone: None) -> Path:
    """Tools whose timeline is such that ncu attaches; `marks` says which steps there were."""
    write(tools, timeline=AHEAD_TIMELINE, counters=AHEAD_COUNTERS)
    (tools / "marks").mkdir()
    monkeypatch.setenv("FAKE_NSYS_WRITES_S", "0.5")
    for name, value in {"STUBS": STUBS, "FAKE_PROFILER": tools / "profiler", "FAKE_MARKS": tools / "marks"}.items():
        monkeypatch.setenv(name, str(value))
    return tools


def profile(*options: str, out: str = "run", work: str = "") -> int:
    Path("program.py").write_text(work or opening(), encoding="utf-8")
    return main(["profile", "--out", out, *options, "--", sys.executable, "program.py"])


def steps(out: str = "run") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(out, "manifest.json").read_text(encoding="utf-8"))["steps"]
    return [step for step in found if step["name"] == "ncu"]


def remarks() -> list[str]:
    return [line for line in Path("run/ncu/cmd.txt").read_text(encoding="utf-8").splitlines() if line.startswith("#")]


def nothing_is_left(desk: Path) -> bool:
    return not list(processes_with(f"FAKE_MARKS={desk / 'marks'}".encode())) and not list(Path("run").rglob(".a*.log"))


def values(out: str) -> list[dict[str, Any]]:
    return [attrs.asdict(scope) for scope in llm_perf_opt.load(out).scopes]


def test_the_report_is_that_of_the_ordinary_way(desk: Path) -> None:
    assert profile() == 0
    assert {"launch", "parked", "attach", "attached"} <= {p.name for p in (desk / "marks").iterdir()}
    (step,) = steps()
    assert (step["status"], step["exit_code"], step["capture"]) == ("captured", 0, "run")
    assert nothing_is_left(desk)
    told, launch, attach = remarks()
    assert "two commands" in told
    assert " --target-processes application-only --nvtx " in launch
    assert (" --nvtx " in attach, "--profile-from-start off" in attach) == (False, True)
    assert "all steps" in Path("run/ncu/run-workload.log").read_text()

    (desk / "marks" / "launch").unlink()
    assert profile("--no-start-ahead", out="plain") == 0
    assert not (desk / "marks" / "launch").exists()
    assert values("run") == values("plain")
    (plain,) = steps("plain")
    assert step["files"].keys() == plain["files"].keys()
    assert [word.replace("run/ncu", "plain/ncu") for word in step["argv"]] == plain["argv"]
    names = [{p.name for p in Path(out, "ncu").iterdir()} for out in ("run", "plain")]
    assert names[0] == names[1]


def test_a_plan_it_does_not_fit_ends_it_and_the_ordinary_way_follows(desk: Path) -> None:
    """Ranges of the whole process, for the launches of other threads: that is said when a program is launched."""
    write(desk, timeline=TIMELINE, counters=COUNTERS)
    ranges = {("", "step"): 1, ("", "outer"): 1, ("", "op_on_worker"): 1}
    assert profile(work=opening(ranges)) == 0
    assert (desk / "marks" / "launch").exists()
    assert not (desk / "marks" / "attach").exists()
    (step,) = steps()
    assert step["status"] == "captured"
    assert "process" in step["argv"]
    assert remarks() == []
    assert nothing_is_left(desk)


def test_where_ncu_refuses_to_attach_the_program_is_started_again(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ATTACH", "refused")
    assert profile() == 0
    (step,) = steps()
    assert step["status"] == "captured"
    assert "could not attach: ==ERROR== Invalid option" in remarks()[-1]
    assert "Waiting for profiler" not in Path("run/ncu/run-workload.log").read_text()
    assert nothing_is_left(desk)


def test_where_attaching_gives_nothing_it_is_taken_again_and_told(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ATTACH", "nothing")
    assert profile() == 0
    assert [(s["capture"], s["status"]) for s in steps()] == [("run", "failed"), ("run-again", "captured")]
    report = llm_perf_opt.load("run")
    assert [d.severity for d in report.diagnostics if d.code == "ATTACHED_IN_VAIN"] == ["info"]
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert nothing_is_left(desk)


def test_of_results_that_are_too_few_none_counts_twice(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in gives results of other windows; with that judged too little, everything behind it follows."""
    monkeypatch.setattr("llm_perf_opt.capture.session._FEW_RESULTS", 10)
    assert profile() == 0
    assert [(s["capture"], s["status"]) for s in steps()] == [
        ("run", "failed"),
        ("run-again", "failed"),
        ("run-ungated", "captured"),
    ]
    assert [p.name for p in Path("run/ncu").glob("*.ncu-rep")] == ["run-ungated.ncu-rep"]
    assert not [d for d in llm_perf_opt.load("run").diagnostics if d.severity == "error" or d.code == "SAME_RECORDING"]


def test_a_program_that_fails_under_nsys_is_not_kept_waiting(desk: Path) -> None:
    assert profile(work=opening(after="if not parked: sys.exit(3)")) == 4
    assert (desk / "marks" / "launch").exists()
    assert not (desk / "marks" / "attach").exists()
    assert nothing_is_left(desk)


def test_a_program_that_fails_while_attached_is_told_as_ever(desk: Path) -> None:
    """By its exit code, which the launching command hands on."""
    assert profile(work=opening(after="if parked: raise RuntimeError('no more of this')")) == 4
    (step,) = steps()
    assert (step["status"], step["exit_code"]) == ("partial", 1)
    (told,) = [d for d in step["diagnostics"] if d["code"] == "WORKLOAD_FAILED"]
    assert "RuntimeError: no more of this" in told["message"]


def test_a_program_is_ended_when_all_samples_are_in(desk: Path) -> None:
    more = "\n".join(["if parked:", "    nvtx.push_range('more', domain='LLM')", "    print('went on')"])
    assert profile("--stop-when-done", work=opening(after=more)) == 0
    (step,) = steps()
    assert (step["status"], step["exit_code"]) == ("captured", 0)
    assert "ENDED_ON_PURPOSE" in [d["code"] for d in step["diagnostics"]]
    assert "all steps" not in Path("run/ncu/run-workload.log").read_text()


# -- what waits ------------------------------------------------------------------------------------


@pytest.fixture
def parked(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Parked]:
    """The program, started by the stand-in for ncu."""
    monkeypatch.setenv("LLM_PERF_GRACE_S", "2")

    def start(work: str) -> Parked:
        port = free_ports()
        assert port is not None
        return Parked(
            [sys.executable, "-c", work], Tool("ncu", desk / "ncu", "2025.3.1.0"), desk, port=port, environment={}
        )

    return start


def attached(desk: Path, program: Parked, timeout_s: float | None = None) -> Any:
    log = desk / "log"
    options = NcuOptions(extra_args=("--log-file", str(log)))
    argv = build_ncu_attach_cmd(
        desk / "out", port=program.port, connections=CONNECTIONS, options=options, nvtx_expr=[], ncu=desk / "ncu"
    )
    found = program.profile(
        argv,
        log=log,
        workload_log=desk / "workload.log",
        timeout_s=timeout_s,
        limit_s=20.0,
        follow=lambda _: None,
        tell=lambda _: None,
    )
    assert not list(processes_with(f"FAKE_MARKS={desk / 'marks'}".encode()))
    return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_time_it_waits_for_us_is_not_its_own(desk: Path, parked: Callable[[str], Parked]) -> None:
    began = time.monotonic()
    (desk / "profiler").write_text("cudaProfilerStart")
    program = parked(opening({}, after="time.sleep(0.2)"))
    until((desk / "marks" / "parked").exists)
    time.sleep(0.8)
    ended = attached(desk, program)
    assert ended.exit_code == 0
    assert 0.2 < ended.seconds < time.monotonic() - began - 0.6


def test_where_nobody_says_who_listens_ncu_is_asked_until_it_is_there(
    desk: Path, parked: Callable[[str], Parked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.capture.ahead.is_listening", lambda _: None)
    (desk / "profiler").write_text("cudaProfilerStart")
    program = parked(opening({}, before="time.sleep(0.6)"))
    time.sleep(0.2)
    ended = attached(desk, program)
    assert ended.exit_code == 0
    assert (desk / "out.ncu-rep").exists()


@pytest.mark.parametrize("work", ["if parked: sys.exit(7)", "if parked: os.kill(os.getpid(), 9)"])
def test_a_program_that_ends_before_its_first_call_is_nothing_to_attach_to(
    desk: Path, parked: Callable[[str], Parked], work: str
) -> None:
    assert attached(desk, parked(opening({}, before=work))) is None


def test_a_time_out_ends_the_program_and_ncu_writes_by_itself(desk: Path, parked: Callable[[str], Parked]) -> None:
    (desk / "profiler").write_text("cudaProfilerStart")
    program = parked(opening({}, after="time.sleep(600)"))
    ended = attached(desk, program, timeout_s=1.0)
    assert (ended.timed_out, ended.interrupted, ended.handed_on) == (True, False, True)
    assert (desk / "out.ncu-rep").exists()


def test_a_program_that_ncu_has_left_alone_is_ended_and_not_blamed(
    desk: Path, parked: Callable[[str], Parked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stopped in the middle of a launch."""
    monkeypatch.setattr("llm_perf_opt.capture.ahead._WITHOUT_NCU_S", 0.2)
    monkeypatch.setenv("FAKE_ATTACH", "crash")
    ended = attached(desk, parked(opening({}, after="time.sleep(600)")))
    assert (ended.exit_code, ended.handed_on, ended.timed_out) == (-signal.SIGSEGV, False, False)


def test_what_nobody_wants_is_gone_at_once(desk: Path, parked: Callable[[str], Parked]) -> None:
    """It does not hear a polite signal, so none is waited for; the children of it are gone as well."""
    child = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    program = parked(opening({}, before=child))
    until((desk / "marks" / "parked").exists)
    began = time.monotonic()
    program.discard()
    assert time.monotonic() - began < 1.5
    assert not list(processes_with(f"FAKE_MARKS={desk / 'marks'}".encode()))
    assert not (desk / ".ahead.log").exists()


# -- when it is started ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opened", "alive", "starts"),
    [
        ({"own": [["", "step", 1]]}, False, True),
        ({"own": [["", "step", 1]]}, True, False),
        ({"own": [["", "step", 1]], "other": [["", "step", 1]]}, False, False),
        ({"other": [["", "step", 1]]}, False, False),
        ({"own": []}, False, False),
        ({}, False, False),
    ],
    ids=["one", "one that still ends", "two that open ranges", "a child of it", "no ranges", "no notes"],
)
def test_it_is_started_when_its_one_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Mapping[str, Any], alive: bool, starts: bool
) -> None:
    started: list[Mapping[str, str]] = []
    monkeypatch.setattr(ahead, "Parked", lambda *_, environment, **__: started.append(environment))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    pids = {"own": os.getpid() if alive else gone.pid, "other": 1}
    run = RunDirectory.create(tmp_path / "run", ["program"], {})
    waiting = Ahead(run, ProfileRequest(command=["program"]), Tool("ncu", Path("ncu"), "1"), {"A": "B"}, lambda _: None)
    pid_file = tmp_path / "pid"
    waiting.look(pid_file)
    pid_file.write_text(str(pids["own"]))
    notes = [json.dumps({"pid": pids[who], "event": "end", "ranges": rows}) for who, rows in opened.items()]
    (run.path / "annotate.jsonl").write_text("\n".join(notes))
    waiting.look(pid_file)
    waiting.look(pid_file)
    run.release()
    assert len(started) == starts
    for environment in started:
        assert environment["LLM_PERF_GATE"].endswith("/ncu/run-gate.json")
        assert environment["A"] == "B"


@pytest.mark.parametrize(
    "counters",
    [
        {"start_ahead": False},
        {"gate": False},
        {"sample": "first"},
        {"options": NcuOptions(extra_args=("--call-stack",))},
        {"options": NcuOptions(replay_mode="application")},
    ],
)
def test_it_is_not_started_where_the_plan_is_not_ours(desk: Path, counters: dict[str, Any]) -> None:
    tool = Tool("ncu", desk / "ncu", "2025.3.1.0")
    ranges = {"LLM_PERF_RANGES": "1"}
    request = ProfileRequest(command=["program"])
    assert can_start(request, tool, ranges)
    assert not can_start(request, tool, {"LLM_PERF_RANGES": "0"})
    assert not can_start(attrs.evolve(request, counters=CounterRequest(**counters)), tool, ranges)


def test_an_ncu_that_cannot_attach_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_to_ncu()
    monkeypatch.setattr(ahead, "known_options", lambda _: {k: v for k, v in known.items() if k != "--mode"})
    request = ProfileRequest(command=["program"])
    assert not can_start(request, Tool("ncu", Path("ncu"), "2019.1"), {"LLM_PERF_RANGES": "1"})


def known_to_ncu() -> dict[str, Any]:
    return parse_ncu_help((TRANSCRIPTS / "ncu-2025.3.1-help.txt").read_text(encoding="utf-8"))


def test_both_commands_are_such_as_ncu_knows() -> None:
    known = known_to_ncu()
    assert set(FOR_ATTACHING) <= set(known)
    options = NcuOptions(metrics="a,b", nvtx_push_pop_scope="process", extra_args=("--profile-from-start", "off"))
    launch = build_ncu_launch_cmd(["python", "x.py"], port=61000, connections=4, nvtx_push_pop_scope="process")
    attach = build_ncu_attach_cmd("out", port=61000, connections=4, options=options, nvtx_expr=["LLM@step/"])
    for argv in (launch[1:-2], attach[1:]):
        assert [d for d in validate(argv, known) if d.severity == "error"] == []
    at_launch = {"--nvtx", "--target-processes", "--nvtx-push-pop-scope"}
    assert at_launch <= set(launch)
    assert not at_launch & set(attach)


def test_windows_before_the_first_work_of_the_gpu_could_be_missed() -> None:
    timeline = read_recording(AHEAD_TIMELINE, launch_config=True)
    assert isinstance(timeline, Timeline)
    late, opened = Gate({("LLM", "norm"): (3,)}), {timeline.processes[0].pid: AHEAD_RANGES}
    assert begins_after_first_work(late, timeline, opened)
    assert begins_after_first_work(late, timeline, {1: {}}), "in a container it may have another number"
    assert not begins_after_first_work(Gate({("LLM", "norm"): (16,)}), timeline, opened), "there is no such range"
    first = int(timeline.ranges.start.min())
    for work in (timeline.kernels, timeline.copies):
        work.host_time[:] = work.host_time + (first + 1 - min(first, int(work.host_time.min())))
    assert not begins_after_first_work(Gate({("LLM", "block0"): (1,)}), timeline, opened)


# -- ports -----------------------------------------------------------------------------------------


def test_a_port_that_somebody_listens_on_is_seen_and_not_chosen(tmp_path: Path) -> None:
    first = free_ports()
    assert first is not None
    assert not is_listening(range(first, first + CONNECTIONS))
    with socket.socket() as server:
        server.bind(("127.0.0.1", first + 2))
        assert not is_listening(range(first, first + CONNECTIONS)), "bound, but nobody can connect yet"
        server.listen()
        assert is_listening(range(first, first + CONNECTIONS))
    assert is_listening([first], tables=tmp_path) is None, "this system does not say"


# -- inside the program ----------------------------------------------------------------------------

LATE = """
import os, sys
sys.path.insert(0, os.environ["STUBS"])
import nvtx, torch
def step():
    nvtx.push_range("step"); nvtx.pop_range()
step(); step()
nvtx.push_range("outer")
os.replace(sys.argv[1], os.environ["LLM_PERF_GATE"])
nvtx.pop_range()
step(); step(); step()
"""


@pytest.mark.parametrize(("windows", "switched"), [({("", "step"): (1, 4)}, 1), ({("", "step"): (3, 4, 5)}, 3)])
def test_ranges_count_before_it_is_known_which_are_wanted(
    desk: Path, windows: dict[tuple[str, str], tuple[int, ...]], switched: int
) -> None:
    Gate(windows).write(desk / "later.json")
    added = {**annotate.environment("off", ranges=True), **annotate.waiting_for(desk / "gate.json", desk / "log")}
    argv = [sys.executable, "-c", LATE, str(desk / "later.json")]
    done = subprocess.run(argv, env={**os.environ, **added}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (desk / "profiler").read_text().split() == ["cudaProfilerStart", "cudaProfilerStop"] * switched
    ((_, counted),) = annotate.read_log(desk / "log").ranges.items()
    assert counted == {("", "step"): 5, ("", "outer"): 1}


def test_a_file_that_never_comes_or_is_damaged_switches_nothing(desk: Path) -> None:
    (desk / "later.json").write_text("[]")
    for gate, told in (("gate.json", 1), ("elsewhere/gate.json", 0)):
        (desk / "elsewhere").mkdir(exist_ok=True)
        added = {**annotate.environment("off", ranges=True), **annotate.waiting_for(desk / gate, desk / "log")}
        code = LATE if told else LATE.replace("os.replace", "print")
        argv = [sys.executable, "-c", code, str(desk / "later.json")]
        done = subprocess.run(argv, env={**os.environ, **added}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert done.stderr.count("reading which ranges to profile failed") == told
    assert not (desk / "profiler").exists()
