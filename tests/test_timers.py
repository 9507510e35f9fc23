"""Ranges timed from inside a program, with no profiler, against the program's own clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt import inject
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.regions.attribution import attribute

pytestmark = pytest.mark.process

PROGRAM = """
import json, threading, time
import nvtx

took = {}

def timed(name, body):
    began = time.perf_counter_ns()
    body()
    took.setdefault(name, []).append(time.perf_counter_ns() - began)

def step():
    with nvtx.annotate("step", domain="LLM"):
        time.sleep(0.01)
        with nvtx.annotate("inner", domain="LLM"):
            time.sleep(0.005)

@nvtx.annotate("decorated")
def decorated():
    time.sleep(0.01)

def pushed():
    nvtx.push_range("pushed")
    time.sleep(0.01)
    nvtx.pop_range()

domain = nvtx.get_domain("LLM")
def by_domain():
    domain.push_range(domain.get_event_attributes("by domain"))
    time.sleep(0.01)
    domain.pop_range()

for _ in range(3):
    timed("LLM@step", step)
    timed("decorated", decorated)
    timed("pushed", pushed)
    timed("LLM@by domain", by_domain)
thread = threading.Thread(target=lambda: timed("LLM@step", step))
thread.start()
thread.join()
print(json.dumps(took))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    folder = tmp_path_factory.mktemp("measure")
    environment = inject.environment("off", ranges=True, timers=folder)
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return folder, json.loads(ran.stdout)


def test_ranges_take_what_the_program_says_they_take(measured: tuple[Path, dict[str, list[int]]]) -> None:
    """All ways to open a range are seen although no tool is attached, and on every thread."""
    folder, own = measured
    timeline = read_measured(_collected(folder))
    attribution = attribute(timeline)
    found = defaultdict(list)
    for region, duration in zip(attribution.range_region.tolist(), timeline.ranges.duration.tolist(), strict=True):
        found[attribution.table.key(region)].append(duration)
    assert found.keys() == {*own, "LLM@step/inner"}
    for name, times in own.items():
        assert len(found[name]) == len(times)
        # The range lies inside what the program timed; the rest is opening and closing it.
        outside = np.sort(times) - np.sort(found[name])
        assert (outside >= 0).all()
        assert outside.min() < 0.05 * np.median(times)  # the least: other programs may have their turn in between


def _collected(folder: Path) -> Path:
    collect([folder], folder / "run.json")
    return folder / "run.json"


def test_rows_that_make_no_sense_are_left_out(measured: tuple[Path, dict[str, list[int]]], tmp_path: Path) -> None:
    folder, _ = measured
    whole = len(read_measured(_collected(folder)).ranges)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    bad = np.array([[1000, 1, 5, 6], [0, 1, 7, 6]], dtype="<i8").tobytes()
    with next(tmp_path.glob("*.host")).open("ab") as rows:
        rows.write(bad + b"cut off")
    assert len(read_measured(_collected(tmp_path)).ranges) == whole


def test_a_file_without_times_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="no times") as caught:
        read_measured(_collected(tmp_path))
    assert "--annotate" in caught.value.fix


LOOP = """
import time, nvtx
for number in range(6):
    with nvtx.annotate("step", domain="LLM"):
        time.sleep(0.6 if number == 0 else 0.06)
"""


def test_measure_tells_warm_up_from_steady_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    out = tmp_path / "run"
    assert main(["measure", "--runs", "2", "--out", str(out), "--", sys.executable, str(program)]) == 0
    assert "without a profiler" in capsys.readouterr().out
    (step,) = json.loads((out / "report.json").read_text())["scopes"][-1]["regions"]
    timing = step["timing"]
    assert timing["source"] == "undisturbed"
    assert (timing["instances"], timing["warmup"]["instances"], timing["steady"]["instances"]) == (12, 2, 10)
    assert timing["warmup"]["total_ns"] > 1.1e9
    assert 60e6 <= timing["steady"]["median_ns"] < 200e6
    assert main(["report", str(out), "--out", str(tmp_path / "again")]) == 0  # and from the file alone
    assert json.loads((tmp_path / "again" / "report.json").read_text())["scopes"][-1]["regions"][0]["timing"] == timing


