"""Reads an untrusted file in a process of its own, with limits in proportion to the file.

A damaged or hostile file can make native code crash, take all memory or never return: NVIDIA's reader, SQLite, or a
page of a mapped file that is cut while it is read. Here it can do none of that to the program that asked: the
process is limited by the system (memory, CPU time, what it writes), watched from outside, ended by SIGKILL, and ended
too where the program that asked is. What went wrong is an `UnreadableInput` that says so.

The process is a fork where this is the only thread: nothing is imported again, and it costs a few milliseconds. Where
others run, one of them may hold a lock that nobody would release in the copy: there, a new interpreter is started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from attrs import astuple, define, field

from llm_perf_opt import errors
from llm_perf_opt.errors import UnreadableInput, UserError
from llm_perf_opt.readers import handover

Notes = Callable[[str, Any], None]  # told of what the reader notes on its way: its name, and a value of JSON

_SECONDS, _BYTES_A_SECOND = 7.0, 2_000_000  # of CPU
_USUAL_RATIO = 40  # what unpacks to more than that is small for what it asks for
_MEMORY, _MEMORY_PER_BYTE = 900 << 20, 30  # beside what is in use when the reading begins
_ANSWER, _ANSWER_PER_BYTE = 64 << 20, 16  # written, whether as an answer or unpacked
_MOST_NOTES = 16 << 20  # bytes; a note is a few dozen
_LOOK_EVERY = 0.1  # seconds
_AGAIN = "Copy the file again, or record again."
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


@define(frozen=True)
class Limits:
    """What reading may cost, by what it reads."""

    size: int  # bytes of the file
    packed: int | None = None  # bytes of the file it was unpacked from
    written: int = 0  # bytes of files, where that is more than an answer takes

    @classmethod
    def of_packed(cls, packed: int) -> Limits:
        """Of a file that is unpacked as it is read: it holds what such files do, at most."""
        return cls(_USUAL_RATIO * packed, packed)

    @property
    def seconds(self) -> int:
        size = self.size if self.packed is None else min(self.size, _USUAL_RATIO * self.packed)
        return math.ceil(_SECONDS + size / _BYTES_A_SECOND)

    @property
    def memory(self) -> int:
        return _MEMORY + _MEMORY_PER_BYTE * self.size

    @property
    def answer(self) -> int:
        return max(_ANSWER + _ANSWER_PER_BYTE * self.size, self.written)


@define
class Answer:
    """What a process said: a description and columns in a file in memory, and where in it."""

    fd: int  # its own, closed with it
    at: int
    length: int

    def value(self) -> Any:
        """Made anew each time."""
        return handover.read(self.fd, self.at, self.length)

    def __del__(self) -> None:
        os.close(self.fd)


def ask(job: str, arguments: list[Any], source: str, limits: Limits, notes: Notes | None = None) -> Answer:
    """Run `MODULE:FUNCTION` with `arguments` (of JSON) in a process of its own. It is also given `notes`.

    Raises the `UserError` it raised, or `UnreadableInput` where it did not end by itself. `source` is for messages.
    """
    started = _prefetched.pop((job, *arguments, limits), None) or _Job.start(job, arguments, limits)
    with contextlib.closing(started):
        try:
            last = _hear(started.child, started.hear, source, limits, notes or (lambda name, value: None))
        finally:
            started.child.end()
        if "end" in last:
            return Answer(os.dup(started.answer.fileno()), *last["end"])
    raise _as_raised(source, *last["error"]) if "error" in last else _ended(source, started.child.code, limits)


def prefetch(job: str, arguments: list[Any], limits: Limits) -> None:
    """Begin what will be asked for in the same words; where nobody asks after all, it ends with this program."""
    _prefetched[(job, *arguments, limits)] = _Job.start(job, arguments, limits)


def call(job: str, arguments: list[Any], source: str, limits: Limits, notes: Notes | None = None) -> Any:
    """The same, and what the answer says."""
    return value_of(ask(job, arguments, source, limits, notes), source)


def value_of(answer: Answer, source: str) -> Any:
    try:
        return answer.value()
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UnreadableInput(
            f"{source} is damaged: what its reader made of it makes no sense ({type(error).__name__}).", _AGAIN
        ) from error


def memory_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("llm-perf"), "w+b")
    return tempfile.TemporaryFile()


# -- the process, from outside ----------------------------------------------------------------------


@define
class _Job:
    """A process at work."""

    child: _Child
    answer: IO[bytes]  # what it writes
    hear: int  # the end of a pipe where it says how it gets on

    @staticmethod
    def start(job: str, arguments: list[Any], limits: Limits) -> _Job:
        importlib.import_module(job.partition(":")[0])  # before the fork: once for all files
        with contextlib.ExitStack() as stack:
            answer = memory_file()
            stack.callback(answer.close)
            hear, tell = os.pipe()
            stack.callback(os.close, hear)
            try:
                start = _fork if threading.active_count() == 1 and hasattr(os, "fork") else _spawn
                child = start(job, arguments, answer, tell, limits)
            finally:
                os.close(tell)
            stack.pop_all()  # they stay open for as long as it is asked
        return _Job(child, answer, hear)

    def close(self) -> None:
        self.answer.close()
        os.close(self.hear)


_prefetched: dict[tuple[Any, ...], _Job] = {}  # by what was asked


@define
class _Child:
    pid: int
    wait: Callable[[], int]
    code: int | None = None
    _began: float = field(factory=time.monotonic)

    def end(self) -> None:
        """Also where it has said everything: nobody needs to see it clean up."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.code = self.wait()

    def idle_seconds(self) -> float:
        """How long it has neither worked nor been kept from working by others."""
        passed = time.monotonic() - self._began
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name is in brackets and may hold anything, so count from behind it.
            fields = Path(f"/proc/{self.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            worked = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            queued = int(Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
            return passed - worked - queued
        return passed / 4  # nothing says how busy the machine is


def _hear(child: _Child, fd: int, source: str, limits: Limits, notes: Notes) -> dict[str, list[Any]]:
    """Pass on the notes until the last word, which is returned; empty where the process ends without one."""
    held, heard = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            if not selector.select(_LOOK_EVERY):
                if child.idle_seconds() > limits.seconds:
                    raise _refused(source, f"its reader did not answer for {limits.seconds} s")
                continue
            part = os.read(fd, 1 << 16)
            heard += len(part)
            if heard > _MOST_NOTES:
                raise _refused(source, "its reader answers without an end")
            if not part:
                child.end()  # it is about to, as whatever ended it says
                return {}
            *lines, held = (held + part).split(b"\n")
            for line in lines:
                kind, said = _parsed(line, source)
                if kind != "note":
                    return {kind: said}
                notes(*said)


def _parsed(line: bytes, source: str) -> tuple[str, list[Any]]:
    """A word and its values. What runs in the process is not trusted: anything may be in the pipe."""
    with contextlib.suppress(ValueError, TypeError):
        kind, *said = json.loads(line)
        lengths = {"note": 2, "end": 2, "error": 3}
        if kind in lengths and len(said) == lengths[kind]:
            return kind, said
    raise _refused(source, "its reader says what makes no sense")


def _refused(source: str, what: str) -> UnreadableInput:
    return UnreadableInput(f"{source} is damaged: {what}.", _AGAIN)


def _as_raised(source: str, kind: str, message: str, fix: str) -> UserError:
    if kind == "memory":
        return _refused(source, "reading it takes more memory than a recording of its size needs")
    if kind == "file":
        return UnreadableInput(f"{source} cannot be read: {message}.", _AGAIN)
    if kind not in ("UserError", "UnreadableInput", "MissingTool"):
        return _refused(source, f"its reader failed ({kind}: {message})")
    raised: UserError = getattr(errors, kind)(str(message), str(fix))
    return raised


def _ended(source: str, code: int | None, limits: Limits) -> UnreadableInput:
    if code == -signal.SIGBUS:
        return UnreadableInput(
            f"{source} was truncated or rewritten while it was read.",
            "Wait until nothing writes to it, or give a copy.",
        )
    if code == -signal.SIGXCPU:
        return _refused(source, f"reading it takes more than {limits.seconds} s, which no recording of its size does")
    if code == -signal.SIGKILL:
        return UnreadableInput(
            f"The process that read {source} was killed, most likely because the machine ran out of memory.",
            "Free some memory, or use a machine with more.",
        )
    how = f"exit code {code}"
    with contextlib.suppress(ValueError):
        how = signal.Signals(-(code or 0)).name
    return _refused(source, f"its reader crashed on it ({how})")


# -- starting it ------------------------------------------------------------------------------------


def _fork(job: str, arguments: list[Any], answer: IO[bytes], tell: int, limits: Limits) -> _Child:
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns of the threads of native libraries; none of them is used in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # what is there already is not gone through, and so not copied
            leave(parent, answer.fileno(), tell)
            _work(job, arguments, answer, tell, limits)
        finally:
            os._exit(1)

    def wait() -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:  # whoever started us ignores SIGCHLD: the system has collected it
            return 0

    return _Child(pid, wait)


def _spawn(job: str, arguments: list[Any], answer: IO[bytes], tell: int, limits: Limits) -> _Child:
    # The path of this process without the working directory: nothing beside a recording is imported.
    path = [folder for folder in sys.path if folder]
    order = [path, job, arguments, answer.fileno(), tell, os.getpid(), astuple(limits)]
    program = "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order[0]; "
    program += f"from {__name__} import _begin; _begin(*order[1:])"
    argv = [sys.executable, "-P", "-c", program, json.dumps(order)]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(answer.fileno(), tell),
    )
    return _Child(process.pid, process.wait)


