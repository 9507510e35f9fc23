"""Runs a profiler with everything it starts: time limit, interruption, logs, and no process left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import define

GUARD = Path(__file__).with_name("guard.py")
_POLL_SECONDS = 0.1
_SIZE_SECONDS = 1.0  # between two looks at what has been written
# The guard waits this long for a report to be written, and a little longer to force the rest.
GRACE_SECONDS = 60.0
_FORCE_SECONDS = 15.0


@define
class Ended:
    """How a supervised command ended."""

    exit_code: int  # of the command; -N where signal N killed it
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    too_large: bool = False  # stopped because of what it had written


class Interruption:
    """Turns Ctrl-C and SIGTERM into a flag while a command runs, so that it can be ended in order."""

    def __init__(self) -> None:
        self.happened = threading.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[Interruption]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        old = {n: signal.signal(n, lambda *_: self.happened.set()) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def run_supervised(
    argv: list[str],
    *,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    follow: Mapping[Path, Callable[[str], None]] | None = None,
    too_large: Callable[[int], bool] = lambda _: False,
    grace_s: float = GRACE_SECONDS,
    program_pid: Path | None = None,
    stop_command: Sequence[str] = (),
    held: Sequence[int] = (),
) -> Ended:
    """Run `argv` to its end. Its output goes to `log`.

    `follow`: files to read while it runs (the log among them), each with what to do with a new line.
    `too_large`: asked now and then, with the process id that all others descend from; True ends the command as
    an interruption would.
    `program_pid`: a file with the process id of the profiled program, which is then interrupted before the
    profiler (see guard.py); otherwise all are interrupted together.
    `stop_command`: what makes the profiler write its report before anything is interrupted.
    `held`: file descriptors that stay open until everything has ended, even if we are killed before.
    """
    readers = [_Follower(path, action) for path, action in (follow or {}).items()]
    pipe_read, pipe_write = os.pipe()
    started = time.monotonic()
    interruption = Interruption()
    ended = Ended(exit_code=-1, seconds=0.0)
    with interruption.listening(), log.open("ab") as output:
        guard = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), str(pipe_read), str(program_pid or "tree"), "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={
                **os.environ,
                **(environment or {}),
                "LLM_PERF_GRACE_S": str(grace_s),
                "LLM_PERF_STOP": json.dumps(list(stop_command)),
            },
            pass_fds=(pipe_read, *held),
            # A session of its own: Ctrl-C in the terminal reaches us alone, and we end the tree in order.
            start_new_session=True,
        )
        os.close(pipe_read)
        looked = started
        try:
            while guard.poll() is None:
                for reader in readers:
                    reader.read()
                ended.timed_out = timeout_s is not None and time.monotonic() - started > timeout_s
                ended.interrupted = interruption.happened.is_set()
                if time.monotonic() - looked > _SIZE_SECONDS:
                    looked = time.monotonic()
                    ended.too_large = too_large(guard.pid)
                if ended.timed_out or ended.interrupted or ended.too_large:
                    guard.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        guard.wait(2 * grace_s + _FORCE_SECONDS)
                    break
                time.sleep(_POLL_SECONDS)
        finally:
            os.close(pipe_write)  # the guard ends what is left when this closes
            if guard.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    guard.wait(2 * grace_s + _FORCE_SECONDS)
                if guard.poll() is None:
                    guard.kill()
                    guard.wait()
    for reader in readers:
        reader.read(last=True)
    ended.exit_code = guard.returncode
    # A signal may have come after the last look, or while the command was ending for another reason.
    ended.interrupted = ended.interrupted or interruption.happened.is_set()
    ended.seconds = time.monotonic() - started
    return ended


class _Follower:
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