@pytest.mark.parametrize(("program", "code"), [("pass", 5), ("raise SystemExit(3)", 4)])
def test_a_program_that_gives_no_times_says_why(
    program: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["measure", "--out", str(out), "--", sys.executable, "-c", program]) == code
    said = "opened no range" if code == 5 else "exit code 3"
    assert capsys.readouterr().err.count(said) == 1
    assert json.loads((out / "manifest.json").read_text())["state"] == "failed"


def test_a_program_that_was_cut_off_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "long.py"
    program.write_text(
        "import nvtx, time\nfor _ in range(400):\n    with nvtx.annotate('step'):\n        time.sleep(0.05)\n"
    )
    out = tmp_path / "run"
    assert main(["measure", "--timeout", "3", "--out", str(out), "--", sys.executable, str(program)]) == 124
    assert "stopped" in capsys.readouterr().err
    for file in ("manifest.json", "report.json"):
        assert "TIMED_OUT" in [d["code"] for d in json.loads((out / file).read_text())["diagnostics"]]


@pytest.mark.torch
@pytest.mark.parametrize("calls", [6, 0])
def test_a_model_that_marks_nothing_is_measured_once_more_with_its_stages_marked(
    calls: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "plain.py"
    program.write_text(
        f"import torch\nmodel = torch.nn.Linear(4, 4)\nfor _ in range({calls}):\n    model(torch.ones(2, 4)).sum().backward()\n"
    )
    words = ["measure", "--runs", "2", "--out", str(tmp_path / "run"), "--", sys.executable, str(program)]
    assert main(words) == (0 if calls else 5)
    said = capsys.readouterr()
    assert "once more, with the stages of its models marked" in said.out + said.err
    # One run shows that there are no ranges; two are measured where there are.
    assert len(json.loads((tmp_path / "run" / "manifest.json").read_text())["steps"]) == (3 if calls else 2)
    if calls:
        (*_, scope) = json.loads((tmp_path / "run" / "report.json").read_text())["scopes"]
        assert [r["timing"]["instances"] for r in scope["regions"] if r["key"] == "LLM@backward"] == [12]
    else:
        assert "called no model whose stages could be marked" in said.err


ODD = """
import os, sys, time, nvtx

def push(name, domain):
    nvtx.push_range(name, domain=domain)

push("a", "A"); push("b", "B")
nvtx.pop_range(domain="A"); nvtx.pop_range(domain="B")  # each domain has a stack of its own
nvtx.pop_range(domain="A")  # nothing is open
with nvtx.annotate("outer"):
    child = os.fork()
    if not child:
        with nvtx.annotate("of the child"):
            time.sleep(0.6)
        os._exit(0)  # no handler runs
    os.waitpid(child, 0)
"""


def test_domains_have_stacks_of_their_own_and_a_forked_child_its_own_file(tmp_path: Path) -> None:
    environment = inject.environment("off", ranges=True, timers=tmp_path)
    subprocess.run([sys.executable, "-c", ODD], env=environment, check=True)
    timeline = read_measured(_collected(tmp_path))
    names = [timeline.strings[number] for number in timeline.ranges.name.tolist()]
    assert sorted(names) == ["a", "b", "of the child", "outer"]
    assert len(timeline.processes) == 2
    by_name = dict(zip(names, range(len(names)), strict=True))
    assert timeline.ranges.process[by_name["of the child"]] != timeline.ranges.process[by_name["outer"]]
    assert timeline.ranges.duration[by_name["of the child"]] >= 0.6e9


REQUESTS = """
import threading, time, nvtx
from nvtx import end_range, start_range

own = nvtx.get_domain("server")
for _ in range(3):
    first = start_range("request", domain="LLM")
    second = nvtx.start_range(message="request", domain="LLM")  # begins while the first runs, and ends after it
    inside = own.start_range(own.get_event_attributes("queue"))
    own.mark(own.get_event_attributes("arrived"))  # which the package would refuse, had it not made them itself
    with nvtx.annotate("request", domain="LLM"):  # of the same name, and another region
        time.sleep(0.01)
    end_range(first)
    own.end_range(inside)
    thread = threading.Thread(target=lambda: (time.sleep(0.01), nvtx.end_range(second)))
    thread.start()
    thread.join()
nvtx.start_range("never ends", domain="LLM")
nvtx.end_range(None)  # of a program that has switched its ranges off
"""


def test_start_end_ranges_are_timed_also_where_they_overlap_and_end_on_another_thread(tmp_path: Path) -> None:
    environment = inject.environment("off", ranges=True, timers=tmp_path)
    subprocess.run([sys.executable, "-c", REQUESTS], env=environment, check=True)
    timeline = read_measured(_collected(tmp_path))
    ranges = timeline.ranges
    rows = zip(ranges.domain.tolist(), ranges.name.tolist(), ranges.start_end.tolist(), strict=True)
    found = defaultdict(list)
    for (domain, name, start_end), took in zip(rows, ranges.duration.tolist(), strict=True):
        found[timeline.domains[domain], timeline.strings[name], start_end].append(took)
    assert {key: len(times) for key, times in found.items()} == {
        ("LLM", "request", True): 6,
        ("LLM", "request", False): 3,
        ("server", "queue", True): 3,
    }
    times = sorted(found["LLM", "request", True])
    assert times[0] >= 0.01e9
    assert times[-3] >= 0.02e9


AT_THE_END = """
import atexit

@atexit.register  # before ours: it is called after
def goodbye():
    with nvtx.annotate("step"):
        pass

import threading, nvtx
thread = threading.Thread(target=goodbye)
thread.start()
thread.join()
"""


def test_the_last_ranges_of_a_program_do_it_no_harm(tmp_path: Path) -> None:
    environment = inject.environment("off", ranges=True, timers=tmp_path)
    done = subprocess.run([sys.executable, "-c", AT_THE_END], env=environment, check=True, capture_output=True)
    assert done.stderr == b""
    assert len(read_measured(_collected(tmp_path)).ranges) == 1


def test_a_program_that_ends_itself_at_once_has_its_times(tmp_path: Path) -> None:
    program = "import os, nvtx\nfor _ in range(3):\n    with nvtx.annotate('step'):\n        pass\nos._exit(5)"
    environment = inject.environment("off", ranges=True, timers=tmp_path)
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 5
    assert len(read_measured(_collected(tmp_path)).ranges) == 3


ONCE_INSIDE = """
import time, nvtx
for number in range(7):
    with nvtx.annotate("generate", domain="LLM"):
        if not number:
            with nvtx.annotate("load", domain="LLM"):
                time.sleep(0.5)
        with nvtx.annotate("work", domain="LLM"):
            time.sleep(0.02)
"""


def test_what_runs_in_the_warm_up_alone_is_no_part_of_the_steady_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "once.py"
    program.write_text(ONCE_INSIDE)
    assert main(["measure", "--out", str(tmp_path / "run"), "--", sys.executable, str(program)]) == 0
    (where,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Where: "))
    steady, _, once = where.partition(" In its warm-up alone: ")
    assert "load" not in steady
    assert once.startswith("load 50")


def test_a_mean_far_from_the_median_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every tenth step evaluates: nobody gets the time of all steps from their median."""
    program = (
        "import time, nvtx\n"
        "for number in range(40):\n"
        "    with nvtx.annotate('step'):\n"
        "        time.sleep(0.1 if number % 10 == 9 else 0.01)\n"
    )
    assert main(["measure", "--out", str(tmp_path / "run"), "--", sys.executable, "-c", program]) == 0
    (where,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Where: "))
    assert " in 40 instances, median 1" in where
    assert ", mean " in where


MANY = """
import time, nvtx
with nvtx.annotate("loop", domain="LLM"):
    for _ in range(20_000):
        with nvtx.annotate("part", domain="LLM"):
            pass
for _ in range(10):
    with nvtx.annotate("step", domain="LLM"):
        time.sleep(0.02)
"""


def test_what_timing_many_short_ranges_costs_is_told(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["measure", "--quiet", "--out", str(out), "--", sys.executable, "-c", MANY]) == 0
    report = json.loads((out / "report.json").read_text())
    (told,) = (d for d in report["diagnostics"] if d["code"] == "RANGES_COST")
    assert told["message"].startswith("LLM@loop contains 20,000 ranges. Timing one takes about ")
    regions = {region["key"]: region["timing"]["instances"] for region in report["scopes"][-1]["regions"]}
    assert regions == {"LLM@loop": 1, "LLM@loop/part": 20_000, "LLM@step": 10}, "finding out adds no ranges"


FORKED = """
import multiprocessing, nvtx

def work():
    with nvtx.annotate("of the worker"):
        pass

with nvtx.annotate("outer"):
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()
"""


def test_a_worker_that_multiprocessing_forks_leaves_its_last_ranges(tmp_path: Path) -> None:
    """It ends without atexit; workers of servers are such."""
    environment = inject.environment("off", ranges=True, timers=tmp_path)
    subprocess.run([sys.executable, "-c", FORKED], env=environment, check=True)
    timeline = read_measured(_collected(tmp_path))
    names = [timeline.strings[number] for number in timeline.ranges.name.tolist()]
    assert sorted(names) == ["of the worker", "outer"]


FORKED_FIRST = """
import multiprocessing, sys

def work():
    import nvtx
    with nvtx.annotate("of the worker"):
        pass

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
"""


def test_a_worker_that_is_forked_before_anything_is_imported_leaves_its_last_ranges(tmp_path: Path) -> None:
    environment = inject.environment("off", ranges=True, timers=tmp_path)
    subprocess.run([sys.executable, "-c", FORKED_FIRST], env=environment, check=True)
    timeline = read_measured(_collected(tmp_path))
    assert [timeline.strings[number] for number in timeline.ranges.name.tolist()] == ["of the worker"]


KILLED = """
import multiprocessing, time, nvtx

def work(done):
    for _ in range(3):
        with nvtx.annotate("of the worker"):
            time.sleep(0.04)
    done.set()
    time.sleep(60)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Event()
    worker = spawn.Process(target=work, args=(done,))
    worker.start()
    done.wait()
    worker.terminate()
    worker.join()
"""


@pytest.mark.slow
def test_a_worker_that_is_killed_when_it_has_done_its_part_has_left_its_ranges(tmp_path: Path) -> None:
    """As those of a pool are, where it is left."""
    (tmp_path / "timers").mkdir()
    (tmp_path / "killed.py").write_text(KILLED)
    environment = inject.environment("off", ranges=True, timers=tmp_path / "timers")
    subprocess.run([sys.executable, tmp_path / "killed.py"], env=environment, check=True)
    assert len(read_measured(_collected(tmp_path / "timers")).ranges) == 3


COMPILES = """
import nvtx, torch
step = torch.compile(lambda x: x.sin() + 1, backend="eager")
x = torch.ones(8)
for _ in range(8):
    with nvtx.annotate("decode", domain="LLM"):
        with nvtx.annotate("step", domain="LLM"):
            step(x)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_warm_up_that_compiles_is_named_so_and_that_of_a_region_inside_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "run"
    assert main(["measure", "--quiet", "--out", str(out), "--", sys.executable, "-c", COMPILES]) == 0
    regions = json.loads((out / "report.json").read_text())["scopes"][-1]["regions"]
    assert {region["key"]: region["timing"]["warmup"]["why"] for region in regions} == {
        "LLM@decode": "compilation",
        "LLM@decode/step": "compilation",
    }


def test_a_step_change_in_the_middle_is_told_and_is_no_warm_up(tmp_path: Path) -> None:
    program = (
        "import time, nvtx\n"
        "for number in range(20):\n"
        "    with nvtx.annotate('step'):\n"
        "        time.sleep(0.06 if number < 10 else 0.01)\n"
    )
    out = tmp_path / "run"
    assert main(["measure", "--quiet", "--out", str(out), "--", sys.executable, "-c", program]) == 0
    report = json.loads((out / "report.json").read_text())
    (region,) = report["scopes"][-1]["regions"]
    assert (region["timing"]["warmup"]["instances"], region["timing"]["level_change"]) == (0, 10)
    (told,) = report["diagnostics"]
    assert told["code"] == "LEVEL_CHANGE"
    assert "From instance 11 on, step takes a different time" in told["message"]


def test_without_a_gpu_there_is_neither_energy_nor_memory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["measure", "--quiet", "--out", str(out), "--", sys.executable, "-c", PROGRAM]) == 0
    report = json.loads((out / "report.json").read_text())
    for region in report["scopes"][-1]["regions"]:
        assert {region["timing"][name] for name in ("energy_j", "memory_peak_bytes", "memory_growth_bytes")} == {None}


def test_runs_that_differ_are_told(tmp_path: Path) -> None:
    """The first run of a program that takes its time from a file is slower than the second."""
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, time, nvtx\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "pause = 0.02 if seen.exists() else 0.06\n"
        "seen.touch()\n"
        "for _ in range(6):\n"
        "    with nvtx.annotate('step'):\n"
        "        time.sleep(pause)\n"
    )
    out = tmp_path / "run"
    assert main(["measure", "--quiet", "--runs", "2", "--out", str(out), "--", sys.executable, str(program)]) == 0
    report = json.loads((out / "report.json").read_text())
    (region,) = report["scopes"][-1]["regions"]
    first, second = region["timing"]["run_medians_ns"]
    assert first > 1.5 * second
    (told,) = (d for d in report["diagnostics"] if d["code"] == "RUNS_DIFFER")
    assert "between the 2 runs" in told["message"]
    assert "first run was the slowest" in told["message"]


