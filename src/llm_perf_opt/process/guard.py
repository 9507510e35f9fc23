"""A small program that stands between us and a profiler, so that nothing outlives a run.

    guard.py PIPE_FD tree|PID_FILE [SETTING=VALUE…] -- PROFILER ARGUMENTS…

Profilers start programs that start programs; some leave the process group, and ncu itself is often a
shell script around the real one. The guard becomes the reaper of all of them. It ends the whole tree
when it is asked to (SIGINT, SIGTERM), when the profiler has ended and something is left over, and when
the pipe from its parent closes, which it does even if the parent is killed with SIGKILL. SIGUSR1 makes it
hurry: what is still being written is discarded.

The first, polite signal goes to the whole tree (`tree`: ncu is often a shell script around the real one,
which never hears of a signal to the script), or to the program whose process id is in PID_FILE and then
to the profiler alone: nsys keeps the kernels only if the program ends by itself, keeps the rest if it is
interrupted itself, and loses everything when its helpers are signalled too. Before any signal, the command
`stop` of the settings is run: `nsys stop` writes the whole report, kernels included, while the program is
still alive.

Output passes through the guard, which keeps the beginning and the end of it: a program that prints
gigabytes must not fill the disk, and one whose log cannot be written must not fail for that.

It is started with `-IS`, imports nothing of this package, and exits as the profiler did. A run starts it about ten times:
what takes long to import (json, pathlib, typing, subprocess) is not, or where it is needed.
"""
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_END = sys.argv.index("--", 3)  # of the settings
_SETTINGS = [word.partition("=")[::2] for word in sys.argv[3:_END]]
SETTINGS = dict(_SETTINGS)
# Profilers write their report after an interrupt: that is worth waiting for.
POLITE_SECONDS = float(SETTINGS.get("grace_s", 60))
STOP_COMMAND = [word for name, word in _SETTINGS if name == "stop"]
LOG_LIMIT = int(SETTINGS.get("log_limit", 0))  # bytes of a log; 0: all of it
PROGRAM_LOG = SETTINGS.get("program_log")  # where the program's own output goes, if it has a log of its own
# Where redirect.py finds the way to it.
PROGRAM_CHANNEL = "LLM_PERF_PROGRAM_OUTPUT"
# After which whoever has not ended is interrupted again, as one presses Ctrl-C again where a server waits for its threads.
AGAIN_SECONDS = float(SETTINGS.get("again_s", 0))  # 0: never
# Then it is asked to end as service managers ask: what a shell has started with & hears of no Ctrl-C.
AGAIN_BY_TERM_SECONDS = min(AGAIN_SECONDS, 10.0)
TERM_SECONDS = 5.0
HURRIED_SECONDS = 1.0
TAIL_BYTES = 2 << 20  # of a log that is cut: the end says how it ended
TAIL_EVERY_SECONDS = 1.0
_PIPE_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36


class Hurry:
    """Was the guard asked to end everything now?"""

    asked = False


class Pump(threading.Thread):
    """Carries output into a log of bounded size, for as long as something may write."""

    def __init__(self, target: int, limit: int) -> None:
        super().__init__(daemon=True)
        self.source, self.entrance = os.pipe()
        with contextlib.suppress(OSError):  # a larger pipe is only quicker
            fcntl.fcntl(self.source, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self.source, False)
        self._over_read, self._over_write = os.pipe()
        self._target = target
        self._start = os.fstat(target).st_size
        self._head = max(limit - TAIL_BYTES, 0)  # bytes that are kept of the beginning
        self._kept = 0
        self._tail: collections.deque[bytes] = collections.deque()
        self._tail_bytes = 0
        self._passed = 0  # bytes behind the head, those of the tail included
        self._shown = 0  # of these, when the tail was written last

    def run(self) -> None:
        written = time.monotonic()
        while True:
            ready, _, _ = select.select([self.source, self._over_read], [], [], TAIL_EVERY_SECONDS)
            if self.source in ready and not self._take():
                break
            if self._over_read in ready:
                while self._take():
                    pass
                break
            if time.monotonic() - written > TAIL_EVERY_SECONDS:
                self._write_tail()
                written = time.monotonic()
        self._write_tail()

    def finish(self) -> None:
        """Called when nobody writes any more: what is in the pipe still goes into the log."""
        os.close(self._over_write)
        self.join(TERM_SECONDS)

    def _take(self) -> bool:
        """Move what is there; False where there is nothing, or nobody who could write."""
        try:
            data = os.read(self.source, _PIPE_BYTES)
        except BlockingIOError:
            return False
        room = self._head - self._kept
        if room > 0:
            self._put(data[:room])
            self._kept += len(data[:room])
        if len(data) > room:
            rest = data[max(room, 0) :]
            self._passed += len(rest)
            self._tail.append(rest)
            self._tail_bytes += len(rest)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())
        return bool(data)

    def _write_tail(self) -> None:
        """The end of the output so far, in the place of the end written before."""
        if self._passed == self._shown:
            return
        self._shown = self._passed
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        left_out = self._passed - len(tail)
        note = f"\n[llm-perf: {left_out:,} bytes of output are left out here]\n".encode() if left_out else b""
        with contextlib.suppress(OSError):
            os.ftruncate(self._target, self._start + self._kept)
        self._put(note + tail)

    def _put(self, data: bytes) -> None:
        # A full disk costs the log, not the program.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._target, data) :]


