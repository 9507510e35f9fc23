"""`llm-perf profile --resume`: whole results are kept, the others are taken again, and nothing is lost on the way.

With stand-ins for nsys and ncu (see fake_tools). The program notes every time it runs: that is what costs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import fake_tools
import llm_perf_opt
from fake_tools import json_alone as json_alone
from llm_perf_opt.capture.steps.attempt import whole_reports
from llm_perf_opt.cli.main import main
from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.options import default_config
from llm_perf_opt.planning import PlannedCapture
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir import signature
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.manifest import read_manifest

pytestmark = pytest.mark.process

PROGRAM = """\
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write("x")
runs = os.path.getsize(sys.argv[1])
if os.path.exists(f"hang-{runs}"):
    print("up", flush=True)
    time.sleep(600)
"""
# A single capture, "run-0"; without these the plan for this timeline has two.
ONE_CAPTURE = ("--include", "decode*", "--sample", "first")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Fake tools, a program, and a complete run of it; tests work on copies."""
    folder = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch:
        fake_tools.install(folder, patch)
        patch.chdir(folder)
        Path("program.py").write_text(PROGRAM)
        assert (
            main(
                [
                    "profile",
                    "--no-measure",
                    "--out",
                    "complete",
                    *ONE_CAPTURE,
                    "--",
                    sys.executable,
                    "program.py",
                    "ran",
                ]
            )
            == 0
        )
        yield folder


@pytest.fixture
def desk(workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_alone: None) -> Path:
    """The folder of the program, with a run `run` of this test's own; `complete` has all files of a report."""
    fake_tools.install(workshop, monkeypatch)
    monkeypatch.chdir(workshop)
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree("complete", "run")
    Path("program.py").write_text(PROGRAM)
    for file in workshop.glob("hang-*"):
        file.unlink()
    Path("ran").write_text("xx")
    return workshop


def resume(*words: str) -> int:
    return main(["profile", "--resume", "run", *words])


def times_run() -> int:
    return Path("ran").stat().st_size - 2


def manifest() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    return content


def change(**values: Any) -> None:
    Path("run/manifest.json").write_text(json.dumps({**manifest(), **values}))


def statuses() -> list[tuple[str, str]]:
    return [(step["name"], step["status"]) for step in manifest()["steps"]]


WHOLE = [("nsys", "captured"), ("export", "done"), ("stats", "done"), ("ncu", "captured"), ("raw", "done")]


def assert_complete() -> None:
    assert manifest()["state"] == "done"
    assert sorted(statuses()) == sorted(WHOLE)
    assert Path("run/ncu/raw.csv").read_bytes() == Path("complete/ncu/raw.csv").read_bytes()
    assert not list(Path("run").glob("earlier-*"))
    report = llm_perf_opt.load("run")
    assert not [d for d in report.diagnostics if d.severity == "error"]
    assert report.coverage is not None
    assert report.coverage.signatures_matched == report.coverage.signatures