def test_a_step_gets_as_many_looks_at_the_allocator_as_each_of_its_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(inject.__file__).parent / "payload"))
    from _llm_perf_annotate.timers import Timers  # type: ignore[import-not-found]

    timers, looks = Timers(str(tmp_path), None), defaultdict(int)
    opened = 0
    for _ in range(200):
        for name in range(101):  # 0: the step; the budget allows a look at every seventh range, one in 70 µs
            opened += 1
            if opened % 7 == 0 and timers._is_its_turn(name, 10_000 * opened):
                looks[name] += 1
    assert min(looks[name] for name in range(101)) >= 0.8 * max(looks.values())


def test_a_step_is_not_kept_from_the_allocator_by_stages_that_seldom_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(inject.__file__).parent / "payload"))
    from _llm_perf_annotate.timers import Timers

    timers, now, looks = Timers(str(tmp_path), None), 0, 0
    for _ in range(5):
        for stage in range(3):
            timers._is_its_turn(stage, now)
        for _ in range(96):  # steps of 8 ms
            now += 8_000_000
            looks += timers._is_its_turn(3, now)
    assert 50 <= looks <= 80


NO_ROOM = """
import resource, signal, sys, time
import nvtx
with nvtx.annotate("first"):
    time.sleep(0.6)  # written by itself, with the facts of the process
nvtx.push_range("again"); nvtx.pop_range()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for _ in range(3000):
    nvtx.push_range("step"); nvtx.pop_range()
if sys.argv[1] == "made":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize("room", ["made", "not made"])
def test_times_wait_while_there_is_no_room_for_them(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not grow is as a full disk. What is there stays whole, whether or not room is made again."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(NO_ROOM)
    assert main(["measure", "--out", "run", "--quiet", "--", sys.executable, "program.py", room]) == 0
    timeline = read_measured(Path("run/measure/run.json"))
    names = [timeline.strings[n] for n in timeline.ranges.name.tolist()]
    assert names.count("first") == 1
    assert names.count("step") == 3000 if room == "made" else names.count("step") < 100


def test_a_full_file_system_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("llm_perf_opt.capture.steps.measure._ROOM", 1 << 62)
    assert main(["measure", "--out", "run", "--", sys.executable, "-c", "pass"]) == 5
    said = capsys.readouterr()
    assert "No space left on device" in said.out + said.err
    assert "opened no range" not in said.out  # that is not why
