"""Who is writing in a run directory.

The lock is held by the run and by everything it starts, so it is free exactly when nothing of the run is left,
however it ended: also after `kill -9`, when its profiler still has a report to write. It needs no clean-up.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from llm_perf_opt.errors import UserError
from llm_perf_opt.rundir.layout import LOCK

# File systems without locks: there is nothing to wait for then.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)


class Busy(UserError):
    """Another process is writing in the run directory."""

    def __init__(self, run: Path) -> None:
        super().__init__(
            f"{run} is in use: its run still goes on, or another command is working on it.",
            "Wait until it has ended; after a kill its profiler may need a minute. See: llm-perf runs list",
        )


def take(run: Path) -> int | None:
    """Hold the lock of a run until `release`; None where the file system has no locks. Raises `Busy`, `OSError`."""
    file = run / LOCK
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
        handle = os.open(run / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
