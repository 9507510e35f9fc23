"""Everything that may go wrong while a run goes on, each with the outcome it must have.

`faults()` is the matrix. `Bench` makes one of them happen, with the stand-ins of `fake_tools` in a folder of its
own, and looks at what is left: the exit code, the manifest, the recordings, the report, the processes. What is
wrong comes back as sentences; none: survived. `tests/test_faults.py` tries a part of it in every test run,
`benchmarks/faults.py` all of it, with kills at random moments.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field

import fake_tools
from conftest import RECORDINGS
from llm_perf_opt.cli.main import main

TIMELINE, COUNTERS = fake_tools.SMALL_TIMELINE, fake_tools.SMALL_COUNTERS
KERNELS = 5  # in the timeline
# Of a program that opens ranges of its own: code inside it switches ncu on around some of them.
WINDOWS_TIMELINE = RECORDINGS / "nsys-2025.3.1-h200-graph_node.sqlite.gz"
WINDOWS_COUNTERS = RECORDINGS / "ncu-2025.3.1-h200-graph-nodes-kernel-replay.ncu-rep.xz"
WINDOWS_KERNELS = 159
_BLOCKS = {"block0": 5, "mlp": 15, "norm": 15, "block1": 5, "block2": 5}
_STAGES = {"capture": 1, "replay_all": 1, "decode_step": 6, "eager": 1}
WINDOWS_RANGES = {("LLM", name): count for name, count in {**_BLOCKS, **_STAGES}.items()}
STUBS = Path(__file__).with_name("stubs")
OURS = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
STATES = {"running", "done", "failed", "interrupted"}
STATUSES = {"running", "captured", "partial", "nothing", "done", "failed"}
STEP_FIELDS = {"name", "argv", "status", "exit_code", "seconds", "files", "diagnostics"}
MANIFEST_FIELDS = {"llm_perf_opt", "started_at", "finished_at", "command", "state", "tools", "steps", "diagnostics"}
GRACE_S = 1.0  # instead of a minute: the stand-ins write quickly
PATIENCE_S = 180.0  # on a busy machine everything takes longer


class Unavailable(Exception):
    """This machine does not let the fault happen, and why."""


@define(frozen=True)
class Got:
    """What a run left, as far as the system tells."""

    code: int
    said: str
    run: Path
    seconds: float = 0.0
    peak_bytes: int = 0  # of the largest process among ours


@define(frozen=True, kw_only=True)
class Fault:
    """One cell of the matrix."""

    name: str
    group: str
    code: int | None  # the exit code; None: there is none, for we were killed
    says: str = ""  # a diagnosis of the manifest
    state: str = "failed"  # of the manifest
    kernels: bool = True  # the timeline is kept and reported
    counters: bool | None = True  # so are the counters; None: they may be or not, by chance
    options: tuple[str | bytes, ...] = ()
    variables: Mapping[str, str] = field(factory=dict)
    work: str = "print('hello from the program')"
    quick: bool = False  # tried in every test run
    happen: Callable[[Bench, Fault], Got] | None = None  # None: the plain command, with `variables`
    check: Callable[[Bench, Got], Iterator[str]] | None = None  # beside what is looked at in any case
    manifest: bool = True  # False: the run was refused before there was one, or somebody removed it
    writable: bool = True  # False: nothing can be written at the end, the manifest stays as it was
    windows: bool = False  # ncu is switched on from inside the program


@define
class Bench:
    """A folder with the tools, in which one run after the other is tried."""

    folder: Path
    number: int = 0
    place: str = "run"  # the name of the run directory
    windows: bool = False  # of the fault in hand

    def __attrs_post_init__(self) -> None:
        for name, timeline, counters in (
            ("tools", TIMELINE, COUNTERS),
            ("tools-windows", WINDOWS_TIMELINE, WINDOWS_COUNTERS),
        ):
            (self.folder / name).mkdir(parents=True)
            fake_tools.write(self.folder / name, timeline, counters)

    @property
    def here(self) -> Path:
        return self.folder / f"try-{self.number}"

    @property
    def run(self) -> Path:
        return self.here / self.place

    def fresh(self) -> None:
        self.number += 1
        (self.here / "marks").mkdir(parents=True)

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAKE_", "LLM_PERF_"))}
        tools = self.folder / ("tools-windows" if self.windows else "tools")
        return {
            **kept,
            "LLM_PERF_NSYS": str(tools / "nsys"),
            "LLM_PERF_NCU": str(tools / "ncu"),
            "FAKE_PROFILER": str(self.here / "profiler"),
            "STUBS": str(STUBS),
            "LLM_PERF_GRACE_S": str(GRACE_S),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "FAKE_LEDGER": str(self.here / "ledger"),
            "FAULT_HERE": str(self.here),
            "FAULT_RUN": str(self.run),
            **more,
        }

    def argv(self, fault: Fault) -> list[str | bytes]:
        # Code on a command line is hidden in the manifest, and could not be resumed.
        shown = ["profile", "--no-measure", "--show-command", "--out", str(self.run)]
        return [*OURS, *shown, *fault.options, "--", sys.executable, "-c", fault.work]

    def start(
        self, argv: Sequence[str | bytes], variables: Mapping[str, str], before: Callable[[], None] | None = None
    ) -> subprocess.Popen[bytes]:
        """`before`: done in the new process, before it is ours."""
        env = self.variables(variables)
        with (self.here / "said").open("ab") as said:
            return subprocess.Popen(
                argv, cwd=self.here, env=env, stdout=said, stderr=subprocess.STDOUT, preexec_fn=before
            )

    def finish(self, ours: subprocess.Popen[bytes]) -> Got:
        began, peak = time.monotonic(), 0
        if ours.returncode is None:
            watch = threading.Timer(PATIENCE_S, os.kill, (ours.pid, signal.SIGKILL))
            watch.start()
            _, status, usage = os.wait4(ours.pid, 0)
            watch.cancel()
            ours.returncode, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        said = (self.here / "said").read_text(encoding="utf-8", errors="replace")
        return Got(ours.returncode, said, self.run, time.monotonic() - began, peak)

    def plainly(self, fault: Fault) -> Got:
        return self.finish(self.start(self.argv(fault), fault.variables))

    def attempt(self, fault: Fault) -> list[str]:
        """Let it happen; what was not as it should be."""
        self.fresh()
        self.windows = fault.windows
        got = (fault.happen or Bench.plainly)(self, fault)
        return [f"{fault.name}: {wrong}" for wrong in self._wrong(fault, got)]

    def _wrong(self, fault: Fault, got: Got) -> Iterator[str]:
        if fault.code is not None and got.code != fault.code:
            yield f"exit code {got.code} instead of {fault.code}; it said: {got.said[-600:]}"
        if "Traceback" in got.said:
            yield f"a traceback: {got.said[-1500:]}"
        yield from self.no_process_left()
        if not fault.manifest:
            return
        if fault.check is not None:
            yield from fault.check(self, got)
        yield from self.manifest_wrong(got.run, in_order=fault.code is not None and fault.writable)
        yield from self.recordings_lost()
        if not (got.run / "manifest.json").exists():
            return
        manifest = json.loads((got.run / "manifest.json").read_text())
        codes = diagnoses_of(manifest)
        if fault.code is not None and manifest["state"] != fault.state:
            yield f"state {manifest['state']} instead of {fault.state}"
        if fault.says and fault.says not in codes:
            yield f"no diagnosis {fault.says}, only {codes}"
        yield from self.report_wrong(got.run, fault.kernels, fault.counters)

    def no_process_left(self) -> Iterator[str]:
        """Every process of a run carries the name of the ledger in its environment."""
        mark = f"FAKE_LEDGER={self.here / 'ledger'}".encode()
        until = time.monotonic() + PATIENCE_S / 2
        while (left := list(processes_with(mark))) and time.monotonic() < until:
            time.sleep(0.05)
        for pid, words in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            yield f"process {pid} is left: {words[:200]}"

    def manifest_wrong(self, run: Path, in_order: bool) -> Iterator[str]:
        """The manifest is valid JSON with the fields of the contract, whatever happened."""
        file = run / "manifest.json"
        if not file.exists():
            if in_order:
                yield "there is no manifest"
            return
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            yield f"the manifest is not JSON: {error}"
            return
        if missing := MANIFEST_FIELDS - set(manifest):
            yield f"the manifest lacks {missing}"
        if manifest["state"] not in STATES or (in_order and manifest["state"] == "running"):
            yield f"the manifest says {manifest['state']}"
        for step in manifest["steps"]:
            if missing := STEP_FIELDS - set(step):
                yield f"a step lacks {missing}"
            if step["status"] not in STATUSES or (step["seconds"] or 0.0) < 0:
                yield f"a step is {step['status']} after {step['seconds']} s"
        if in_order and (left := [str(p) for p in run.rglob(".*") if p.name.endswith(".tmp") or p.name == ".reserve"]):
            yield f"temporary files are left: {left}"

    def recordings_lost(self) -> Iterator[str]:
        ledger = self.here / "ledger"
        for line in ledger.read_text().splitlines() if ledger.exists() else ():
            name, digest = json.loads(line)
            if not Path(name).exists():
                yield f"{name} was recorded and is gone"
            elif hashlib.sha256(Path(name).read_bytes()).hexdigest() != digest:
                yield f"{name} is not what was recorded"

    def report_wrong(self, run: Path, kernels: bool, counters: bool | None) -> Iterator[str]:
        """`llm-perf report RUN` opens it, and shows what was captured."""
        code, told = self.report(run)
        if "error" in told:
            if kernels or code not in (2, 5):
                yield f"llm-perf report ends with {code}: {told['error']}"
            return
        if code != 0:
            yield f"llm-perf report ends with {code}"
        found = sum(s["kernel_count"] for s in told["scopes"] if s["scope"] == "aggregate")
        expected = WINDOWS_KERNELS if self.windows else KERNELS
        if kernels and found != expected:
            yield f"the report has {found} kernels instead of {expected}"
        report = json.loads((self.here / "again" / "report.json").read_text(encoding="utf-8"))
        measured = any(r["inclusive"]["metrics"] for s in report["scopes"] for r in s["regions"])
        if kernels and counters is not None and measured != counters:
            yield f"the report has {'no ' if counters else ''}counters"

    def report(self, run: Path) -> tuple[int, dict[str, Any]]:
        shutil.rmtree(self.here / "again", ignore_errors=True)
        out = io.StringIO()
        names = ("LLM_PERF_NSYS", "LLM_PERF_NCU", "XDG_CACHE_HOME")
        ours, before = self.variables({}), {n: os.environ.get(n) for n in names}
        os.environ.update({n: ours[n] for n in names})
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                code = main(["report", str(run), "--out", str(self.here / "again"), "--json"])
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value
        return code, json.loads(out.getvalue())

    def wait_for(self, mark: str, ours: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not (self.here / "marks" / mark).exists():
            assert ours.poll() is None, f"ended with {ours.returncode} before {mark}"
            assert time.monotonic() < until, f"{mark} never came"
            time.sleep(0.005)

    def holding(self, step: str) -> dict[str, str]:
        """A step waits for `let_go`, and a while longer; then a stand-in has enough time to write its report."""
        marks = {"FAKE_MARKS": str(self.here / "marks"), "FAKE_HOLD_UNTIL": str(self.here / "let-go")}
        return {**marks, "FAKE_HOLD": step, "LLM_PERF_GRACE_S": "10"}

    def let_go(self) -> None:
        (self.here / "let-go").touch()

    def not_resumed(self) -> Iterator[str]:
        """`llm-perf profile --resume RUN` takes what the kill has cost."""
        got = self.finish(self.start([*OURS, "profile", "--resume", str(self.run)], {}))
        manifest = json.loads((self.run / "manifest.json").read_text())
        if got.code != 0 or manifest["state"] != "done":
            yield f"resumed, it ends with {got.code} and says {manifest['state']}: {got.said[-600:]}"
            return
        yield from self.no_process_left()
        yield from self.manifest_wrong(self.run, in_order=True)
        yield from self.report_wrong(self.run, kernels=True, counters=True)

    def kill(
        self, number: signal.Signals, moment: float, fault: Fault | None = None, *, held_s: float = 0.0
    ) -> tuple[list[str], str | None]:
        """One run, ended from outside after a while; what is wrong afterwards, and how far it had come.

        None: it had ended by itself before that moment, and nobody was killed. `held_s`: a key that is held down.
        """
        self.fresh()
        fault = fault or KILLED
        self.windows = fault.windows
        began = time.monotonic()
        ours = self.start(self.argv(fault), fault.variables)
        time.sleep(max(moment - (time.monotonic() - began), 0.0))
        in_time = ours.poll() is None
        if in_time:
            repeat(ours, number, held_s)
        got = self.finish(ours)
        wrong = [
            *self.no_process_left(),
            *self.manifest_wrong(self.run, in_order=got.code == 130 and self.run.exists()),
        ]
        wrong += self.recordings_lost()
        # Python itself takes a moment to start; a signal in its first hundredth of a second is not ours to answer.
        not_begun = "Fatal Python error: init_import_site" in got.said and not self.run.exists()
        if got.code not in (0, 130, -number) and not not_begun:
            wrong.append(f"exit code {got.code}: {got.said[-1000:]}")
        if "Traceback" in got.said and "llm_perf_opt" in got.said.partition("Traceback")[2]:
            wrong.append(f"a traceback: {got.said[-1500:]}")
        at = "the start of Python" if not_begun else "before the run directory"
        if (self.run / "manifest.json").exists():
            manifest = json.loads((self.run / "manifest.json").read_text())
            at = manifest["steps"][-1]["name"] if manifest["steps"] else "before the first step"
            ledger = (self.here / "ledger").read_text() if (self.here / "ledger").exists() else ""
            wrong += self.report_wrong(self.run, ".nsys-rep" in ledger, ".ncu-rep" in ledger)
            wrong += self.not_resumed()
        elif self.run.exists() and self.report(self.run)[0] not in (2, 5):
            wrong.append("the empty run directory is not explained")
        if not wrong:
            shutil.rmtree(self.here)
        return [f"{number.name} after {moment:.2f} s: {w}" for w in wrong], at if in_time else None


def processes_with(mark: bytes) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    yield int(entry.name), words


def diagnoses_of(manifest: Mapping[str, Any]) -> list[str]:
    said = [d for step in manifest["steps"] for d in step["diagnostics"]] + manifest["diagnostics"]
    return [d["code"] for d in said]


# How faults happen that a variable cannot bring about.


def signalled(step: str, *numbers: signal.Signals, held: str = "") -> Callable[[Bench, Fault], Got]:
    """Signals for us when a step has begun; a second one half a second after the first. `held`: the step that waits."""

    def happen(bench: Bench, fault: Fault) -> Got:
        ours = bench.start(bench.argv(fault), {**bench.holding(held or step), **fault.variables})
        bench.wait_for(step, ours)
        bench.let_go()
        for number in numbers:
            time.sleep(0.2)  # a hold lasts longer, and a busy machine notices signals late
            ours.send_signal(number)
            time.sleep(0.3 if len(numbers) > 1 else 0.0)
        return bench.finish(ours)

    return happen


def repeat(ours: subprocess.Popen[bytes], number: signal.Signals, seconds: float) -> None:
    """A signal, and more of them as a keyboard repeats a key that is held down, until we have ended."""
    until = time.monotonic() + seconds
    ours.send_signal(number)
    while time.monotonic() < until and ours.poll() is None:
        time.sleep(0.02)
        ours.send_signal(number)


def held_down(step: str, seconds: float) -> Callable[[Bench, Fault], Got]:
    """Ctrl-C held down when a step has begun."""

    def happen(bench: Bench, fault: Fault) -> Got:
        marks = {"FAKE_MARKS": str(bench.here / "marks"), "FAKE_HOLD_UNTIL": str(bench.here / "let-go")}
        ours = bench.start(bench.argv(fault), {**marks, **fault.variables})
        bench.wait_for(step, ours)
        bench.let_go()
        repeat(ours, signal.SIGINT, seconds)
        return bench.finish(ours)

    return happen


def on_a_terminal_that_closes(step: str, *, ignored: bool = False) -> Callable[[Bench, Fault], Got]:
    """The window is closed when a step has begun: SIGHUP for us, and an error for every word we print there.

    `ignored`: under nohup, whose output still goes to the terminal.
    """

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def happen(bench: Bench, fault: Fault) -> Got:
        (bench.here / "said").touch()
        marks = {**bench.holding(step), "TERM": "xterm"}
        mine, theirs = pty.openpty()
        try:
            ours = subprocess.Popen(
                bench.argv(fault),
                cwd=bench.here,
                env=bench.variables({**marks, **fault.variables}),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                preexec_fn=own_terminal,
            )
            os.close(theirs)
            bench.wait_for(step, ours)
            bench.let_go()
            time.sleep(0.2)
        finally:
            os.close(mine)
        return bench.finish(ours)

    return happen


def with_signals_blocked(bench: Bench, fault: Fault) -> Got:
    """Started by a program that blocks signals in the thread it starts us from: the mask is inherited."""
    mask = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    before = partial(signal.pthread_sigmask, signal.SIG_BLOCK, mask)
    return bench.finish(bench.start(bench.argv(fault), fault.variables, before))


def with_signals_blocked_and_interrupted(bench: Bench, fault: Fault) -> Got:
    """The same, and Ctrl-C must still end it."""
    before = partial(signal.pthread_sigmask, signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGINT])
    ours = bench.start(bench.argv(fault), {**bench.holding("ncu"), **fault.variables}, before)
    bench.wait_for("ncu", ours)
    bench.let_go()
    time.sleep(0.2)
    ours.send_signal(signal.SIGINT)
    return bench.finish(ours)


def without_news_of_children(bench: Bench, fault: Fault) -> Got:
    """Started with SIGCHLD ignored: the system then tells nobody how a child ended."""
    before = partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
    return bench.finish(bench.start(bench.argv(fault), fault.variables, before))


def without_its_guard(bench: Bench, fault: Fault) -> Got:
    """The system kills the guard for want of memory, as it may kill any process."""
    ours = bench.start(bench.argv(fault), {"FAKE_MARKS": str(bench.here / "marks"), **fault.variables})
    bench.wait_for("program", ours)
    mark = f"FAKE_LEDGER={bench.here / 'ledger'}".encode()
    (guard,) = [pid for pid, words in processes_with(mark) if " -I " in words and "/guard.py " in words]
    os.kill(guard, signal.SIGKILL)
    return bench.finish(ours)


_ON_A_DISK = """
import os, pathlib, shutil, subprocess, sys
size, disk, *argv = sys.argv[1:]
os.makedirs(disk)
if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=" + size, "none", disk]): sys.exit(99)
code = subprocess.call(argv)
shutil.copytree(disk, disk + "-kept")
sys.exit(code)
"""


def _runs(argv: list[str]) -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(argv, check=False, capture_output=True).returncode == 0
    return False


def on_a_disk_of(size: str) -> Callable[[Bench, Fault], Got]:
    """A small file system of our own: root may make one, and with a user namespace everybody, where the system lets."""

    def happen(bench: Bench, fault: Fault) -> Got:
        inside = next((words for words in (["unshare", "-rm"], ["unshare", "-m"]) if _runs([*words, "true"])), None)
        if inside is None:
            raise Unavailable("no file system of a chosen size without user namespaces or root (unshare -rm)")
        bench.place = "disk/run"
        try:
            argv = [*inside, sys.executable, "-c", _ON_A_DISK, size, str(bench.here / "disk")]
            got = bench.finish(bench.start([*argv, *bench.argv(fault)], fault.variables))
        finally:
            bench.place = "run"
        if got.code == 99:
            raise Unavailable("this system refuses a tmpfs of our own")
        kept = bench.here / "disk-kept" / "run"
        ledger = bench.here / "ledger"
        if ledger.exists():  # the disk is gone with its namespace; what was on it was copied
            ledger.write_text(ledger.read_text().replace("/disk/run/", "/disk-kept/run/"))
        return Got(got.code, got.said, kept, got.seconds)

    return happen


_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static long back(void) {
  const char *jumped = getenv("FAULT_CLOCK");
  return jumped && access(jumped, F_OK) == 0 ? 7200 : 0;
}
int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec -= back();
  return code;
}
"""


