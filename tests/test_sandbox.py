"""Whatever a file makes its reader do, the program that asked goes on and says what happened.

Each case of the first part puts a job of ours in the process, which does what a hostile file makes native code do.
Those with NVIDIA's reader put a stand-in for the library in its way: reports that crash it differ from version to
version.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import plain_bytes, recording
from llm_perf_opt.errors import ExitCode, MissingTool, UnreadableInput, UserError
from llm_perf_opt.readers import handover, ncu_rep, sandbox
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.readers.sandbox import Limits, Notes
from llm_perf_opt.regions.columns import Action, CounterSet, Timeline

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("recordings_are_read_apart")]
SMALL = Limits(1000)


def do(what: str, *, notes: Notes) -> Any:
    """The job: something that a reader might do."""
    names: dict[str, Any] = {"notes": notes, "os": os, "signal": signal, "time": time, "np": np}
    exec(what, names)
    return names.get("answer")


def refusal(what: str, limits: Limits = SMALL) -> str:
    with pytest.raises(UnreadableInput) as told:
        sandbox.call(f"{__name__}:do", [what], "x.sqlite", limits)
    assert told.value.fix
    assert told.value.code == ExitCode.BAD_INPUT
    return told.value.message


@pytest.fixture(params=["fork", "new interpreter"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where another thread runs, a new interpreter is started."""
    if request.param == "fork":
        yield
        return
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    yield
    over.set()
    other.join()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("os.abort()", "crashed on it (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed on it (SIGSEGV)"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "truncated or rewritten while it was read"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "out of memory"),
        ("os._exit(3)", "exit code 3"),
        ("raise SystemExit(3)", "its reader failed (SystemExit"),
        ("answer = bytearray(1 << 32)", "more memory than a recording of its size needs"),
        ("answer = np.zeros(1 << 24, dtype=np.int64)", "more memory than a recording of its size needs"),  # 128 MB
        ("open('/no/such/file')", "cannot be read: No such file"),
        ("answer = object()", "its reader failed"),
        (
            "[os.write(fd, b'[5]\\n') for fd in range(3, 1024) if os.path.exists(f'/proc/self/fd/{fd}')]",
            "makes no sense",
        ),
        ("[os.close(fd) for fd in range(3, 1024) if os.path.exists(f'/proc/self/fd/{fd}')]\ntime.sleep(99)", "killed"),
    ],
)
def test_a_reader_that_dies_is_an_error_with_its_cause(deed: str, told: str, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    assert told in refusal(deed)
    assert list(tmp_path.iterdir()) == []  # no core file, nothing else


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("while True: pass", "takes more than"),
        ("while True: time.sleep(1)", "did not answer"),
        ("while True: notes('x' * 1000, 1)", "without an end"),
    ],
)
def test_a_reader_that_never_returns_is_ended(deed: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_SECONDS", 0.5)
    monkeypatch.setattr(sandbox, "_MOST_NOTES", 1 << 20)
    pids: list[int] = []
    with pytest.raises(UnreadableInput) as ended:
        sandbox.call(
            f"{__name__}:do",
            [f"notes('pid', os.getpid())\n{deed}"],
            "x",
            SMALL,
            lambda name, value: pids.append(value) if name == "pid" else None,
        )
    assert told in ended.value.message
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_nothing_outlives_the_program_that_asked(tmp_path: Path) -> None:
    """Not even SIGKILL: there is nobody left who could end the reader."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from llm_perf_opt.readers import sandbox\n"
        "said = lambda name, value: print(value, flush=True)\n"
        "sandbox.call('test_sandbox:do', ['notes(\"pid\", os.getpid())\\nwhile True: pass'], 'x', sandbox.Limits(10**9), said)\n"
    )
    for number in (signal.SIGTERM, signal.SIGKILL):
        argv = [sys.executable, "-c", program, str(Path(__file__).parent)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as asking:
            assert asking.stdout is not None
            reader = int(asking.stdout.readline())
            asking.send_signal(number)
            asking.wait(10)
        until = time.monotonic() + 5
        while Path(f"/proc/{reader}").exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert not Path(f"/proc/{reader}").exists()


def test_an_interrupt_ends_the_reader_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def interrupted(name: str, value: int) -> None:
        pids.append(value)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.call(f"{__name__}:do", ["notes('pid', os.getpid())\nwhile True: pass"], "x", SMALL, interrupted)
    assert not Path(f"/proc/{pids[0]}").exists()


@pytest.mark.usefixtures("either_way")
def test_what_was_begun_before_is_not_begun_again(tmp_path: Path) -> None:
    """The answer is that of the process that was begun; other words, or the same a second time, begin another."""
    job, begun = f"{__name__}:do", tmp_path / "begun"
    begun.touch()
    deed = f"file = open({str(begun)!r}, 'a')\nfile.write(str(os.getpid()) + '\\n')\nfile.close()\nanswer = os.getpid()"
    sandbox.prefetch(job, [deed], SMALL)
    until = time.monotonic() + 20
    while not begun.read_text().endswith("\n") and time.monotonic() < until:
        time.sleep(0.01)
    asked = [sandbox.call(job, [deed], "x", SMALL) for _ in range(2)]
    asked.append(sandbox.call(job, [deed + "\n"], "x", SMALL))
    assert len(set(asked)) == 3
    assert begun.read_text().split() == [str(pid) for pid in asked]
    for pid in asked:
        assert not Path(f"/proc/{pid}").exists()


def test_a_report_reads_its_timeline_once_and_in_one_process(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.sqlite"
    timeline.write_bytes(plain_bytes(recording("nsys-2025.3.1-h200-train.sqlite")))
    program = "import os\nfork, forks = os.fork, []\n"
    program += "os.fork = lambda: forks.append(fork()) or forks[-1]\n"
    program += (
        "from llm_perf_opt.cli.main import main\ncode = main()\nassert len(forks) == 1, forks\nraise SystemExit(code)"
    )
    words = ["report", str(timeline), "--format", "json", "--out", str(tmp_path / "out"), "--quiet"]
    subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=60)
    assert (tmp_path / "out" / "report.json").exists()


def test_the_reader_has_nothing_of_the_program_that_asked(tmp_path: Path) -> None:
    """No open file, hence no lock of a run; nothing it prints is seen."""
    with (tmp_path / "held").open("w") as held:
        deed = f"print('x')\ntry:\n    os.fstat({held.fileno()})\nexcept OSError:\n    answer = 'closed'"
        assert sandbox.call(f"{__name__}:do", [deed], "x", SMALL) == "closed"


@pytest.mark.usefixtures("either_way")
def test_errors_are_those_that_the_reader_raised() -> None:
    for kind in ("UserError", "UnreadableInput", "MissingTool"):
        deed = f"from llm_perf_opt.errors import {kind}\nraise {kind}('cause', 'fix')"
        with pytest.raises(UserError) as told:
            sandbox.call(f"{__name__}:do", [deed], "x", SMALL)
        assert type(told.value).__name__ == kind
        assert (told.value.message, told.value.fix) == ("cause", "fix")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", ["nsys-*-graph_node.sqlite", "kineto-*.json.gz", "ncu-*-basic-raw-base.csv"])
def test_what_comes_back_is_what_was_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = read_recording(recording(name), launch_config=True, streams=True)
    monkeypatch.undo()
    assert same(apart, read_recording(recording(name), launch_config=True, streams=True))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.flags.writeable and np.array_equal(one, other))
    if hasattr(one, "__attrs_attrs__"):
        names = [field.name for field in one.__attrs_attrs__]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_names_of_any_kind_come_back(tmp_path: Path) -> None:
    odd = {"@": ["@"], "a": {1: "x", "\ud800": (1, 2.5, None)}, "b": [True, float("inf")]}
    value = CounterSet("s", "ncu-csv", [Action("kernel", "@", push_pop={"@": ["x"]}, grid=(1, 2, 3))], environment=odd)
    with (tmp_path / "answer").open("w+b") as file:
        place = handover.write(value, file)
        assert same(handover.read(file.fileno(), *place), value)


@pytest.mark.parametrize(
    "description",
    [
        '{"@": "array", "dtype": "int64", "shape": [1000000], "at": 0}',
        '{"@": "array", "dtype": "int64", "shape": [-1], "at": 0}',
        '{"@": "array", "dtype": "object", "shape": [1], "at": 0}',
        '{"@": "array", "dtype": "int64", "shape": [1], "at": -8}',
        '{"@": "Popen", "args": ["true"]}',
        '{"@": "Work"}',
        "[" * 100_000,
        "{",
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(description: str, tmp_path: Path) -> None:
    (tmp_path / "answer").write_bytes(bytes(64) + description.encode())
    answer = sandbox.Answer(os.open(tmp_path / "answer", os.O_RDONLY), 64, len(description))
    with pytest.raises(UnreadableInput, match="makes no sense"):
        sandbox.value_of(answer, "x")


# -- files that change ------------------------------------------------------------------------------


def test_a_recording_that_is_cut_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a mapped file that is not there any more ends a process by SIGBUS."""
    from llm_perf_opt.readers import sqlite_columns

    path = tmp_path / "x.sqlite"
    path.write_bytes(plain_bytes(recording("nsys-*-threads.sqlite")))
    really = sqlite_columns._leaves

    def cut(*arguments: Any) -> Any:
        os.truncate(path, 4096)
        return really(*arguments)

    monkeypatch.setattr(sqlite_columns, "_leaves", cut)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # a new interpreter would know nothing of it
    with pytest.raises(UnreadableInput, match="truncated or rewritten while it was read") as told:
        read_recording(path)
    assert "copy" in told.value.fix


# -- NVIDIA's reader --------------------------------------------------------------------------------

REPORT = "ncu-*-h200-threads-scope-thread.ncu-rep"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for `ncu_report` is found before the real one."""
    folder = tmp_path / "library"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    return folder / "ncu_report.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(plain_bytes(recording(REPORT)))
    return path


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("raise RuntimeError('bad block')", "rejected it (bad block)"),
        ("return bytearray(1 << 32)", "more memory than a recording of its size needs"),
        ("return 5", "rejected it"),
    ],
)
def test_a_report_that_its_reader_cannot_take_is_refused(library: Path, path: Path, deed: str, told: str) -> None:
    library.write_text(f"def load_report(path):\n    {deed}\n", encoding="utf-8")
    with pytest.raises(UnreadableInput) as refused:
        ncu_rep.read_ncu_rep(path, path.name)
    assert told in refused.value.message
    assert refused.value.fix


def test_without_the_package_the_way_to_get_it_is_told(library: Path, path: Path) -> None:
    library.write_text("raise ImportError('not here')\n", encoding="utf-8")
    with pytest.raises(MissingTool) as told:
        ncu_rep.read_ncu_rep(path, path.name)
    assert "pip install ncu-report" in told.value.fix
    assert told.value.code == ExitCode.MISSING_TOOL


def test_nothing_beside_the_report_is_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's folder with a report in it may hold anything."""
    pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed (Linux x86-64 only)")
    for name in ("json.py", "ncu_report.py", "resource.py"):
        (path.parent / name).write_text("import os; os.abort()\n", encoding="utf-8")
    monkeypatch.chdir(path.parent)
    over = threading.Event()
    other = threading.Thread(target=over.wait)  # so that a new interpreter is started
    other.start()
    try:
        assert len(ncu_rep.read_ncu_rep(path, path.name).actions) == 5
    finally:
        over.set()
        other.join()


def test_reading_leaves_nothing_of_the_library_here(path: Path) -> None:
    """NVIDIA's reader keeps what it has read until its process ends."""
    pytest.importorskip("ncu_report", reason="NVIDIA's reader is not installed (Linux x86-64 only)")
    program = (
        "import sys; from pathlib import Path; from llm_perf_opt.readers.ncu_rep import read_ncu_rep\n"
        "for _ in range(3): read_ncu_rep(Path(sys.argv[1]), 'x')\n"
        # Not getrusage: its peak begins with that of whoever started us.
        "print('ncu_report' in sys.modules, Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    loaded, peak_kb = done.stdout.split()
    assert loaded == "False"
    assert int(peak_kb) < 200_000


def test_a_timeline_is_its_own_afterwards() -> None:
    """The columns may be changed, and stay when the process and its memory are gone."""
    found = read_recording(recording("nsys-*-threads.sqlite"))
    assert isinstance(found, Timeline)
    found.kernels.start[:] += 1
    assert (found.kernels.start > 0).all()
