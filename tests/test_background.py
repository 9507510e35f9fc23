"""What goes on beside the steps of a run: tables, questions, imports."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import plain_bytes
from fake_tools import TIMELINE
from fake_tools import tools as tools
from llm_perf_opt.capture import preload
from llm_perf_opt.capture.resume import find_results
from llm_perf_opt.capture.steps.attempt import write_raw
from llm_perf_opt.capture.steps.timeline import write_summary
from llm_perf_opt.cli.main import main
from llm_perf_opt.nsight.nvidia_smi import GpusAsked, gpu_facts
from llm_perf_opt.nsight.tools import Asked, Tool, known_options, said_about_sampling
from llm_perf_opt.process.background import BackgroundTasks
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory

pytestmark = pytest.mark.process

# -- the threads ------------------------------------------------------------------------------------


def test_what_came_of_it_is_noted_by_the_thread_that_owns_the_run() -> None:
    tasks, go = BackgroundTasks(), threading.Event()
    noted: list[tuple[str, threading.Thread]] = []

    def work(_: threading.Event) -> str:
        go.wait()
        return threading.current_thread().name

    tasks.start(work, lambda name: noted.append((name, threading.current_thread())))
    tasks.settle()
    assert noted == []
    go.set()
    tasks.wait()
    ((name, noter),) = noted
    assert noter is threading.current_thread()
    assert name != noter.name
    tasks.end()


def test_its_end_stops_what_goes_on_and_forgets_what_has_not_begun() -> None:
    tasks = BackgroundTasks()
    noted: list[bool] = []
    for _ in range(5):  # more than there are threads
        tasks.start(lambda stop: stop.wait(60), noted.append)
    tasks.end()
    assert 1 <= len(noted) <= 2
    assert all(noted)
    tasks.start(lambda stop: stop.is_set(), noted.append)  # and it can be used again
    tasks.wait()
    assert noted[-1] is False
    tasks.end()


# -- tables -----------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory.create(tmp_path / "run", ["program"], {})
    yield directory
    directory.release()


def waiting_tool(folder: Path, name: str) -> Tool:
    """Prints a table as soon as somebody has made the file `go`, and its process id into `pid` before."""
    program = folder / name
    program.write_text(
        f"#!{sys.executable} -IS\nimport os, pathlib, time\nhere = pathlib.Path({str(folder)!r})\n"
        "(here / 'pid.tmp').write_text(str(os.getpid())); (here / 'pid.tmp').rename(here / 'pid')\n"
        "while not (here / 'go').exists(): time.sleep(0.01)\nprint('a,table')\n"
    )
    program.chmod(0o755)
    return Tool(name, program, "1.0")


def steps(run: RunDirectory) -> list[tuple[str, str]]:
    content = json.loads((run.path / "manifest.json").read_text(encoding="utf-8"))
    return [(step["name"], step["status"]) for step in content["steps"]]


def test_a_table_is_noted_when_it_is_there_and_nobody_waits_for_it(tmp_path: Path, run: RunDirectory) -> None:
    sqlite = run.path / "nsys" / "run.sqlite"
    write_summary(run, waiting_tool(tmp_path, "nsys"), sqlite)
    table = sqlite.with_name("summary_cuda_gpu_kern_sum.csv")
    run.save()
    assert steps(run) == [("stats", "running")]  # as a kill would leave it
    assert not table.exists()
    (tmp_path / "go").touch()
    run.background.wait()
    run.save()
    assert steps(run) == [("stats", "done")]
    assert table.read_text() == "a,table\n"
    assert run.manifest.steps[0].files == {table.name: 8}


def test_tables_of_two_captures_have_two_names(tmp_path: Path, run: RunDirectory) -> None:
    ncu = waiting_tool(tmp_path, "ncu")
    for name in ("one", "two"):  # the first is not there yet when the second begins
        write_raw(run, ncu, run.path / "ncu" / f"{name}.ncu-rep", name)
    (tmp_path / "go").touch()
    run.background.wait()
    assert [step.files for step in run.manifest.steps] == [{"raw.csv": 8}, {"raw-two.csv": 8}]


def test_a_table_that_is_interrupted_leaves_nothing_and_is_made_by_the_next_attempt(
    tmp_path: Path, run: RunDirectory
) -> None:
    sqlite = run.path / "nsys" / "run.sqlite"
    sqlite.write_bytes(plain_bytes(TIMELINE))
    for name, file in (("nsys", run.path / "nsys" / "run.nsys-rep"), ("export", sqlite)):
        file.touch()
        step = run.begin(name, [name], "nsys")
        step.status, step.files = "done", {file.name: file.stat().st_size}
    write_summary(run, waiting_tool(tmp_path, "nsys"), sqlite)
    while not (tmp_path / "pid").exists():
        threading.Event().wait(0.01)
    run.finish("interrupted")
    assert steps(run)[-1] == ("stats", "failed")
    assert sorted(p.name for p in sqlite.parent.iterdir()) == ["cmd.txt", "run.nsys-rep", "run.sqlite"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert find_results(run, ProfileRequest(command=["program"])).lacks_summary


def test_a_table_whose_tool_is_gone_is_only_noted(tmp_path: Path, run: RunDirectory) -> None:
    write_summary(run, Tool("nsys", tmp_path / "nowhere", "1.0"), run.path / "nsys" / "run.sqlite")
    run.background.wait()
    run.save()
    assert steps(run) == [("stats", "nothing")]


# -- questions --------------------------------------------------------------------------------------


def counting(folder: Path, name: str, says: str = "", ends: str = "") -> Path:
    """A program that notes how it was called, in `<name>.calls`."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho \"$*\" >> '{folder / name}.calls'\necho '{says}'\n{ends}\n")
    program.chmod(0o755)
    return program