def with_a_clock_that_jumps(bench: Bench, fault: Fault) -> Got:
    """The wall clock goes back two hours while the program runs, for every process of the run."""
    source, library = bench.here / "clock.c", bench.here / "clock.so"
    source.write_text(_CLOCK)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable("no C compiler for a clock that jumps") from error
    jumped = {"LD_PRELOAD": str(library), "FAULT_CLOCK": str(bench.here / "marks" / "clock")}
    return bench.finish(bench.start(bench.argv(fault), jumped))


def durations_make_sense(bench: Bench, got: Got) -> Iterator[str]:
    manifest = json.loads((got.run / "manifest.json").read_text())
    if manifest["finished_at"] >= manifest["started_at"]:
        yield "the clock did not jump"  # the test would prove nothing
    lasted = [manifest["seconds"], *(step["seconds"] for step in manifest["steps"])]
    if not all(0 <= seconds < PATIENCE_S for seconds in lasted):
        yield f"durations of {lasted} s"


def with_nobody_reading(bench: Bench, fault: Fault) -> Got:
    """`llm-perf profile … 2>&1 | head -1`, or a terminal that was closed."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ours = subprocess.Popen(
            bench.argv(fault), cwd=bench.here, env=bench.variables({}), stdout=writer, stderr=subprocess.STDOUT
        )
    finally:
        os.close(writer)
    (bench.here / "said").touch()
    return bench.finish(ours)


def at_once(bench: Bench, fault: Fault) -> Got:
    """Several runs of the same second, in one folder, none told where to write."""
    argv = [word for word in bench.argv(fault) if word not in ("--out", str(bench.run))]
    all_of_them = [bench.start(argv, {}) for _ in range(2)]
    results = [bench.finish(ours) for ours in all_of_them]
    runs = sorted((bench.here / "tmp" / "profile-output").iterdir())
    if len(runs) != len(results):
        raise AssertionError(f"{len(results)} runs left {len(runs)} folders")
    return Got(max(r.code for r in results), results[-1].said, runs[-1])


def one_folder_for_all(bench: Bench, fault: Fault) -> Got:
    """Several runs want the same folder: one has it, the others are told."""
    all_of_them = [bench.start(bench.argv(fault), {}) for _ in range(2)]
    codes = sorted(bench.finish(ours).code for ours in all_of_them)
    said = (bench.here / "said").read_text()
    return Got(0 if codes == [0, 2] else 1, f"{codes} {said}", bench.run)


def elsewhere(place: str) -> Callable[[Bench, Fault], Got]:
    def happen(bench: Bench, fault: Fault) -> Got:
        bench.place = place
        try:
            return bench.plainly(fault)
        finally:
            bench.place = "run"

    return happen


def log_is_bounded(bench: Bench, got: Got) -> Iterator[str]:
    for log in (got.run / "workload.log", got.run / "ncu" / "run-workload.log"):
        size = log.stat().st_size
        content = log.read_bytes()
        if size > 66 << 20:
            yield f"{log.name} has {size} bytes"
        if b"bytes of output are left out here" not in content:
            yield f"{log.name} does not say what is left out"
        if not content.startswith(b"first words") or not content.rstrip().endswith(b"last words"):
            yield f"{log.name} lacks the first or the last words"
    if got.peak_bytes > 600 << 20:
        yield f"a process took {got.peak_bytes >> 20} MB"


def output_is_kept(bench: Bench, got: Got) -> Iterator[str]:
    if b"\xff\xfe" not in (got.run / "workload.log").read_bytes():
        yield "the output of the program was changed"


def nothing_was_started(bench: Bench, got: Got) -> Iterator[str]:
    if (bench.here / "ledger").exists():
        yield "something was recorded"


def quickly(bench: Bench, got: Got) -> Iterator[str]:
    if got.seconds > 30:  # alone on the machine it takes two; waiting would take over a minute
        yield f"it took {got.seconds:.0f} s"
    if "discarded" not in got.said:
        yield "it does not say what it discards"


PRINTS = """
import os
def put(data):
    while data: data = data[os.write(1, data):]
