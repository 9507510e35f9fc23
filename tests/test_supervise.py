"""Nothing outlives a run: not after its end, a time-out, an interrupt, or our own death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import UserError
from llm_perf_opt.process import supervise
from llm_perf_opt.process.supervise import Ended, run_supervised
from llm_perf_opt.rundir.command_lines import clean_argv
from llm_perf_opt.rundir.secrets import kept_environment

pytestmark = pytest.mark.process

# A program that ignores polite requests and hides a child in a session of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)", sys.argv[1]])
print("ready", flush=True)
time.sleep(600)
"""

# What nsys and ncu do when interrupted: write what they have, then end.
POLITE = """
import pathlib, signal, sys, time
def stop(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).write_text("report")
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(600)
"""


def alive(mark: str) -> list[str]:
    """Processes with `mark` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                found.append(entry.name)
    return found


def wait_for(log: Path, text: str) -> None:
    until = time.monotonic() + 20
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < until, "the program did not start"
        time.sleep(0.02)


def until_timed_out(argv: list[str], log: Path, **more: Any) -> Ended:
    """Run a program that never ends until it is timed out; longer where it had not even said that it is ready."""
    for seconds in (0.5, 2.0, 8.0, 32.0):
        ended = run_supervised(argv, log=log, timeout_s=seconds, **more)
        assert ended.timed_out
        if "ready" in log.read_text():
            return ended
    pytest.fail("the program did not start")


def test_the_exit_code_and_the_output_of_the_command(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "log"
    code = "print('one'); print('two\\x00\\xff', flush=True); raise SystemExit(3)"
    ended = run_supervised([sys.executable, "-c", code], log=log, follow={log: lines.append})
    assert ended.exit_code == 3
    assert lines[0] == "one"
    assert not ended.timed_out


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    assert run_supervised(["no-such-program"], log=tmp_path / "log").exit_code == 127
    assert "No such file" in (tmp_path / "log").read_text()


def test_a_crash_is_told_apart_from_an_exit_code(tmp_path: Path) -> None:
    ended = run_supervised([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], log=tmp_path / "log")
    assert ended.exit_code == -signal.SIGSEGV
    ended = run_supervised([sys.executable, "-c", "raise SystemExit(139)"], log=tmp_path / "log")
    assert ended.exit_code == 139


def test_a_profiler_that_was_killed_is_not_one_that_failed(tmp_path: Path) -> None:
    ended = run_supervised([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], log=tmp_path / "log")
    assert ended.exit_code == -signal.SIGKILL


def test_of_a_long_log_beginning_and_end_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOG_BYTES", 3 << 20)
    log = tmp_path / "log"
    log.write_bytes(b"from before\n")
    code = "print(*(f'line {number:09}' for number in range(500_000)), sep='\\n')"
    assert run_supervised([sys.executable, "-c", code], log=log).exit_code == 0
    lines = log.read_bytes().splitlines()
    assert lines[:2] == [b"from before", b"line 000000000"]
    assert lines[-1] == b"line 000499999"
    (note,) = [line for line in lines if b"left out" in line]
    assert int(note.split()[1].replace(b",", b"")) + log.stat().st_size - len(note) - 2 - 12 == 7_500_000
    assert log.stat().st_size < (3 << 20) + 200


def test_a_log_that_cannot_be_written_does_not_fail_the_program(tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = "import sys; print('x' * 100_000, flush=True); open(sys.argv[1], 'w').close()"
    ended = run_supervised([sys.executable, "-c", code, str(done)], log=Path("/dev/full"))
    assert ended.exit_code == 0
    assert done.exists()


def test_a_command_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be started"):
        run_supervised([sys.executable, "-c", "pass"], log=tmp_path / "no" / "such" / "folder")


def test_what_is_left_over_is_ended(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]])"
    )
    ended = run_supervised([sys.executable, "-c", code, str(tmp_path)], log=tmp_path / "log")
    assert ended.exit_code == 0
    assert not alive(str(tmp_path))


def test_a_time_out_ends_even_those_who_do_not_listen(tmp_path: Path) -> None:
    until_timed_out([sys.executable, "-c", STUBBORN, str(tmp_path)], tmp_path / "log", grace_s=0.2)
    assert not alive(str(tmp_path))


def test_a_profiler_may_finish_its_report_after_a_time_out(tmp_path: Path) -> None:
    report = tmp_path / "report"
    ended = until_timed_out([sys.executable, "-c", POLITE, str(report)], tmp_path / "log")
    assert (ended.exit_code, report.read_text()) == (130, "report")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_tree_and_keeps_the_report(tmp_path: Path, number: signal.Signals) -> None:
    report, log = tmp_path / "report", tmp_path / "log"

    def interrupt() -> None:
        wait_for(log, "ready")
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    ended = run_supervised([sys.executable, "-c", POLITE, str(report)], log=log)
    assert ended.interrupted
    assert report.read_text() == "report"
    assert not alive(str(report))


def test_the_program_is_interrupted_before_its_profiler(tmp_path: Path) -> None:
    """nsys keeps the kernels only if the program ends by itself."""
    profiler = """
