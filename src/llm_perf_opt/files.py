"""Files of this project on the user's disk: written whole or not at all, never through a link; and the cache folder.

Whoever looks at a file sees the old content or the new one, also after a kill. What a killed process leaves is
named `.NAME.PID.tmp` beside NAME, which is how `rundir.layout` knows it again. Reading what may come from anyone
is in `untrusted`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

# Half-written files: `.NAME.PID.tmp` or `.NAME.tmp` beside the file NAME that they were to become.
_UNFINISHED = re.compile(r"\.(?P<name>.+?)(?:\.\d+)?\.tmp")


def cache_folder() -> Path:
    """Where costs, durations, calibrations and the signing key of this user are: `$XDG_CACHE_HOME/llm-perf-opt`."""
    import platformdirs  # here: most who write files need no cache

    folder = Path(platformdirs.user_cache_dir("llm-perf-opt", appauthor=False))
    # The XDG rules: a relative path there is invalid and to be ignored.
    return folder if folder.is_absolute() else Path.home() / ".cache" / "llm-perf-opt"


def unfinished_name(path: Path) -> Path:
    """What a file is called while this process writes it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def finished_name(name: str) -> str | None:
    """The name of the file that a half-written one was to become; None where the name is not one of those."""
    found = _UNFINISHED.fullmatch(name)
    return found["name"] if found else None


@contextlib.contextmanager
def folder_below(root: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A handle of the folder `names` below `root`. A link on the way may lead anywhere, and is refused: OSError.

    Whoever works with the handle stays there, also when a program puts a link in place of the folder meanwhile.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number, name in enumerate(names):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            try:
                inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            except NotADirectoryError as error:
                path = root.joinpath(*names[: number + 1])
                why = "it is a link, and nothing is written through one" if path.is_symlink() else error.strerror
                raise NotADirectoryError(errno.ENOTDIR, why, str(path)) from error
            os.close(handle)
            handle = inside
        yield handle
    finally:
        os.close(handle)


def open_new(path: Path, mode: int = 0o666, folder: int | None = None) -> IO[bytes]:
    """A file that nobody had before: what lies there under its name goes, and a link is not followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path, dir_fd=folder)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder), "wb")


def open_to_append(path: Path) -> IO[bytes]:
    """A log or a list that grows; a link in its place is refused (OSError), and so is a pipe that nobody reads."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "ab")


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666, below: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write into that takes the place of `path` when it is whole, and is gone when that fails.

    `below`: a folder that others may write in, such as a run directory; from there on no link is followed.
    """
    with contextlib.ExitStack() as stack:
        folder, temporary, target = None, unfinished_name(path), path
        if below is not None:
            folder = stack.enter_context(folder_below(below, path.parent.relative_to(below).parts))
            temporary, target = Path(temporary.name), Path(path.name)
        try:
            with open_new(temporary, mode, folder) as file:
                yield file
            os.replace(temporary, target, src_dir_fd=folder, dst_dir_fd=folder)
        finally:  # an interrupt leaves nothing either
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


def write_text(path: Path, text: str, below: Path | None = None) -> None:
    """Write a file in one step. Raises OSError; then the old one is as it was.

    Names from recordings may hold what UTF-8 cannot, shown as an escape rather than lost.
    """
    with replacing(path, below=below) as file:
        file.write(as_bytes(text))


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