put(b"first words\\n")
block = b"x" * 99 + b"\\n"
for _ in range(int(os.environ.get("FAULT_MEGABYTES", "200"))): put(block * 10486)
put(b"last words\\n")
"""
FORKS = """
import subprocess, sys
for own in (False, True):
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
                     start_new_session=own)
"""
DEAF = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
time.sleep(600)
"""
STAYS = """
import os, pathlib, time
(pathlib.Path(os.environ["FAULT_HERE"]) / "marks" / "program").touch()
time.sleep(600)
"""
JUMPS = "import os, pathlib; pathlib.Path(os.environ['FAULT_CLOCK']).touch()"
REMOVES = "import os, shutil; shutil.rmtree(os.environ['FAULT_RUN'])"
REMOVES_SECOND = """
import os, pathlib, shutil
seen = pathlib.Path(os.environ["FAULT_HERE"]) / "seen"
shutil.rmtree(os.environ["FAULT_RUN"]) if seen.exists() else seen.touch()
"""
LOCKS = """
import os, subprocess
disk = os.environ["FAULT_HERE"] + "/disk"
subprocess.check_call(["mount", "--bind", disk, disk])
subprocess.check_call(["mount", "-o", "remount,bind,ro", disk])
"""
LOCKS_SECOND = f"""
import os, pathlib
seen = pathlib.Path(os.environ["FAULT_HERE"]) / "seen"
if seen.exists(): exec({LOCKS!r})
else: seen.touch()
"""
KILLED = Fault(name="killed", group="kills", code=None, work="import time; time.sleep(0.2)")