@pytest.mark.process
def test_a_complete_run_has_nothing_to_do_and_gets_its_report_again(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in ("NSYS", "NCU"):  # no tool is needed for nothing
        monkeypatch.setenv(f"LLM_PERF_{tool}", "/nowhere")
    Path("run/report.json").unlink()
    before = manifest()
    assert resume() == 0
    assert "nothing to do" in capsys.readouterr().err
    assert times_run() == 0
    assert manifest() == before
    assert_complete()


def test_what_a_killed_process_had_half_written_is_gone_also_where_nothing_is_missing(desk: Path) -> None:
    ours = ["run/.report.json.4711.tmp", "run/.stakeholder_summary.md.1.tmp", "run/pictures/.stages.svg.2.tmp"]
    ours += ["run/ncu/.raw.csv.tmp", "run/ncu/.raw-run-2.csv.tmp", "run/nsys/.run.sqlite.tmp"]
    theirs = ["run/.notes.txt.3.tmp", "run/.report.json.tmp"]
    for name in (*ours, *theirs):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("half")
    assert resume() == 0
    assert [name for name in (*ours, *theirs) if Path(name).exists()] == theirs


def damage_sqlite() -> None:
    file = Path("run/nsys/run.sqlite")
    file.write_bytes(file.read_bytes()[:-4096])


def killed_while(step: str) -> None:
    """As `kill -9` leaves it: the step is running, later ones never began."""
    names = [name for name, _ in WHOLE]
    steps = manifest()["steps"][: names.index(step) + 1]
    steps[-1] |= {"status": "running", "files": {}, "exit_code": None, "seconds": None}
    captures = manifest()["captures"] if names.index(step) >= names.index("ncu") else None
    if step == "raw":
        os.truncate("run/ncu/raw.csv", 1000)
    change(state="running", finished_at=None, steps=steps, captures=captures, pid=2**22 + 1)
    sign_again()


def sign_again() -> None:
    content = manifest()
    orders = {name: content[name] for name in ("settings", "folder", "captures")}
    change(signature=signature.sign({**orders, "command": content["workload"]}))


@pytest.mark.parametrize(
    ("trouble", "times", "told"),
    [
        (damage_sqlite, 0, "the SQLite export of the timeline"),
        (lambda: [Path(f"run/nsys/run.{e}").unlink() for e in ("sqlite", "nsys-rep")], 1, "the timeline"),
        (lambda: os.truncate("run/ncu/run-0.ncu-rep", 3000), 1, "the counters 'run-0'"),
        (lambda: killed_while("nsys"), 2, "the timeline, the counters"),
        (lambda: killed_while("export"), 1, "the SQLite export of the timeline, the counters"),
        (lambda: killed_while("ncu"), 1, "the counters 'run-0'"),
        (lambda: killed_while("raw"), 0, "the counters of run-0.ncu-rep as a table"),
    ],
    ids=["sqlite cut", "timeline gone", "report cut"]
    + [f"killed in {step}" for step in ("nsys", "export", "ncu", "raw")],
)
def test_only_what_is_missing_is_taken(
    desk: Path, capsys: pytest.CaptureFixture[str], trouble: Any, times: int, told: str
) -> None:
    trouble()
    assert resume() == 0
    assert told in capsys.readouterr().err
    assert times_run() == times
    assert_complete()


def test_a_damaged_report_of_the_right_size_is_taken_again(desk: Path) -> None:
    (report,) = Path("run/ncu").glob("*.ncu-rep")
    report.write_bytes(b"\0" * report.stat().st_size)
    assert resume() == 0
    assert times_run() == 1
    assert_complete()


@pytest.mark.parametrize("form", ["xz", "gz"])
def test_a_packed_recording_that_is_damaged_is_taken_again(form: str, desk: Path) -> None:
    """Of the same length as before, it was thought to be whole, and the report had no timeline."""
    assert main(["runs", "compress", "--yes", "--format", form, "run"]) == 0
    assert resume() == 0
    assert times_run() == 0
    file = Path("run/nsys", f"run.sqlite.{form}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    assert resume() == 0
    assert times_run() == 0  # nsys's own recording is whole, and packed
    assert llm_perf_opt.load("run").main_scope.regions
    assert read_recording(Path("run/nsys/run.sqlite"))
    assert sorted(path.name for path in Path("run/nsys").glob("run.*")) == ["run.nsys-rep", "run.sqlite"]


def test_counters_that_failed_are_taken_when_the_cause_is_gone(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree("run")
    monkeypatch.setenv("FAKE_NCU", "ncu-missing-slash")
    assert (
        main(["profile", "--no-measure", "--out", "run", *ONE_CAPTURE, "--", sys.executable, "program.py", "ran"]) == 5
    )
    monkeypatch.delenv("FAKE_NCU")
    ran = times_run()
    assert resume() == 0
    assert times_run() == ran + 1
    assert_complete()
    assert [step["name"] for step in manifest()["earlier_steps"]] == ["ncu"]
    assert manifest()["resumed"][0]["took"] == ["the counters 'run-0'"]


def test_a_second_failure_loses_nothing_of_the_first_attempt(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The counters are there in part, as after Ctrl-C; taking them again gives nothing at all.
    steps = manifest()["steps"]
    next(step for step in steps if step["name"] == "ncu")["status"] = "partial"
    change(steps=steps, state="interrupted")
    monkeypatch.setenv("FAKE_NCU", "ncu-missing-slash")
    assert resume() == 5
    assert Path("run/earlier-1/ncu/run-0.ncu-rep").is_file()
    report = llm_perf_opt.load("run")
    assert report.coverage is not None
    assert report.coverage.signatures_matched
    monkeypatch.delenv("FAKE_NCU")
    assert resume() == 0
    assert_complete()


def test_a_run_that_was_killed_under_ncu_keeps_its_timeline(desk: Path) -> None:
    shutil.rmtree("run")
    Path("ran").unlink()
    Path("hang-2").touch()
    code = "from llm_perf_opt.cli.main import entry; entry()"
    words = ["profile", "--no-measure", "--out", "run", "--", sys.executable, "program.py", "ran"]
    ours = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL, env={**os.environ, "LLM_PERF_GRACE_S": "2"}
    )
    until = time.monotonic() + 60
    while not Path("ran").exists() or Path("ran").stat().st_size < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    ours.send_signal(signal.SIGKILL)
    ours.wait()
    Path("hang-2").unlink()
    timeline = Path("run/nsys/run.sqlite").stat()
    assert resume() == 0  # it waits for what the killed run had started
    captures = len(manifest()["captures"])
    assert Path("ran").stat().st_size == 2 + captures  # once under nsys, killed under ncu, then each capture
    assert Path("run/nsys/run.sqlite").stat().st_mtime_ns == timeline.st_mtime_ns
    assert statuses() == [*WHOLE[:3], *(WHOLE[-2:] * captures)]
    assert manifest()["state"] == "done"


def test_a_run_that_was_killed_before_it_had_any_folder_is_taken_as_a_whole(desk: Path) -> None:
    """Its manifest is the first thing there is."""
    first = manifest() | {"steps": [], "captures": None, "state": "running", "files": {}}
    for folder in (desk / "run").iterdir():
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    Path("run/manifest.json").write_text(json.dumps(first), encoding="utf-8")
    sign_again()
    assert resume() == 0
    assert statuses() == WHOLE


def test_of_captures_taken_instead_of_one_all_have_to_be_there(desk: Path) -> None:
    """One capture with windows stood for two; killed after the first of those that were taken instead, the second is missing."""
    first, second = PlannedCapture("run-1", NcuOptions()), PlannedCapture("run-2", NcuOptions())
    both = PlannedCapture("run", NcuOptions(), windows=CaptureWindows({("", "x"): (1,)}), alternatives=(first, second))
    begun = read_manifest(Path("run"))
    (done,) = [step for step in begun.steps if step.name == "ncu"]
    report = next(Path("run/ncu").glob("*.ncu-rep"))
    size = report.stat().st_size

    def whole(*alternatives: str) -> int:
        steps = []
        for number, other in enumerate(alternatives):
            shutil.copy(report, f"run/ncu/{number}.ncu-rep")  # what it is called does not matter
            mine = {
                "capture": str(number),
                "planned": "run",
                "alternative": other,
                "files": {f"{number}.ncu-rep": size},
            }
            steps.append(attrs.evolve(done, **mine))
        return len(whole_reports(Path("run"), both, attrs.evolve(begun, steps=steps)))

    assert whole("run-1") == 0
    assert whole("run-1", "run-2") == 2
    assert whole("") == 1


def test_another_replay_mode_that_worked_is_as_good(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree("run")
    monkeypatch.setenv("FAKE_NCU", "range=ncu-range-transformer,app-range=ok")
    words = ["--replay-mode", "range", "--include", "decode", "--", sys.executable, "program.py", "ran"]
    assert main(["profile", "--no-measure", "--out", "run", *words]) == 0
    ran = times_run()
    assert resume() == 0
    assert times_run() == ran
    assert llm_perf_opt.load("run").scope("aggregate").regions[0].key == "LLM@decode"
    Path("run/ncu/run-app-range.ncu-rep").unlink()
    assert resume() == 0
    assert times_run() == ran + 2  # range replay is tried first again, for the program may allow it now
    assert Path("run/ncu/run-app-range.ncu-rep").is_file()


def test_a_verification_that_is_missing_is_taken(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("run")
    assert main(["profile", "--no-measure", "--verify", "--out", "run", "--", sys.executable, "program.py", "ran"]) == 0
    (report,) = Path("run/ncu").glob("verify*.ncu-rep")
    report.unlink()
    ran = times_run()
    assert resume() == 0
    assert "still to take: the verification" in capsys.readouterr().err
    assert times_run() == ran + 1
    assert report.is_file()
    assert [d.code for d in llm_perf_opt.load("run").diagnostics if d.severity == "error"] == []


def test_what_has_changed_meanwhile_is_said(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(Path("run/ncu").glob("*.ncu-rep")).unlink()
    Path("program.py").write_text(f"{PROGRAM}\n# faster now\n")
    change(tools={"nsys": "2024.1.1 (/opt/nsys)", "ncu": "2024.1.1 (/opt/ncu)"}, llm_perf_opt="0.0.1")
    assert resume() == 0
    (told,) = [d for d in llm_perf_opt.load("run").diagnostics if d.code == "RESUMED_AFTER_CHANGES"]
    assert "program.py has other content" in told.message
    assert "ncu is 2025.3.1" in told.message
    assert "instead of 2024.1.1" in told.message
    assert "instead of 0.0.1" in told.message
    assert "nsys" not in told.message  # it was not needed


def test_the_command_of_an_untrusted_run_is_not_started(
    desk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(Path("run/ncu").glob("*.ncu-rep")).unlink()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))
        assert resume() == 2
        told = capsys.readouterr().err
        assert "not made here by you" in told
        assert "llm-perf report run" in told
    harmless = manifest()
    for changed in (
        {"workload": [sys.executable, "-c", "open('owned', 'w')"]},
        {"settings": {**harmless["settings"], "annotate": "modules"}},
        {"folder": str(tmp_path)},
        {"captures": [{**harmless["captures"][0], "expressions": ["other/"]}]},
        {"signature": ""},
    ):
        change(**{**harmless, **changed})
        assert resume() == 2
    assert times_run() == 0
    assert not Path("owned").exists()
    change(**harmless)
    assert resume() == 0
    assert times_run() == 1


def test_a_key_is_private_and_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = signature.sign({"a": 1})
    assert signature.key_file().stat().st_mode & 0o777 == 0o600
    assert signature.sign({"a": 1}) == made
    assert signature.is_signed({"a": 1}, made)
    assert not signature.is_signed({"a": 2}, made)
    assert not signature.is_signed({"a": 1}, "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert signature.sign({"a": 1}) == ""
    assert not signature.is_signed({"a": 1}, made)


@pytest.mark.process
def test_a_key_that_is_none_is_made_anew_and_a_pipe_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    signature.key_file().parent.mkdir()
    signature.key_file().write_bytes(b"x" * 1000)
    made = signature.sign({"a": 1})
    assert signature.is_signed({"a": 1}, made)
    signature.key_file().unlink()
    os.mkfifo(signature.key_file())
    # In a process of its own, which can be ended if it waits after all.
    code = "from llm_perf_opt.rundir import signature; print([signature.sign({}), signature.is_signed({}, 'x')])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "['', False]\n"


def test_a_secret_in_the_command_has_to_be_given_again(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("run")
    work = [sys.executable, "program.py", "ran", "--token", "correct-horse-battery"]
    assert main(["profile", "--no-measure", "--no-counters", "--out", "run", "--", *work]) == 0
    for file in Path("run/nsys").glob("run.*"):
        file.unlink()
    ran = times_run()
    assert resume() == 2
    assert "may be a secret" in capsys.readouterr().err
    assert resume("--", *work[:-1]) == 2
    assert "not that of the run" in capsys.readouterr().err
    assert times_run() == ran
    assert resume("--", *work) == 0
    assert times_run() == ran + 1
    assert "correct-horse" not in Path("run/manifest.json").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--include", "decode*"], "--include cannot be given"),
        (["--out", "elsewhere"], "--out cannot be given"),
        (["--no-counters"], "--no-counters cannot be given"),
    ],
)
def test_options_come_from_the_run(desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert resume(*words) == 2
    assert told in capsys.readouterr().err


def test_a_limit_may_be_another_one(desk: Path) -> None:
    shutil.rmtree("run")
    Path("ran").unlink()
    Path("hang-1").touch()
    assert (
        main(
            [
                "profile",
                "--no-measure",
                "--timeout",
                "2",
                "--no-counters",
                "--out",
                "run",
                "--",
                sys.executable,
                "program.py",
                "ran",
            ]
        )
        == 124
    )
    assert statuses()[0] == ("nsys", "partial")
    assert resume("--timeout", "60") == 0  # the second time it does not hang
    assert statuses()[0] == ("nsys", "captured")


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (lambda run: (run / "manifest.json").write_text(""), "damaged"),
        (lambda run: (run / "manifest.json").write_text("[" * 100_000), "damaged"),
        (lambda run: (run / "manifest.json").write_text('{"steps": 1}'), "damaged"),
        (lambda run: (run / "manifest.json").unlink(), "not a run directory"),
        (lambda run: change(made_by="plan"), "only profiling runs can"),
        (lambda run: change(made_by=""), "older version"),
        (lambda run: (change(folder="/nowhere/at/all"), sign_again()), "is gone: /nowhere/at/all"),
    ],
)
def test_runs_that_cannot_be_resumed_say_why(
    desk: Path, capsys: pytest.CaptureFixture[str], trouble: Any, told: str
) -> None:
    trouble(Path("run"))
    assert resume() == 2
    assert told in capsys.readouterr().err
    assert not run_lock.is_held(Path("run"))


def test_nobody_works_on_a_run_that_goes_on(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = run_lock.take(Path("run"))
    assert run_lock.is_held(Path("run"))
    assert resume() == 2
    assert "in use" in capsys.readouterr().err
    run_lock.release(lock)
    assert not run_lock.is_held(Path("run"))
    assert resume() == 0


def test_a_run_of_the_hydra_runner(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree("run")
    command = f"pipeline.workload.command=[{sys.executable},program.py,ran]"
    module = "llm_perf_opt.runners.deep_profile_runner"
    words = [sys.executable, "-m", module, command, "hydra.run.dir=run", "nvtx.include=decode*"]
    monkeypatch.setenv("FAKE_NCU", "ncu-missing-slash")
    assert subprocess.run(words, capture_output=True).returncode == 5
    monkeypatch.delenv("FAKE_NCU")
    ran = times_run()
    assert resume("--json") == 0
    assert times_run() == ran + 1
    assert_complete()
    assert llm_perf_opt.load("run").scope("aggregate").regions[0].key == "LLM@decode"


NOT_A_NUMBER = ["3", True, 0, -1, 2.5, 1e300, [3], {"a": 3}, None]
NOT_A_WORD = [3, True, ["x"], {"a": {"b": "x"}}, "no such value"]
NOT_A_LIST = ["decode*", {"a": 1}, [1], [["x"]], [None], None, ["a\0b"]]


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (("launches", "annotate_depth", "top"), NOT_A_NUMBER),
        (("level", "annotate", "attribution", "sample", "max_size", "budget"), NOT_A_WORD),
        (("no_counters", "no_windows", "verify", "no_fallback", "strict"), ["true", 1, 0.0, [], {}, None]),
        (("include", "exclude", "kernel_include", "kernel_exclude", "hardware"), NOT_A_LIST),
        (("timeout",), ["60", True, 0, -1, [1], {}, -1e300]),
        (("kernel",), [1, True, 1e300, ["x"], {}, "a\0b", "half of a character: \ud800"]),
        (("replay_mode",), ["", 1, "no such mode", ["kernel"]]),
        (("max_size",), ["9" * 400, "9" * 400 + "GB"]),
        (("launch",), [1]),  # of which kernel?
    ],
    ids=lambda names: names[0] if isinstance(names, tuple) else "",
)
def test_options_that_nobody_can_have_given_are_told_and_nothing_is_started(
    desk: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...], values: list[Any]
) -> None:
    next(Path("run/ncu").glob("*.ncu-rep")).unlink()
    settings = manifest()["settings"]
    for name, value in ((name, value) for name in names for value in values):
        change(settings={**settings, name: value})
        sign_again()
        before = Path("run/manifest.json").read_bytes()
        assert resume() == 2, (name, value)
        told = capsys.readouterr().err
        assert told.startswith("llm-perf: "), (name, value)
        assert "→" in told
        assert Path("run/manifest.json").read_bytes() == before
        assert not run_lock.is_held(Path("run"))
    assert times_run() == 0


def test_what_can_have_been_given_is_taken_over(desk: Path) -> None:
    next(Path("run/ncu").glob("*.ncu-rep")).unlink()
    # The first is one of another version, which this one does not know.
    given = {"no_such_option": {}, "timeout": 60.0, "launches": 2, "kernel_exclude": ["*nothing*"], "top": 10**30}
    change(settings={**manifest()["settings"], **given})
    sign_again()
    assert resume() == 0
    assert times_run() == 1
    assert_complete()


def deep_run(**changed: Any) -> None:
    """Make `run` one of the Hydra runner; values by key, as in `pipeline.ncu.launches`."""
    config = default_config()
    config["pipeline"]["workload"]["command"] = manifest()["workload"]
    for key, value in changed.items():
        *path, last = key.split(".")
        node = config
        for name in path:
            node = node[name]
        node[last] = value
    change(made_by="deep_profile_runner", settings=config)
    sign_again()


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("pipeline.ncu.launches", ["3", True, 0, -1, 2.5, [3], {"a": 3}, None]),
        ("pipeline.ncu.sample", [["x"], {"a": {"b": "x"}}, None, 3, "every:x"]),
        ("pipeline.ncu.level", [3, ["x"], {}, None, "no such level"]),
        ("pipeline.ncu.timeout_s", ["60", True, 0, -1, [1], {}]),
        ("pipeline.ncu.windows", ["true", 1, [], {}, None]),
        ("pipeline.ncu", [None, [], "x", {}]),
        ("pipeline", [None, [], 1]),
        ("pipeline.nsys.max_size", ["9" * 400, [1], {}, "no size"]),
        ("run.top_n_kernels", ["3", True, -1, 1.5, None, []]),
    ],
)
def test_a_configuration_that_nobody_can_have_given_is_told(
    desk: Path, capsys: pytest.CaptureFixture[str], key: str, values: list[Any]
) -> None:
    next(Path("run/ncu").glob("*.ncu-rep")).unlink()
    for value in values:
        deep_run(**{key: value})
        assert resume() == 2, value
        assert capsys.readouterr().err.startswith("llm-perf: ")
    assert times_run() == 0


@pytest.mark.process
def test_an_infinite_number_of_a_model_does_not_make_the_manifest_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """State-space models have one in their configuration; JSON cannot hold it, so it cannot be resumed."""
    settings = {"model": {"config": {"time_step_limit": [0.0, float("inf")], "eps": float("nan")}}, "repeats": 3}
    made = RunDirectory.create(tmp_path / "new", ["program"], settings, made_by="deep_profile_runner")
    made.finish("failed")
    made.release()
    assert read_manifest(tmp_path / "new").is_ours
    assert ".inf" in (tmp_path / "new" / "config.yaml").read_text()
    assert main(["profile", "--resume", str(tmp_path / "new")]) == 2
    assert "an infinite number in model.config.time_step_limit" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a\0b"])
def test_captures_of_an_untrusted_run_are_not_written_outside_of_it(name: str, desk: Path) -> None:
    for report in Path("run/ncu").glob("*.ncu-rep"):
        report.unlink()
    before = {*desk.iterdir(), *desk.parent.iterdir()}
    (order,) = manifest()["captures"]
    change(captures=[{**order, "name": name}], state="interrupted")
    sign_again()
    assert resume() == 0
    assert {*desk.iterdir(), *desk.parent.iterdir()} == before
    assert_complete()  # planned anew


@pytest.mark.parametrize("command", [["a\0b"], ["\ud800"], [""], []])
def test_a_command_that_nobody_can_type_is_told(
    command: list[str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("run/nsys")
    change(workload=command, state="interrupted")
    sign_again()
    assert resume() == 2
    assert capsys.readouterr().err.startswith("llm-perf: ")
    assert times_run() == 0


def test_a_run_with_a_manifest_of_the_version_before_keeps_its_timeline(desk: Path) -> None:
    """Its captures are described in another way: they are planned and taken anew, and nothing else is."""
    specs = [{k: v for k, v in spec.items() if k not in ("windows", "alternatives")} for spec in manifest()["captures"]]
    new = ("planned", "alternative", "replay_mode")
    steps = [{k: v for k, v in step.items() if k not in new} for step in manifest()["steps"]]
    change(captures=specs, steps=steps, state="interrupted")
    sign_again()
    assert main(["runs", "show", "run"]) == 0
    assert main(["report", "run", "--out", "again"]) == 0
    timeline = Path("run/nsys/run.sqlite").stat().st_mtime_ns
    assert resume() == 0
    assert times_run() == 1
    assert Path("run/nsys/run.sqlite").stat().st_mtime_ns == timeline
    assert_complete()
