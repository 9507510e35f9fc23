"""Runs cases one after another in a process with limits, and says of each what happened.

Started by `Fuzzer` (below): a case number a line on standard input, a JSON object a line on standard output. A
crash of the process, or silence, is a finding of the case it was at.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from attrs import define

MOST_SECONDS = 10.0
MOST_MEMORY_MB = 2000.0
_ADDRESS_SPACE = 6 << 30
_CODES = {0, 2, 3, 5, 6}

_WRITES = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod"}


@define
class Outcome:
    """What became of one case."""

    kind: str
    number: int
    problem: str = ""  # empty: refused in a sentence, or reported
    refused: bool = False
    seconds: float = 0.0  # of work and waiting, without what others kept the processors busy
    peak_mb: float = 0.0
    verb: str = ""  # of the command line; empty for a call
    cpu_s: float = 0.0
    wall_s: float = 0.0


# -- inside the process ----------------------------------------------------------------------------


class _Watch:
    """Notes every file that is written, and every program that is started, from inside the interpreter."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.seen: list[str] = []
        self.on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._note(os.fsdecode(path))
        elif event in _WRITES:
            paths = arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]
            # The last argument is the folder a relative path is meant in, as a descriptor.
            folder = f"/proc/self/fd/{arguments[-1]}" if isinstance(arguments[-1], int) and arguments[-1] >= 0 else "."
            for path in paths:
                if isinstance(path, str | bytes):
                    self._note(
                        f"{folder}/{os.fsdecode(path)}" if not os.fsdecode(path).startswith("/") else os.fsdecode(path)
                    )
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"):
            self.seen.append(f"started {arguments!r}"[:200])

    def _note(self, path: str) -> None:
        if path == os.devnull:
            return
        self.on = False  # resolving looks at links
        try:
            whole = Path(path).absolute()
            if not f"{whole.parent.resolve()}/".startswith(self.allowed) and f"{whole}/" not in self.allowed:
                self.seen.append(f"wrote {path}")
        finally:
            self.on = True


def _state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below a folder, as far as it can be seen without opening it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        told = path.lstat()
        found[str(path)] = (told.st_mode, told.st_size if not path.is_dir() else 0, told.st_mtime_ns)
    return found