def opening(ranges: Mapping[tuple[str, str], int] = WINDOWS_RANGES, after: str = "") -> str:
    """A program that opens ranges; `after` them: more of it."""
    return f"""
import os, sys, time
sys.path.insert(0, os.environ["STUBS"])
import nvtx, torch
for (domain, name), count in {dict(ranges)!r}.items():
    for _ in range(count):
        nvtx.push_range(name, domain=domain or None); nvtx.pop_range(domain=domain or None)
print("all steps", flush=True)
{after}
"""


KILLED_IN_WINDOWS = attrs.evolve(
    KILLED, name="killed, with capture windows", work=opening(after="time.sleep(0.2)"), windows=True
)


def _of_tools() -> Iterator[Fault]:
    group = "a tool fails"
    short = ("--timeout", "1")

    def fault(name: str, what: str, code: int, **more: Any) -> Fault:
        return Fault(name=name, group=group, code=code, variables={"FAKE_FAULT": what}, **more)

    none: dict[str, Any] = {"kernels": False, "counters": False}
    kept: dict[str, Any] = {"counters": False}
    yield fault("nsys crashes before it writes", "nsys=crash-before", 5, says="PROFILER_CRASHED", **none)
    yield fault("nsys crashes while it writes", "nsys=crash-during", 5, says="EXPORT_FAILED", quick=True, **none)
    yield fault("nsys crashes after writing", "nsys=crash-after", 5, says="PROFILER_CRASHED")
    yield fault("nsys exits 0 with nothing", "nsys=nothing", 5, says="NOTHING_CAPTURED", **none)
    yield fault("nsys leaves half a report and exits 0", "nsys=truncated", 5, says="EXPORT_FAILED", **none)
    yield fault("nsys hangs", "nsys=hang-before", 124, says="TIMED_OUT", options=short, **none)
    yield fault("nsys hangs after writing", "nsys=hang-after", 124, says="TIMED_OUT", options=short)
    yield fault("nsys stop hangs", "nsys=hang-before,stop=hang-before", 124, says="TIMED_OUT", options=short, **none)
    yield fault("nsys export crashes", "export=crash-during", 5, says="EXPORT_FAILED", quick=True, **none)
    yield fault("nsys export exits 0 with nothing", "export=nothing", 5, says="EXPORT_FAILED", **none)
    yield fault("nsys stats crashes", "stats=crash-before", 0, state="done")
    yield fault("ncu crashes before it writes", "ncu=crash-before", 5, says="PROFILER_CRASHED", **kept)
    yield fault("ncu crashes while it writes", "ncu=crash-during", 5, says="PROFILER_CRASHED", **kept)
    yield fault("ncu crashes after writing", "ncu=crash-after", 5, says="PROFILER_CRASHED")
    yield fault("ncu exits 0 with nothing", "ncu=nothing", 5, says="NOTHING_CAPTURED", **kept)
    yield fault(
        "ncu leaves half a report and exits 0", "ncu=truncated", 5, says="REPORT_UNREADABLE", quick=True, **kept
    )
    yield fault("ncu hangs", "ncu=hang-before", 124, says="TIMED_OUT", options=short, **kept)
    yield fault("ncu hangs after writing", "ncu=hang-after", 124, says="TIMED_OUT", options=short)
    yield fault("ncu cannot print its table", "raw=crash-before", 0, state="done")
    yield fault("a tool does not even tell its version", "version=crash-before", 3, manifest=False)