def _begin(job: str, arguments: list[Any], answer: int, tell: int, parent: int, limits: list[Any]) -> None:
    leave(parent, answer, tell)
    _work(job, arguments, os.fdopen(answer, "w+b"), tell, Limits(*limits))


# -- inside it --------------------------------------------------------------------------------------


def leave(parent: int, *kept: int) -> None:
    """Give up what belongs to the program that asked, and end with it."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent hears it too, and ends us
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    silent = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(silent, fd)
    sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8")
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
            if int(name) > 2 and int(name) not in kept:
                with contextlib.suppress(OSError):  # that of the listing itself is closed
                    os.close(int(name))


def _limit(limits: Limits) -> None:
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _lower(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + limits.memory)
    _lower(resource.RLIMIT_CPU, limits.seconds, 1)  # SIGXCPU, and a second later SIGKILL
    _lower(resource.RLIMIT_FSIZE, limits.answer)
    _lower(resource.RLIMIT_CORE, 0)  # a crash must not leave a file in the user's folder


def _lower(which: int, wanted: int, more: int = 0) -> None:
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which))
    resource.setrlimit(which, (int(min(wanted, soft, hard)), int(min(wanted + more, hard))))


def _work(job: str, arguments: list[Any], answer: IO[bytes], tell: int, limits: Limits) -> None:
    """Do the job, and say what came of it. Does not return."""

    def say(*said: Any) -> None:
        os.write(tell, json.dumps(said).encode("ascii") + b"\n")

    try:
        module, _, function = job.partition(":")
        found = getattr(importlib.import_module(module), function)
        _limit(limits)
        value = found(*arguments, notes=lambda name, value: say("note", name, value))
        say("end", *handover.write(value, answer))
    except UserError as error:
        say("error", type(error).__name__, error.message, error.fix)
    except MemoryError:
        say("error", "memory", "", "")
    except OSError as error:
        say("error", "memory" if error.errno in (errno.EFBIG, errno.ENOMEM) else "file", str(error.strerror), "")
    except BaseException as error:  # a flaw of a reader costs this recording, and not those beside it
        say("error", type(error).__name__, str(error)[:300], "")
    os._exit(0)