def _cpu_seconds() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _queued_seconds() -> float:
    """How long this thread was ready to work and had no processor."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _is_crowded() -> bool:
    return os.getloadavg()[0] > (os.cpu_count() or 1)


class _Children:
    """The highest memory of a process that was waited for: the system only knows that of all there ever were."""

    peak_kb = 0

    @classmethod
    def waitpid(cls, pid: int, options: int) -> tuple[int, int]:
        found, status, usage = os.wait4(pid, options)
        cls.peak_kb = max(cls.peak_kb, usage.ru_maxrss)
        return found, status


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return max(own, _Children.peak_kb) / 1000


def run_case(watch: _Watch, kind: str, number: int, seed: int, root: Path) -> Outcome:
    from fuzzing.cases import make

    case = root / "case"
    made = make(kind, number, seed, case)
    for name in ("tmp", "home", "here"):
        (case / name).mkdir(exist_ok=True)
    os.chdir(case / "here")
    os.environ.update(TMPDIR=str(case / "tmp"), HOME=str(case / "home"), XDG_CACHE_HOME=str(case / "home"))
    tempfile.tempdir = None
    before = _state(case / "given")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak of earlier cases
    _Children.peak_kb = 0
    watch.allowed = tuple(f"{(case / name).resolve()}/" for name in ("out", "tmp"))
    watch.seen = []
    began, used, queued = time.monotonic(), _cpu_seconds(), _queued_seconds()
    watch.on = True
    try:
        outcome = _check(kind, number, made)
    finally:
        watch.on = False
    outcome.verb = made[0] if isinstance(made, list) else ""
    outcome.seconds = time.monotonic() - began
    outcome.peak_mb = _peak_mb()
    problems = [outcome.problem] if outcome.problem else []
    problems += watch.seen[:3]
    worked, queued = _cpu_seconds() - used, _queued_seconds() - queued
    # On a busy machine the clock says little: what counts is work, and waiting for what never comes. Whether a process
    # that is waited for works or has no processor nobody can say: where there are too few, waiting without end is the
    # matter of whoever asked.
    waited = 0.0 if _is_crowded() else outcome.seconds - worked - queued
    if max(worked, waited) > MOST_SECONDS:
        problems.append(f"took {outcome.seconds:.1f} s, {worked:.1f} s of them working, {queued:.1f} s queued")
    outcome.cpu_s, outcome.wall_s = worked, outcome.seconds
    outcome.seconds = worked if _is_crowded() else min(outcome.seconds, max(outcome.seconds - queued, worked))
    if outcome.peak_mb > MOST_MEMORY_MB:
        problems.append(f"took {outcome.peak_mb:,.0f} MB")
    if _state(case / "given") != before:
        problems.append("changed its input")
    left = [str(p.relative_to(case)) for name in ("tmp", "home", "here") for p in (case / name).rglob("*")]
    if left:
        problems.append(f"left {left[:3]}")
    outcome.problem = "; ".join(problems)
    os.chdir(root)
    shutil.rmtree(case)
    return outcome


def _check(kind: str, number: int, made: Any) -> Outcome:
    from llm_perf_opt.cli.main import main
    from llm_perf_opt.errors import UserError

    out, told = io.StringIO(), io.StringIO()
    outcome = Outcome(kind, number)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
            if not isinstance(made, list):
                made()
                return outcome
            code = main(made)
    except UserError as error:
        outcome.refused = True
        outcome.problem = "" if error.message and error.fix else f"no next step: {error}"
        return outcome
    except BaseException as error:  # SystemExit and what native code makes of damage are findings too
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome.problem = f"{type(error).__name__}: {error} at {Path(place.filename).name}:{place.lineno}"[:400]
        return outcome
    outcome.refused = code != 0
    if code not in _CODES:
        outcome.problem = f"exit code {code}"
    elif code and "--json" in made:
        error = json.loads(out.getvalue())["error"]
        outcome.problem = "" if error["message"] and error["fix"] else f"no next step: {error}"
    elif code and ("llm-perf: " not in told.getvalue() or "→" not in told.getvalue()):
        outcome.problem = f"exit code {code} without cause and next step: {told.getvalue()[:300]}"
    said = told.getvalue() + out.getvalue()
    if "not enough memory" in said:
        outcome.problem = "asked for more memory than there is"
    elif "its reader failed" in said:
        outcome.problem = f"a flaw of a reader: {said[-300:]}"
    elif code == 0 and made[0] == "report":
        outcome.problem = _check_report(made)
    return outcome


def _check_report(argv: list[str]) -> str:
    """A report that was handed over is whole, and not empty without a word."""
    import llm_perf_opt

    out = Path(argv[argv.index("--out") + 1] if "--out" in argv else argv[1])
    if "--format" in argv and "json" not in argv[argv.index("--format") + 1].split(","):
        return ""
    text = (out / "report.json").read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda name: 1 / 0)
    found = llm_perf_opt.load(out)
    if not any(scope.regions for scope in found.scopes) and not found.diagnostics:
        return "an empty report without a word"
    return ""


def serve(seed: int, root: Path) -> None:
    """Cases as they are asked for, until nobody asks."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(root)
    sys.dont_write_bytecode = True  # what is imported late is nothing that a case wrote
    os.environ["PATH"] = ""  # no nsys: a recording of its own format is a matter of that tool
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Imports are no part of a case.
    import llm_perf_opt.analysis.build
    import llm_perf_opt.api.reporting
    import llm_perf_opt.api.result
    import llm_perf_opt.api.summary
    import llm_perf_opt.cli.main
    import llm_perf_opt.readers.ncu_rep
    import llm_perf_opt.report.html
    import llm_perf_opt.runners.overrides  # noqa: F401

    os.waitpid = _Children.waitpid
    watch = _Watch()
    for line in sys.stdin:
        kind, number = json.loads(line)
        try:
            outcome = run_case(watch, kind, number, seed, root)
        except Exception:
            outcome = Outcome(kind, number, f"the case could not be made or checked: {traceback.format_exc()[-600:]}")
            os.chdir(root)
            shutil.rmtree(root / "case", ignore_errors=True)
        measured = [round(outcome.seconds, 4), round(outcome.peak_mb, 1), outcome.verb]
        measured += [round(outcome.cpu_s, 4), round(outcome.wall_s, 4)]
        answers.write(json.dumps([outcome.problem, outcome.refused, *measured]) + "\n")
        answers.flush()


# -- outside ---------------------------------------------------------------------------------------


class Fuzzer:
    """One such process; a new one where it crashed or had to be ended."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._folder = tempfile.TemporaryDirectory(prefix="llm-perf-fuzz-")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self._folder.name, ignore_errors=True)
        self._folder.cleanup()

    def run(self, kind: str, number: int) -> Outcome:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        began = time.monotonic()
        process.stdin.write(json.dumps([kind, number]) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # Making the case and the start of the process are not part of its time, nor is what others take.
            heard = selector.select(MOST_SECONDS * 9 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        line = process.stdout.readline() if heard else ""
        if line:
            return Outcome(kind, number, *json.loads(line))
        code = self._stop()
        cause = f"crashed ({signal.Signals(-code).name if code < 0 else code})" if heard else "hung"
        return Outcome(kind, number, cause, seconds=time.monotonic() - began)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            # What a crash left is in nobody's way.
            root = Path(tempfile.mkdtemp(dir=self._folder.name))
            tests = Path(__file__).resolve().parents[1]
            argv = [sys.executable, "-c", _PROGRAM, str(tests), str(self._seed), str(root)]
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._process

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        if process.poll() is None:
            process.kill()
        code = process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        return code


_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from fuzzing.worker import serve;"
    "serve(int(sys.argv[2]), Path(sys.argv[3]))"
)
