"""A fixed part of the fault matrix (see `fault_matrix`); `make faults` tries all of it, and kills at random moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fake_tools import tools as tools
from fault_matrix import Bench, Fault, Unavailable, faults, random_kills
from llm_perf_opt.capture import commands
from llm_perf_opt.cli.main import main
from llm_perf_opt.errors import UserError
from llm_perf_opt.process import interrupts, supervise
from llm_perf_opt.process.interrupts import Interrupts
from llm_perf_opt.rundir import directory as run_directory
from llm_perf_opt.rundir.directory import RunDirectory

pytestmark = pytest.mark.process

QUICK = [fault for fault in faults() if fault.quick]


@pytest.mark.parametrize("fault", QUICK, ids=[fault.name for fault in QUICK])
def test_what_goes_wrong_ends_as_it_should(tmp_path: Path, fault: Fault) -> None:
    try:
        wrong = Bench(tmp_path / "bench").attempt(fault)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert wrong == []


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in faults()]
    assert len(set(names)) == len(names) > 60


@pytest.mark.parametrize(("number", "moment"), random_kills(2, seed=7))
def test_a_run_killed_at_some_moment_loses_nothing(tmp_path: Path, number: signal.Signals, moment: float) -> None:
    wrong, at = Bench(tmp_path / "bench").kill(number, 0.3 + moment)  # no run is over so soon
    assert wrong == []
    assert at is not None


@pytest.mark.parametrize(
    ("program", "module", "number"),
    [
        ("from llm_perf_opt.cli.entry import entry; entry()", "attr", signal.SIGINT),
        ("from llm_perf_opt.cli.entry import entry; entry()", "llm_perf_opt.cli.doctor", signal.SIGTERM),
        (
            "import runpy; runpy.run_module('llm_perf_opt.runners.deep_profile_runner', run_name='__main__')",
            "hydra",
            signal.SIGTERM,
        ),
        (
            "import runpy; runpy.run_module('llm_perf_opt.runners.llm_profile_runner', run_name='__main__')",
            "omegaconf",
            signal.SIGINT,
        ),
    ],
)
def test_an_interrupt_while_python_is_still_importing(program: str, module: str, number: signal.Signals) -> None:
    """The finder sends the signal when the module is looked for: a moment nobody can time from outside."""
    finder = f"""
import os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}: os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["doctor"]
{program}
"""
    done = subprocess.run([sys.executable, "-c", finder], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def test_an_interrupted_runner_keeps_its_manifest(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench")
    bench.fresh()
    argv = [sys.executable, "-m", "llm_perf_opt.runners.deep_profile_runner", f"hydra.run.dir={bench.run}"]
    argv += [f"pipeline.workload.command=[{sys.executable},-c,pass]"]
    ours = bench.start(argv, bench.holding("ncu"))
    bench.wait_for("ncu", ours)
    bench.let_go()
    ours.send_signal(signal.SIGTERM)
    got = bench.finish(ours)
    assert got.code == 130, got.said
    assert "Traceback" not in got.said
    assert list(bench.no_process_left()) == []
    assert json.loads((bench.run / "manifest.json").read_text())["state"] == "interrupted"
    assert list(bench.report_wrong(bench.run, kernels=True, counters=False)) == []


def test_a_tool_that_does_not_answer_can_be_interrupted(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench")
    bench.fresh()
    fault = Fault(name="", group="", code=130)
    ours = bench.start(
        bench.argv(fault), {"FAKE_MARKS": str(bench.here / "marks"), "FAKE_FAULT": "version=hang-before"}
    )
    bench.wait_for("version", ours)
    time.sleep(0.3)
    ours.send_signal(signal.SIGINT)
    got = bench.finish(ours)
    assert (got.code, "Traceback" in got.said) == (130, False), got.said
    assert got.seconds < 15  # a tool has longer than that to answer
    assert list(bench.no_process_left()) == []


@pytest.mark.parametrize(("value", "seconds"), [("5", 5.0), ("0", 0.0), ("soon", 60.0), ("nan", 60.0), ("-1", 60.0)])
def test_how_long_a_report_is_waited_for(monkeypatch: pytest.MonkeyPatch, value: str, seconds: float) -> None:
    monkeypatch.setenv("LLM_PERF_GRACE_S", value)
    assert supervise.grace_seconds() == seconds


def test_an_export_that_hangs_is_ended_and_not_tried_again(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "EXPORT_TIMEOUT_S", 1.0)
    monkeypatch.setenv("FAKE_FAULT", "export=hang-before")
    began = time.monotonic()
    assert main(["profile", "--no-measure", "--out", "run", "--", sys.executable, "-c", "pass"]) == 5
    assert time.monotonic() - began < 60
    said = capsys.readouterr().err
    assert "did not end within 1 s" in said
    assert "llm-perf report run" in said
    assert (Path("run") / "nsys" / "run.nsys-rep").exists()


def test_the_manifest_is_there_before_anything_that_takes_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def slow() -> list[dict[str, str]]:
        seen.append(json.loads((tmp_path / "run" / "manifest.json").read_text())["state"])
        return []

    monkeypatch.setattr(run_directory, "gpu_facts", slow)
    RunDirectory.create(tmp_path / "run", ["program"], {}).finish("done")
    assert seen == ["running", "done"]


def test_an_interrupt_waits_until_the_manifest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(tmp_path / "run", ["program"], {})
    replace = os.replace

    def interrupted(*names: str, **folders: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        replace(*names, **folders)

    monkeypatch.setattr(os, "replace", interrupted)
    run.manifest.state = "failed"
    with pytest.raises(KeyboardInterrupt):
        run.save()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["state"] == "failed"
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_run_that_ends_is_not_kept_from_saying_so(tmp_path: Path) -> None:
    """Ctrl-C held down: one more signal while what goes on beside the run is ended."""
    run = RunDirectory.create(tmp_path / "run", ["program"], {})

    def goes_on(stop: threading.Event) -> None:
        stop.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    run.background.start(goes_on, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        run.finish("interrupted")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["state"] == "interrupted"


def test_an_interrupt_leaves_no_folder_without_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the folder has just been made."""
    made = Path.mkdir

    def interrupted(self: Path, *arguments: object, **more: object) -> None:
        made(self, *arguments, **more)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunDirectory.create(tmp_path / "run", ["program"], {})
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["state"] == "interrupted"