def calls(folder: Path, name: str) -> list[str]:
    return sorted((folder / f"{name}.calls").read_text().splitlines())


def test_every_question_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nsys", "ncu"):
        monkeypatch.setenv(f"LLM_PERF_{name.upper()}", str(counting(tmp_path, name, f"{name} version 2025.3.1")))
    with Asked(nsys=True, ncu=True) as asked:
        found = asked.tools()
    for tool in found:
        assert tool is not None
        known_options(tool)
    assert found[0] is not None
    said_about_sampling(found[0])
    sampling = ["profile --gpu-metrics-devices=help", "profile --gpu-metrics-set=help"]
    assert calls(tmp_path, "nsys") == ["--version", *sampling, "profile --help"]
    assert calls(tmp_path, "ncu") == ["--help", "--list-sections", "--list-sets", "--version"]


def test_a_tool_off_the_path_is_asked_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That inside Nsight Compute is in no PATH: each of its calls ends only once all four have begun."""
    together = f"until [ $(wc -l < '{tmp_path}/nsys.calls') -ge 4 ]; do sleep 0.02; done"
    nsys = counting(tmp_path, "nsys", "nsys version 2025.3.1", together)
    monkeypatch.delenv("LLM_PERF_NSYS", raising=False)
    monkeypatch.setattr("llm_perf_opt.nsight.tools.shutil.which", lambda name: None)
    monkeypatch.setattr("llm_perf_opt.readers.nsys_tool.installed_nsys", lambda *_: [nsys])
    monkeypatch.setattr("llm_perf_opt.process.ask.TIMEOUT_S", 10.0)
    with Asked(nsys=True, ncu=False) as asked:
        found, _ = asked.tools()
    assert found == Tool("nsys", nsys, "2025.3.1")
    assert len(calls(tmp_path, "nsys")) == 4


def test_a_tool_that_is_not_wanted_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_PERF_NSYS", str(counting(tmp_path, "nsys", "nsys version 2025.3.1")))
    monkeypatch.setenv("LLM_PERF_NCU", "/nowhere")
    with Asked(nsys=True, ncu=False) as asked:
        assert asked.tools()[1] is None


def test_questions_are_taken_back_where_something_else_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nsys", "ncu"):
        ends = f"echo $$ >> '{tmp_path}/pids'; exec sleep 600"
        monkeypatch.setenv(f"LLM_PERF_{name.upper()}", str(counting(tmp_path, name, ends=ends)))
    with Asked(nsys=True, ncu=True) as asked:  # whoever asked does not come to the answers
        while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 6:
            threading.Event().wait(0.01)
    asked._pool.shutdown()  # every thread has seen the end of its process
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


GPU = "0, NVIDIA H200, GPU-1, 580.65.06, 9.0, 143771 MiB, 345 MHz, 2619 MHz, 1980 MHz, P0"


def test_gpus_are_asked_beside_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(tmp_path, "nvidia-smi", GPU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with GpusAsked() as gpus:
        (gpu,) = gpus.facts()
    assert (gpu["name"], gpu["compute_cap"], gpu["pstate"]) == ("NVIDIA H200", "9.0", "P0")


@pytest.mark.parametrize("ends", ["exit 9", "exec sleep 600"])
def test_no_answer_of_the_gpus_is_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    counting(tmp_path, "nvidia-smi", GPU, ends)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stop = threading.Event()
    stop.set()
    assert gpu_facts(stop) == []


def test_a_run_asks_the_gpus_before_and_after(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting(tools, "nvidia-smi", GPU)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert main(["profile", "--no-measure", "--out", "run", "--", sys.executable, "-c", "pass"]) == 0
    assert len(calls(tools, "nvidia-smi")) == 2
    manifest = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    assert manifest["gpus_before"] == manifest["gpus_after"] != []
    # The report knows how everything ended, though it was begun before.
    told = json.loads(Path("run/report.json").read_text(encoding="utf-8"))["environment"]["run"]
    assert told["gpus_after"] == manifest["gpus_after"]
    assert told["state"] == manifest["state"] == "done"
    assert [step["status"] for step in told["steps"]] == ["captured", "done", "done", "captured", "done"]


# -- imports ----------------------------------------------------------------------------------------


def test_what_is_imported_ahead_exists() -> None:
    preload.preload(threading.Event())
    assert [name for name in preload._LATER if name not in sys.modules] == []
    for name in preload._LATER:
        importlib.import_module(name)


def test_nothing_is_imported_for_a_run_that_is_over() -> None:
    code = "import sys, threading; from llm_perf_opt.capture.preload import preload; stop = threading.Event(); stop.set(); preload(stop)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('jinja2' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("llm_perf_opt.cli.main", ["numpy", "yaml", "cattrs", "llm_perf_opt.regions.model"]),
        ("llm_perf_opt.nsight.tools", ["numpy", "yaml", "llm_perf_opt.regions.model"]),
        ("llm_perf_opt.capture.session", []),
    ],
)
def test_what_a_command_does_not_need_at_its_start_is_not_imported(module: str, without: list[str]) -> None:
    heavy = [*without, "pandas", "matplotlib", "plotly", "jinja2", "hydra", "omegaconf", "rich", "torch"]
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
