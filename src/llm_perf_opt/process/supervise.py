"""Runs a profiler with everything it starts: time limit, interruption, logs, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import define

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.files import open_to_append
from llm_perf_opt.process.given_input import GIVEN_INPUT
from llm_perf_opt.process.interrupts import STOPS, Interrupts, handle
from llm_perf_opt.processes import is_alive

GUARD = Path(__file__).with_name("guard.py")
# Imported, so that Python keeps what it has compiled of it.
_START = "import sys; del sys.argv[0]; sys.path.append(sys.argv[0][:-9]); import guard; sys.exit(guard.main())"
_POLL_SECONDS = 0.1
QUICK_SECONDS = 0.02  # between two looks at a command that is only just beginning or ending
_SIZE_SECONDS = 1.0  # between two looks at what has been written
# The guard waits this long for a report to be written, and a little longer to force the rest.
GRACE_SECONDS = 60.0
_LONGEST_GRACE_SECONDS = 86_400.0
_FORCE_SECONDS = 15.0
LOG_BYTES = 64 << 20  # of the output of one command; beginning and end are kept
_MARK = "LLM_PERF_TREE"  # in the environment of everything a guard has started
# After the first signal; sooner it is the same wish: a shell passes on what the terminal sends too, `timeout` signals
# the process and its group.
_SECOND_WISH_S = 0.3
INTERRUPTED = (
    "interrupted: what is captured so far is being written; once more (Ctrl-C) discards that and ends everything now"
)
INTERRUPTED_AGAIN = "interrupted again: what was not written yet is discarded; earlier steps are kept"


@define
class Ended:
    """How a supervised command ended."""

    exit_code: int  # of the command; -N where signal N killed it
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    interrupted_twice: bool = False  # it was not waited for
    too_large: bool = False  # stopped because of what it had written
    done: bool = False  # ended because it had done what was wanted of it


class InterruptedTwice(KeyboardInterrupt):
    """The user interrupted a second time: what is not written yet is discarded."""


@contextlib.contextmanager
def handling(numbers: Sequence[int], handler: Callable[..., None]) -> Iterator[None]:
    """Handle some signals in another way for a while; they only reach the main thread."""
    here = threading.current_thread() is threading.main_thread()
    # What is ignored stays ignored: nohup means it.
    old = {n: signal.getsignal(n) for n in numbers if here and signal.getsignal(n) not in (signal.SIG_IGN, None)}
    try:
        handle(dict.fromkeys(old, handler))
        yield
    finally:
        handle(old)


class Interruption:
    """Counts Ctrl-C, SIGTERM and the loss of the terminal while a command runs, so that it can be ended in order."""

    def __init__(self) -> None:
        self.times = 0
        self._first = 0.0
        # What is done about an interrupt is done when the command has ended, too.
        self._outer = [signal.getsignal(number) for number in STOPS]

    def note(self, number: int, _: object) -> None:
        if self.times == 0:
            self._first = time.monotonic()
            self.times = 1
            for outer in self._outer:
                if isinstance(outer, Interrupts):
                    outer.answer()
        # Who has lost the terminal cannot be in a hurry.
        elif number != signal.SIGHUP and time.monotonic() - self._first > _SECOND_WISH_S:
            self.times += 1


def run_supervised(
    argv: list[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    follow: Mapping[Path, Callable[[str], None]] | None = None,
    too_large: Callable[[int], bool] = lambda _: False,
    is_done: Callable[[], bool] = lambda: False,
    before_end: Callable[[], None] = lambda: None,
    grace_s: float | None = None,
    again_s: float = 0,
    program_pid: Path | None = None,
    program_log: Path | None = None,
    stop_command: Sequence[str] = (),
    report_progress: Callable[[str], None] = lambda _: None,
    held: Sequence[int] = (),
    started: Guarded | None = None,
    program_over: Callable[[], None] | None = None,
) -> Ended:
    """Run `argv` to its end. Its output goes to `log`, of which beginning and end are kept.

    `follow`: files to read while it runs (the log among them), each with what to do with a new line.
    `too_large`: asked now and then, with the process id that all others descend from; True ends the command as
    an interruption would. `is_done`: asked at every look; True ends it in the same way.
    `before_end`: called before it is ended, for whatever reason; not where it ends by itself.
    `program_pid`: a file with the process id of the profiled program, which is then interrupted before the
    profiler (see guard.py); otherwise all are interrupted together.
    `program_log`: where the program's own output goes, see redirect.py.
    `stop_command`: what makes the profiler write its report before anything is interrupted.
    `grace_s`: how long a report may take to be written after an interruption (see `grace_seconds`).
    `again_s`: after which what has not ended is interrupted again; 0: never.
    `report_progress`: called with what an interruption does.
    `held`: file descriptors that stay open until everything has ended, even if we are killed before.
    `started`: the same command, begun before by `start_supervised`; its seconds count from there.
    `program_over`: called once the program of `program_pid` has ended by itself, while the profiler writes.
    """
    grace_s = grace_seconds() if grace_s is None else grace_s
    readers = [Follower(path, action) for path, action in (follow or {}).items()]
    began = time.monotonic()
    interruption = Interruption()
    ended = Ended(exit_code=-1, seconds=0.0)
    settings = _settings(grace_s, again_s, stop_command, program_log)
    with handling(STOPS, interruption.note):
        command = started or Guarded(
            argv, log, environment or {}, settings, program_pid=program_pid, held=held, reads_input=True
        )
        looked = began
        until: float | None = None  # None: it was not asked to end
        try:
            while command.is_running:
                for reader in readers:
                    reader.read()
                now = time.monotonic()
                ended.interrupted = ended.interrupted or interruption.times > 0
                if until is None:
                    ended.timed_out = timeout_s is not None and now - began > timeout_s
                    if now - looked > _SIZE_SECONDS:
                        looked = now
                        ended.too_large = too_large(command.pid)
                    if program_over is not None and _has_ended(program_pid):
                        program_over()
                        program_over = None
                    ended.done = is_done()
                    if ended.timed_out or ended.interrupted or ended.too_large or ended.done:
                        before_end()
                        command.end()
                        until = now + longest_end(grace_s)
                        if ended.interrupted:
                            report_progress(INTERRUPTED)
                elif now > until:
                    break
                if interruption.times > 1 and not ended.interrupted_twice:
                    ended.interrupted_twice = True
                    report_progress(INTERRUPTED_AGAIN)
                    command.hurry()
                time.sleep(QUICK_SECONDS if until is not None or now - began < 1.0 else _POLL_SECONDS)
        finally:
            command.finish(longest_end(grace_s))
    for reader in readers:
        reader.read(last=True)
    ended.exit_code = command.exit_code
    # A signal may have come after the last look, or while the command was ending for another reason.
    ended.interrupted = ended.interrupted or interruption.times > 0
    ended.seconds = time.monotonic() - command.began
    return ended


def start_supervised(argv: list[str], *, log: Path, environment: Mapping[str, str], held: Sequence[int]) -> Guarded:
    """Begin a command that `run_supervised` goes on with, or that is ended with `discard`."""
    return Guarded(argv, log, environment, _settings(grace_seconds()), held=held, reads_input=True)


def _has_ended(program_pid: Path | None) -> bool:
    """Has the program begun, and is it gone?"""
    try:
        return program_pid is not None and not is_alive(int(program_pid.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return False


def _settings(
    grace_s: float, again_s: float = 0, stop: Sequence[str] = (), program_log: Path | None = None
) -> list[str]:
    """As the guard takes them."""
    words = [f"grace_s={grace_s}", f"again_s={again_s}", f"log_limit={LOG_BYTES}", *(f"stop={word}" for word in stop)]
    return words if program_log is None else [*words, f"program_log={program_log.resolve()}"]


def grace_seconds() -> float:
    """How long a profiler may write its report after an interruption: LLM_PERF_GRACE_S, or a minute."""
    try:
        seconds = float(os.environ["LLM_PERF_GRACE_S"])
    except (KeyError, ValueError):
        return GRACE_SECONDS
    return seconds if 0 <= seconds <= _LONGEST_GRACE_SECONDS else GRACE_SECONDS


def run_short(
    argv: list[str],
    *,
    output: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    errors: int = subprocess.STDOUT,
    held: Sequence[int] = (),
    stop: threading.Event | None = None,
) -> Ended:
    """Run a short command of a tool that works on what was captured; its whole output is kept.

    Under a guard as well: an export that hangs must not outlive us. Nothing is lost by ending it, so an
    interruption ends it at once. `errors`: where its messages go, by default with the output. `stop`: ends it
    as well; in a thread beside the main one nothing else does, for signals are not heard there.
    """
    started = time.monotonic()
    interruption = Interruption()
    ended = Ended(exit_code=-1, seconds=0.0)
    with handling(STOPS, interruption.note):
        command = Guarded(argv, output, environment, ["grace_s=0"], errors=errors, held=held)
        try:
            while command.is_running and not (ended.timed_out or ended.interrupted):
                time.sleep(QUICK_SECONDS)
                ended.timed_out = time.monotonic() - started > timeout_s
                ended.interrupted = interruption.times > 0 or (stop is not None and stop.is_set())
            if command.is_running:
                command.hurry()
        finally:
            command.finish(longest_end(0))
    ended.exit_code, ended.seconds = command.exit_code, time.monotonic() - started
    ended.interrupted = ended.interrupted or interruption.times > 0
    return ended


class Guarded:
    """A command under a guard of its own (guard.py), from its start until nothing of it is left.

    Whoever has one ends it with `finish`, whatever happens; where we are killed before, its guard does.
    """

    def __init__(
        self,
        argv: list[str],
        log: Path,
        environment: Mapping[str, str],
        settings: Sequence[str],
        *,
        program_pid: Path | None = None,
        errors: int = subprocess.STDOUT,
        held: Sequence[int] = (),
        reads_input: bool = False,
    ) -> None:
        self.began = time.monotonic()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"  # in the environment of all its processes
        pipe_read, self._pipe = os.pipe()  # whose closing ends the guard and its command
        words = [sys.executable, "-I", "-S", "-c", _START, str(GUARD), str(pipe_read), str(program_pid or "tree")]
        given = GIVEN_INPUT.open() if reads_input else subprocess.DEVNULL
        try:
            with open_to_append(log) as output:
                self._guard = subprocess.Popen(
                    [*words, *settings, "--", *argv],
                    stdin=given,
                    stdout=output,
                    stderr=errors,
                    env={**os.environ, **environment, _MARK: self._mark},
                    pass_fds=(pipe_read, *held),
                    # A session of its own: Ctrl-C in the terminal reaches us alone, and we end the tree in order.
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._pipe)
            raise UserError(
                f"{Path(argv[0]).name} could not be started: {error.strerror or error} ({error.filename or log}).",
                "Look at free space (df -h), the permissions of the run directory, and the limits of the system (ulimit -a).",
                ExitCode.NOTHING_CAPTURED,
            ) from error
        finally:
            os.close(pipe_read)
            if given != subprocess.DEVNULL:
                os.close(given)

    @property
    def pid(self) -> int:
        """All processes of the command descend from this one."""
        return self._guard.pid

    @property
    def is_running(self) -> bool:
        return self._guard.poll() is None

    @property
    def exit_code(self) -> int:
        """Of the command, when it has ended; -N where signal N killed it."""
        return self._guard.returncode

    def end(self) -> None:
        """Ask it to end in order; that may take the grace time of its settings."""
        self._guard.send_signal(signal.SIGINT)

    def hurry(self) -> None:
        """End it now: nothing is waited for."""
        self._guard.send_signal(signal.SIGUSR1)

    def discard(self) -> None:
        """End it now, and wait until nothing of it is left."""
        if self.is_running:
            self.hurry()
        self.finish(longest_end(0))

    def finish(self, patience_s: float) -> None:
        """Wait for the guard to end what is left, and do it ourselves where the guard cannot."""
        os.close(self._pipe)  # whatever is left of it ends from here on
        try:
            self._guard.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        if self.exit_code == -signal.SIGKILL:  # perhaps of the guard itself, by the system for want of memory
            _kill_marked(self._mark)


def longest_end(grace_s: float) -> float:
    """How long a guard may take to end a command that has so much time for its report."""
    return 2 * grace_s + _FORCE_SECONDS


def _kill_marked(mark: str) -> None:
    """End every process that carries the mark of a guard that is no more."""
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(50):  # some may be starting others meanwhile
        found = False
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(entry.name), signal.SIGKILL)
        if not found:
            return
        time.sleep(0.02)


class Follower:
    """Reads a growing file line by line; what is not UTF-8 is replaced."""

    _MOST = 1 << 20  # bytes at once: a program that prints gigabytes must not fill the memory

    def __init__(self, path: Path, action: Callable[[str], None]) -> None:
        self._path = path
        self._action = action
        self._at = 0
        self._rest = b""

    def read(self, last: bool = False) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                while new := file.read(self._MOST):
                    self._at += len(new)
                    *lines, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
                    self._rest = self._rest[-self._MOST :]
                    for line in lines:
                        self._action(line.decode("utf-8", "replace"))
                    if not last:
                        break
        except FileNotFoundError:
            return
        if last and self._rest:
            self._action(self._rest.decode("utf-8", "replace"))
            self._rest = b""
