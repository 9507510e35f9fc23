"""A small program that stands between us and a profiler, so that nothing outlives a run.

    python -I guard.py PIPE_FD tree|PID_FILE -- PROFILER ARGUMENTS…

Profilers start programs that start programs; some leave the process group, and ncu itself is often a
shell script around the real one. The guard becomes the reaper of all of them. It ends the whole tree
when it is told to (SIGINT, SIGTERM), when the profiler has ended and something is left over, and when
the pipe from its parent closes, which it does even if the parent is killed with SIGKILL.

The first, polite signal goes to the whole tree (`tree`: ncu is often a shell script around the real one,
which never hears of a signal to the script), or to the program whose process id is in PID_FILE and then
to the profiler alone: nsys keeps the kernels only if the program ends by itself, keeps the rest if it is
interrupted itself, and loses everything when its helpers are signalled too. Before any signal, the command
in LLM_PERF_STOP (a JSON list) is run: `nsys stop` writes the whole report, kernels included, while the
program is still alive.

It is started by path with `-I`, imports nothing of this package, and exits as the profiler did.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Profilers write their report after an interrupt: that is worth waiting for.
POLITE_SECONDS = float(os.environ.pop("LLM_PERF_GRACE_S", "60"))
# Taken out of the environment: it is for us, not for the program.
STOP_COMMAND = json.loads(os.environ.pop("LLM_PERF_STOP", "[]"))
TERM_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """All processes below `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The command name is in brackets and may hold anything, so count from behind it.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
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
        pid = int(Path(pid_file).read_text(encoding="ascii"))
        if pid in descendants(os.getpid()):
            return [pid, *descendants(pid)]
    return []


def save_first() -> None:
    """Let the profiler write its report; without success the signals below save what they can."""
    if STOP_COMMAND:
        # Not checked: that it failed is seen by the missing report, and the signals must follow in any case.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(STOP_COMMAND, stdin=subprocess.DEVNULL, timeout=POLITE_SECONDS, check=False)


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
    for number, targets, patience in ways:
        pids = targets()
        if not pids:
            continue
        send(number, pids)
        until = time.monotonic() + patience
        while time.monotonic() < until:
            how = reap(main)
            status = how if how is not None else status
            if not descendants(os.getpid()):
                return status
            time.sleep(0.05)
    return status


def main() -> int:
    pipe, whom, argv = int(sys.argv[1]), sys.argv[2], sys.argv[4:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            if int(name) > 2:  # the pipe, and the lock of the run: ours, not the program's
                os.set_inheritable(int(name), False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    main_pid = os.fork()
    if main_pid == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(argv[0], argv)  # noqa: S606 - no shell, by design
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([pipe, wake_read], [], [])
        if pipe in ready and not os.read(pipe, 1):
            status = end_tree(main_pid, whom)
            break
        if wake_read in ready:
            numbers = set(os.read(wake_read, 4096))
            if numbers & {signal.SIGINT, signal.SIGTERM}:
                status = end_tree(main_pid, whom)
                break
        status = reap(main_pid)
    # What is left when the profiler has gone belongs to nobody.
    if descendants(os.getpid()):
        send(signal.SIGKILL, descendants(os.getpid()))
        reap(main_pid)
    if status is None:
        return 137
    if os.WIFSIGNALED(status):
        # By the same signal: an exit code of 128 + N would be that of a profiler whose program was killed.
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main())