import pathlib, signal, subprocess, sys
signal.signal(signal.SIGINT, lambda *_: pathlib.Path(sys.argv[1], "profiler interrupted").touch())
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1], "pid").write_text(str(child.pid))
print("ready", flush=True)
child.wait()
pathlib.Path(sys.argv[1], "report").write_text("whole")
"""
    until_timed_out([sys.executable, "-c", profiler, str(tmp_path)], tmp_path / "log", program_pid=tmp_path / "pid")
    assert (tmp_path / "report").read_text() == "whole"
    assert not (tmp_path / "profiler interrupted").exists()


def test_our_own_death_ends_the_tree_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys; from pathlib import Path; from llm_perf_opt.process.supervise import run_supervised;"
        "run_supervised([sys.executable, '-c', sys.argv[1], sys.argv[2]], log=Path(sys.argv[3]), grace_s=0.2)"
    )
    ours = subprocess.Popen([sys.executable, "-c", code, STUBBORN, str(tmp_path), str(log)])
    wait_for(log, "ready")
    ours.kill()
    ours.wait()
    until = time.monotonic() + 30
    while alive(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(str(tmp_path))


# A server whose main thread ends when interrupted, and waits for another that never does.
WAITING = """
import atexit, pathlib, sys, threading, time
atexit.register(lambda: pathlib.Path(sys.argv[1]).write_text("times"))
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_server_that_waits_for_a_thread_is_interrupted_again(tmp_path: Path) -> None:
    log, written = tmp_path / "log", tmp_path / "times"
    run_supervised(
        [sys.executable, "-c", WAITING, str(written)],
        log=log,
        is_done=lambda: "ready" in log.read_text(),
        again_s=0.5,
        grace_s=30,
    )
    assert written.read_text() == "times"


DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path(sys.argv[1]).write_text("times") and 0))
print("ready", flush=True)
time.sleep(600)
"""


def test_a_server_that_hears_of_no_interrupt_is_told_to_end(tmp_path: Path) -> None:
    log, written, before = tmp_path / "log", tmp_path / "times", list[str]()
    ended = run_supervised(
        [sys.executable, "-c", DEAF, str(written)],
        log=log,
        is_done=lambda: "ready" in log.read_text(),
        before_end=lambda: before.append("ready"),
        again_s=0.5,
        grace_s=30,
    )
    assert (written.read_text(), before) == ("times", ["ready"])
    assert ended.seconds < 20


def test_a_recording_that_grows_too_large_is_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    ended = run_supervised(
        [sys.executable, "-c", POLITE, str(tmp_path / "report")],
        log=tmp_path / "log",
        too_large=lambda _: time.monotonic() - started > 1.0,
    )
    assert ended.too_large


def test_secrets_do_not_get_into_files() -> None:
    kept = kept_environment(
        {
            "HF_TOKEN": "abc",
            "AWS_SECRET_ACCESS_KEY": "abc",
            "MY_PASSWORD": "abc",
            "URL": "https://me:pass@host/x",
            "X": "hf_abcdefghijklmnop",
            "PATH": "/usr/bin",
            "CUDA_VISIBLE_DEVICES": "0",
        }
    )
    assert kept == {"PATH": "/usr/bin", "CUDA_VISIBLE_DEVICES": "0"}
    assert clean_argv(["run", "--token", "abc", "--api-key=abc", "--lr=3", "hf_abcdefghijklmnop", "model"]) == [
        "run",
        "--token",
        "(hidden: $TOKEN)",
        "--api-key=(hidden: $API_KEY)",
        "--lr=3",
        "(hidden: $ARGUMENT_5)",
        "model",
    ]
