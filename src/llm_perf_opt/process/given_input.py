"""What llm-perf was given on standard input, for every run of the program: each reads it from the beginning.

Nothing is taken from standard input that the program does not read itself: a shell whose script comes in that way
(`ssh HOST bash < script`) must find the rest of it. So a file is opened again, and of a pipe whose writer has ended,
what it holds is copied without taking it out.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import stat
import struct
import subprocess
import termios

_NONBLOCK = 2  # SPLICE_F_NONBLOCK


class GivenInput:
    """Opened once for each run. A terminal is not passed on: nobody types the same thing several times."""

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self._began_at: int | None = None
        self._copy: int | None = None
        self._passed = False

    def open(self) -> int:
        """A descriptor for the caller to close, or DEVNULL."""
        try:
            kind = os.fstat(self._number).st_mode
            if stat.S_ISREG(kind):
                return self._file()
            if stat.S_ISFIFO(kind):
                return self._pipe()
            return os.dup(self._number) if stat.S_ISSOCK(kind) else subprocess.DEVNULL
        except OSError:
            return subprocess.DEVNULL

    def _file(self) -> int:
        if self._began_at is None:
            self._began_at = os.lseek(self._number, 0, os.SEEK_CUR)
        return _reopened(self._number, self._began_at)

    def _pipe(self) -> int:
        if self._passed:
            return os.dup(self._number) if self._copy is None else _reopened(self._copy, 0)
        self._passed = True
        with contextlib.suppress(OSError):  # the first run has it all the same
            held = _held(self._number)
            if held is not None:
                copy = os.memfd_create("input")
                os.write(copy, held)
                self._copy = copy
        return os.dup(self._number)


def _reopened(number: int, at: int) -> int:
    opened = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
    os.lseek(opened, at, os.SEEK_SET)
    return opened


def _held(pipe: int) -> bytes | None:
    """All that will ever come out of a pipe; None where more may come, or that cannot be told."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not any(event & select.POLLHUP for _, event in poll.poll(0)):
        return None
    (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    if not size:
        return None
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))
        copied = ctypes.CDLL(None, use_errno=True).tee(pipe, into, ctypes.c_size_t(size), _NONBLOCK)
        return os.read(out, size) if copied == size else None
    finally:
        os.close(out)
        os.close(into)


GIVEN_INPUT = GivenInput()