def _of_disks() -> Iterator[Fault]:
    group = "the output folder"
    none: dict[str, Any] = {"kernels": False, "counters": False}

    def fault(name: str, size: str, **more: Any) -> Fault:
        return Fault(name=name, group=group, code=5, happen=on_a_disk_of(size), **more)

    yield fault("the disk is full when nsys writes", "340k", says="DISK_FULL", quick=True, **none)
    yield fault("the disk is full when nsys exports", "428k", says="EXPORT_FAILED", **none)
    yield fault("the disk is full when ncu writes", "540k", says="DISK_FULL", counters=False)
    yield fault("the disk is full when the report is written", "720k", says="NO_REPORT")
    yield fault("the folder becomes read-only under nsys", "8m", work=LOCKS, state="running", writable=False, **none)
    yield fault(
        "the folder becomes read-only under ncu",
        "8m",
        work=LOCKS_SECOND,
        counters=False,
        state="running",
        writable=False,
    )
    yield Fault(
        name="the folder cannot be written from the start",
        group=group,
        code=2,
        happen=elsewhere("/proc/llm-perf-run"),
        manifest=False,
        quick=True,
    )
    removed: dict[str, Any] = {"manifest": False, "code": 5, "group": group}
    yield Fault(name="the folder is removed under nsys", work=REMOVES, quick=True, **removed)
    yield Fault(name="the folder is removed under ncu", work=REMOVES_SECOND, **removed)