def descendants(root: int) -> list[int]:
    """All processes below `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                # The command name is in brackets and may hold anything, so count from behind it.
                fields = file.read().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap(main: int) -> int | None:
    """Collect ended children; the wait status of the main one if it is among them."""
    status = None
    while True:
        try:
            pid, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == main:
            status = how


def program_of(pid_file: str) -> list[int]:
    """The profiled program and what it started; nothing where it has not begun or is gone."""
    with contextlib.suppress(OSError, ValueError):
        with open(pid_file, "rb") as file:
            pid = int(file.read())
        if pid in descendants(os.getpid()):
            return [pid, *descendants(pid)]
    return []


def save_first() -> None:
    """Let the profiler write its report; without success the signals below save what they can."""
    if not STOP_COMMAND:
        return
    import subprocess

    # Not checked: that it failed is seen by the missing report, and the signals must follow in any case.
    with contextlib.suppress(OSError):
        asking = subprocess.Popen(STOP_COMMAND, stdin=subprocess.DEVNULL)
        until = time.monotonic() + POLITE_SECONDS
        while asking.poll() is None and time.monotonic() < until and not Hurry.asked:
            time.sleep(0.05)
        if asking.poll() is None:
            asking.kill()
            asking.wait()


def end_tree(main: int, whom: str) -> int | None:
    """Ask, then insist, then force."""
    save_first()
    status = None

    def everyone() -> list[int]:
        return descendants(os.getpid())

    ways: list[tuple[int, Callable[[], list[int]], float]] = [(signal.SIGINT, everyone, POLITE_SECONDS)]
    if whom != "tree":
        half = POLITE_SECONDS / 2
        ways = [(signal.SIGINT, lambda: program_of(whom), half), (signal.SIGINT, lambda: [main], half)]
    ways += [(signal.SIGTERM, everyone, TERM_SECONDS), (signal.SIGKILL, everyone, TERM_SECONDS)]
    for way, (number, targets, patience) in enumerate(ways):
        polite = number == signal.SIGINT
        if polite and Hurry.asked:
            continue
        pids = targets()
        if not pids:
            continue
        send(number, pids)
        began = sent = time.monotonic()
        repeats = 0
        while time.monotonic() - began < (HURRIED_SECONDS if Hurry.asked else patience):
            if polite and Hurry.asked:
                break
            how = reap(main)
            status = how if how is not None else status
            if not descendants(os.getpid()):
                return status
            if (
                way == 0
                and AGAIN_SECONDS
                and time.monotonic() - sent > (AGAIN_BY_TERM_SECONDS if repeats else AGAIN_SECONDS)
            ):
                send(signal.SIGTERM if repeats else number, targets())
                sent, repeats = time.monotonic(), repeats + 1
            time.sleep(0.05)
    return status


def force_the_rest(main: int) -> None:
    """What is left when the profiler has gone belongs to nobody; some of it may be starting more of it."""
    until = time.monotonic() + TERM_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        send(signal.SIGKILL, left)
        reap(main)
        time.sleep(0.01)


def start(argv: list[str], output: Pump | None, program: Pump | None) -> int:
    """The profiler as a child of ours; its process id."""
    pid = os.fork()
    if pid:
        return pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    if output is not None:
        os.dup2(output.entrance, 1)
        os.dup2(output.entrance, 2)
    if program is not None:
        os.environ[PROGRAM_CHANNEL] = f"/proc/{os.getppid()}/fd/{program.entrance}"
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell, by design
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def program_pump() -> Pump | None:
    """For the program's own output; None where it has no log of its own, or that cannot be written."""
    if PROGRAM_LOG is None or not LOG_LIMIT:
        return None
    with contextlib.suppress(OSError):
        return Pump(os.open(PROGRAM_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), LOG_LIMIT)
    return None


def main() -> int:
    pipe, whom, argv = int(sys.argv[1]), sys.argv[2], sys.argv[_END + 1 :]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            if int(name) > 2:  # the pipe, and the lock of the run: ours, not the program's
                os.set_inheritable(int(name), False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGUSR1, lambda *_: setattr(Hurry, "asked", True))
    # Whoever called us may block signals: neither we nor the profiler would hear of the end of a child.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    output = Pump(1, LOG_LIMIT) if LOG_LIMIT else None
    program = program_pump()
    main_pid = start(argv, output, program)
    pumps = [pump for pump in (output, program) if pump is not None]
    for pump in pumps:  # after the fork, which threads do not survive
        pump.start()
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([pipe, wake_read], [], [])
        if pipe in ready:  # nothing is ever written to it: it was closed
            status = end_tree(main_pid, whom)
            break
        if wake_read in ready:
            numbers = set(os.read(wake_read, 4096))
            if numbers & {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}:
                status = end_tree(main_pid, whom)
                break
        status = reap(main_pid)
    force_the_rest(main_pid)
    for pump in pumps:
        pump.finish()
    if status is None:
        return 137
    if os.WIFSIGNALED(status):
        # By the same signal: an exit code of 128 + N would be that of a profiler whose program was killed.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core worth having is the profiler's
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)
