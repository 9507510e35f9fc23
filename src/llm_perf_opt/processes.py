"""What the system says of processes: are they alive, what did they start, which files do they hold open."""

from __future__ import annotations

import contextlib
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Does a process of this number exist and is not merely waiting to be collected by its parent?"""
    import psutil  # here and below: every report imports this module, and few have to ask

    try:
        return pid > 0 and psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True  # of another user
    except (psutil.NoSuchProcess, OverflowError):
        return False


def started_at(pid: int) -> float | None:
    """When a process began, in seconds since 1970: with the number it names a process once and for all."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


def family(pid: int) -> list[int]:
    """A process and everything below it; empty where it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except (psutil.Error, ValueError, OverflowError):
        return []


def listening() -> list[int]:
    """Ports on which something listens that this process, or what it has started, has started."""
    import psutil

    found: set[int] = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            sockets = (
                child.net_connections(kind="tcp") if hasattr(child, "net_connections") else child.connections("tcp")
            )
            found |= {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
    return sorted(found)


def open_files(pid: int) -> list[tuple[str, int, tuple[int, int]]]:
    """Name, size and identity (device, inode) of each file a process holds open; deleted ones with their old name.

    Not `psutil.Process.open_files`: that leaves out files which were deleted, as profilers do with their streams.
    """
    found = []
    with contextlib.suppress(OSError):  # ended meanwhile
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(link.readlink()).removesuffix(" (deleted)")
                if name.startswith("/"):
                    status = link.stat()
                    found.append((name, status.st_size, (status.st_dev, status.st_ino)))
    return found