def _of_programs() -> Iterator[Fault]:
    group = "the program"
    die = "import os, signal; os.kill(os.getpid(), signal.{})"
    gone: dict[str, Any] = {"options": ("--no-counters",), "counters": False, "group": group}
    yield Fault(name="the program exits with 3", code=4, says="WORKLOAD_FAILED", work="raise SystemExit(3)", **gone)
    yield Fault(name="the program is killed", code=4, says="KILLED", work=die.format("SIGKILL"), **gone)
    yield Fault(name="the program crashes", code=4, says="WORKLOAD_CRASHED", work=die.format("SIGSEGV"), **gone)
    yield Fault(
        name="the program fails under ncu alone",
        group=group,
        code=4,
        says="WORKLOAD_FAILED",
        variables={"FAKE_NCU": "ncu-app-error"},
        counters=False,
    )
    yield Fault(name="children outlive the program", group=group, code=0, state="done", work=FORKS)
    yield Fault(
        name="the program is deaf and does not end",
        group=group,
        code=124,
        says="TIMED_OUT",
        work=DEAF,
        options=("--timeout", "1", "--no-counters"),
        counters=False,
    )
    yield Fault(
        name="the program prints without end", group=group, code=0, state="done", work=PRINTS, check=log_is_bounded
    )
    yield Fault(
        name="the program prints gigabytes",
        group=group,
        code=0,
        state="done",
        work=PRINTS,
        variables={"FAULT_MEGABYTES": "2500"},
        check=log_is_bounded,
    )
    yield Fault(
        name="the program prints what is not UTF-8",
        group=group,
        code=0,
        state="done",
        work="import os; os.write(1, b'caf\\xe9 \\xff\\xfe \\x1b[31m \\x00 end')",
        check=output_is_kept,
    )