def raised(handler: Interrupts) -> bool:
    try:
        handler(signal.SIGINT, None)
    except KeyboardInterrupt:
        return True
    return False


def test_signals_in_quick_succession_are_one_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: clock[0])
    handler = Interrupts()
    heard = []
    for clock[0] in (1.0, 1.05, 1.1, 1.25, 2.0):
        heard.append(raised(handler))
    assert heard == [True, False, False, False, True]


def test_an_interrupt_waits_for_an_import_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside Python's own import code it would be lost, or leave its lock taken."""
    (tmp_path / "slow_module.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nWHOLE = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with supervise.handling([signal.SIGINT], Interrupts(once=True)), pytest.raises(KeyboardInterrupt):  # noqa: PT012
        import slow_module  # type: ignore[import-not-found]

        assert slow_module.WHOLE
        time.sleep(5)
    assert sys.modules["slow_module"].WHOLE


def test_what_is_done_about_an_interrupt_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: clock[0])
    handler = Interrupts(once=True)
    heard = []
    for clock[0] in (1.0, 2.0, 3.0, 4.0):
        if clock[0] == 3.0:
            handler.again()
        heard.append(raised(handler))
    assert heard == [True, False, True, False]


class Interrupted:
    """Whatever is raised while Python takes it apart is printed and dropped."""

    def __init__(self, handler: Interrupts) -> None:
        self._handler = handler

    def __del__(self) -> None:
        self._handler(signal.SIGINT, None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_at_the_next_look() -> None:
    handler = Interrupts(once=True)
    handler.check()
    Interrupted(handler)  # nothing comes of it
    with pytest.raises(KeyboardInterrupt):
        handler.check()
    handler.again()
    handler.check()


def test_handlers_are_set_whole_even_if_one_of_them_raises() -> None:
    """A signal that comes while they are set: half of them would be heard by nobody."""
    before = {number: signal.getsignal(number) for number in interrupts.STOPS}
    handler = Interrupts()

    class Sends(dict[int, object]):
        def __getitem__(self, number: int) -> object:
            if number == signal.SIGTERM and signal.getsignal(signal.SIGHUP) is handler:
                signal.raise_signal(signal.SIGHUP)
            return super().__getitem__(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupts.handle(Sends.fromkeys(interrupts.STOPS, handler))
        assert {signal.getsignal(number) for number in interrupts.STOPS} == {handler}
    finally:
        interrupts.handle(before)


@pytest.mark.parametrize(
    ("signals", "times"),
    [
        ([(signal.SIGINT, 0.0)], 1),
        ([(signal.SIGTERM, 0.0), (signal.SIGTERM, 0.01)], 1),  # timeout(1) signals the process and its group
        ([(signal.SIGHUP, 0.0), (signal.SIGHUP, 5.0)], 1),  # the system, then the shell
        ([(signal.SIGINT, 0.0), (signal.SIGINT, 0.5)], 2),
    ],
)
def test_only_a_second_wish_discards_what_is_being_written(
    monkeypatch: pytest.MonkeyPatch, signals: list[tuple[signal.Signals, float]], times: int
) -> None:
    clock = [0.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    interruption = supervise.Interruption()
    for number, clock[0] in signals:
        interruption.note(number, None)
    assert interruption.times == times


def test_a_run_directory_that_is_gone_is_told_and_not_made_again(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", ["program"], {})
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is gone: it was removed or moved"):
        run.begin("nsys", ["nsys"], "nsys")
    run.finish("failed")
    assert not (tmp_path / "run").exists()
