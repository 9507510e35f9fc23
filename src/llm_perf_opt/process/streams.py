"""Standard streams that outlive whoever is at the other end: closed from the start, or a reader that goes away.

Nothing of a run depends on what it prints. Without a terminal it says nothing more, and goes on or ends as it was
told to by the signal that comes with the loss; behind `| head` it does its work and ends with the code it would have.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any

_GONE = (errno.EIO, errno.EPIPE, errno.ECONNRESET)
_MEMORY_DEVICES = 1  # /dev/null, /dev/full


def keep_open() -> None:
    """For programs of ours, at their start."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            found = os.fstat(number)
        except OSError:
            # Who starts us with a stream closed (`>&-`) wants nothing to be said there; files must not get its number.
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            if getattr(sys, name) is None:
                stream = open(opened, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
            continue
        # By the kind of its device, not `isatty`: one that is gone says that it is no terminal.
        terminal = stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) != _MEMORY_DEVICES
        if number and (terminal or stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
            setattr(sys, name, _lasting(number, getattr(sys, name)))


def _lasting(number: int, stream: Any) -> Any:
    if not isinstance(stream, io.TextIOWrapper):  # somebody's own
        return stream
    out = io.BufferedWriter(_Lasting(number, "w", closefd=False))
    at_once = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
    return io.TextIOWrapper(out, stream.encoding, stream.errors, newline="\n", **at_once)


class _Lasting(io.FileIO):
    """Writes to a terminal, pipe or socket as long as somebody reads."""

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # also for what others write to it
            os.close(nowhere)
            return memoryview(data).nbytes