SIGNAL_STEPS = ("version", "nsys", "nsys-writes", "export", "stats", "ncu", "ncu-writes", "raw")
_BEFORE_NSYS = {"version"}
_BEFORE_NCU = {"nsys", "nsys-writes", "export", "ncu"}
_BESIDE_NCU = {"stats"}  # a table that nobody waits for: ncu may have begun, or be done


def _of_signals() -> Iterator[Fault]:
    group = "signals"
    quick = {("SIGKILL", "export"), ("SIGINT", "ncu"), ("SIGTERM", "nsys")}
    for step in SIGNAL_STEPS:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            killed = number == signal.SIGKILL
            # Under ncu everything is interrupted at once, so a stand-in that has not run its program writes nothing.
            yield Fault(
                name=f"{number.name} at {step}",
                group=group,
                code=None if killed else 130,
                state="interrupted",
                says="" if killed or step in _BEFORE_NSYS else "INTERRUPTED",
                kernels=step != "nsys",  # at that moment its program has not begun
                counters=None if step in _BESIDE_NCU else step not in _BEFORE_NCU,
                happen=signalled(step, number),
                manifest=step not in _BEFORE_NSYS,
                quick=(number.name, step) in quick,
            )
    hang = {"FAKE_FAULT": "nsys=hang-before"}
    yield Fault(
        name="Ctrl-C twice",
        group=group,
        code=130,
        state="interrupted",
        says="INTERRUPTED",
        kernels=False,
        counters=False,
        variables={**hang, "FAKE_HOLD": "", "LLM_PERF_GRACE_S": "60"},
        happen=signalled("nsys", signal.SIGINT, signal.SIGINT),
        check=quickly,
        quick=True,
    )
    yield Fault(
        name="the terminal is gone (SIGHUP)",
        group=group,
        code=130,
        state="interrupted",
        says="INTERRUPTED",
        counters=False,
        happen=signalled("ncu", signal.SIGHUP),
    )
    yield from _of_terminals()
    yield from _of_callers()
    yield Fault(
        name="the guard is killed",
        group=group,
        code=5,
        says="PROFILER_KILLED",
        kernels=False,
        counters=False,
        work=STAYS,
        happen=without_its_guard,
        quick=True,
    )


