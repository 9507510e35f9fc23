"""Who is writing in a run directory.

The lock is held by the run and by everything it starts, so it is free exactly when nothing of the run is left,
however it ended: also after `kill -9`, when its profiler still has a report to write. It needs no clean-up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from llm_perf_opt.errors import UserError
from llm_perf_opt.rundir.layout import LOCK, REPORT_LOCK
from llm_perf_opt.untrusted import read_text

# File systems without locks: there is nothing to wait for then.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)


class Busy(UserError):
    """Another process is writing in the run directory."""

    def __init__(self, run: Path, message: str = "", fix: str = "") -> None:
        super().__init__(
            message or f"{run} is in use: its run still goes on, or another command is working on it.",
            fix or "Wait until it has ended; after a kill its profiler may need a minute. See: llm-perf runs list",
        )


def take(run: Path, name: str = LOCK) -> int | None:
    """Hold the lock of a run until `release`; None where the file system has no locks. Raises `Busy`, `OSError`."""
    file = run / name
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise Busy(run) from error
        except OSError as error:
            os.close(handle)
            if error.errno in _UNSUPPORTED:
                return None
            raise
        try:
            if os.path.samestat(os.fstat(handle), os.stat(file, follow_symlinks=False)):  # noqa: PTH116 - no link is followed
                return handle
        except FileNotFoundError:
            os.close(handle)
            raise  # the whole run is gone
        os.close(handle)  # a lock on a file that was removed and made anew keeps no one out


def release(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def is_held(run: Path) -> bool:
    """Is any process writing there now? Leaves no trace."""
    try:
        handle = os.open(run / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def writing_report(folder: Path, patience_s: float = 20.0) -> Iterator[None]:
    """Only one process at a time puts a report into a folder: the next waits, and says who has it when that takes long.

    Not the lock of a run: a run that still goes on may be reported on.
    """
    deadline, file, handle = time.monotonic() + patience_s, folder / REPORT_LOCK, None
    while True:
        try:
            handle = take(folder, REPORT_LOCK)
            break
        except FileNotFoundError:  # the one before has just removed it
            if not folder.is_dir():
                raise
        except Busy as error:
            if time.monotonic() > deadline:
                fix = "Wait until that one has ended, or choose another folder with --out."
                raise Busy(folder, f"{_owner(file)} is writing a report to {folder}.", fix) from error
            time.sleep(0.01)
    try:
        if handle is not None:
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        try:
            if handle is not None:  # while it is held: who waits for this one looks whether it is still there
                with contextlib.suppress(OSError):
                    file.unlink()
        finally:
            release(handle)


def _owner(file: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"Process {int(read_text(file)[:20])}"
    return "Another process"