def _of_terminals() -> Iterator[Fault]:
    """A window that closes and a key that is held down."""
    stopped: dict[str, Any] = {"group": "terminals", "code": 130, "state": "interrupted", "says": "INTERRUPTED"}
    for step in SIGNAL_STEPS[1:]:
        yield Fault(
            name=f"the terminal is closed at {step}",
            kernels=step != "nsys",
            counters=None if step in _BESIDE_NCU else step not in _BEFORE_NCU,
            happen=on_a_terminal_that_closes(step),
            quick=step == "ncu",
            **stopped,
        )
        yield Fault(
            name=f"the terminal is closed at {step}, under nohup",
            group="terminals",
            code=0,
            state="done",
            happen=on_a_terminal_that_closes(step, ignored=True),
        )
    for step, seconds in (("nsys", 3.0), ("export", 3.0), ("ncu", 3.0), ("raw", 3.0), ("ncu", 0.2)):
        yield Fault(
            name=f"Ctrl-C held down at {step} for {seconds:g} s",
            kernels=step != "nsys",
            counters=None if step == "raw" else False,
            variables={"FAKE_HOLD": step},
            happen=held_down(step, seconds),
            quick=(step, seconds) == ("ncu", 3.0),
            **stopped,
        )


def _of_callers() -> Iterator[Fault]:
    """What a process inherits of signals from whoever starts it."""
    group = "callers"
    fine: dict[str, Any] = {"group": group, "code": 0, "state": "done"}
    yield Fault(name="signals are blocked by the caller", happen=with_signals_blocked, quick=True, **fine)
    yield Fault(
        name="signals are blocked by the caller, and Ctrl-C",
        group=group,
        code=130,
        state="interrupted",
        says="INTERRUPTED",
        counters=False,
        happen=with_signals_blocked_and_interrupted,
    )
    yield Fault(name="SIGCHLD is ignored by the caller", happen=without_news_of_children, **fine)
    yield Fault(
        name="SIGCHLD is ignored by the caller, and nsys crashes",
        group=group,
        code=5,
        says="PROFILER_CRASHED",
        kernels=False,
        counters=False,
        variables={"FAKE_FAULT": "nsys=crash-before"},
        happen=without_news_of_children,
        quick=True,
    )


def _of_surroundings() -> Iterator[Fault]:
    group = "surroundings"
    fine: dict[str, Any] = {"group": group, "code": 0, "state": "done"}
    ascii_only = {"LC_ALL": "C", "LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    odd = "a run/ünï 漢字 $(touch x) 'q' \"d\" 100%"
    yield Fault(
        name="the clock goes back", work=JUMPS, happen=with_a_clock_that_jumps, check=durations_make_sense, **fine
    )
    yield Fault(name="two runs of the same second", happen=at_once, options=("--no-counters",), counters=False, **fine)
    yield Fault(name="nobody reads what we print", happen=with_nobody_reading, **fine)
    yield Fault(name="two runs want one folder", happen=one_folder_for_all, **fine)
    yield Fault(name="locale C", variables=ascii_only, work="print('caf\\u00e9'.encode())", **fine)
    yield Fault(
        name="locale C, and nothing is ASCII",
        variables=ascii_only,
        happen=elsewhere(odd),
        options=("--hardware", "model=H100 SXM", "--include", b"caf\xe9*", "--include", "*"),
        work="import os; os.write(1, '\\u6f22\\u5b57'.encode())",
        quick=True,
        **fine,
    )
    yield Fault(name="a path with spaces, quotes and unicode", happen=elsewhere(odd), **fine)


def faults() -> list[Fault]:
    return [*_of_tools(), *_of_disks(), *_of_programs(), *_of_signals(), *_of_surroundings()]


def random_kills(count: int, seed: int = 1) -> list[tuple[signal.Signals, float]]:
    """Signals and moments, as parts of a run: three of five are SIGKILL, which nobody can handle."""
    chance = random.Random(seed)
    numbers = [signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]
    return [(numbers[i % len(numbers)], chance.random()) for i in range(count)]
