"""Files of this project on the user's disk: written whole or not at all, never through a link; and the cache folder.

Whoever looks at a file sees the old content or the new one, also after a kill. What a killed process leaves is
named `.NAME.PID.tmp` beside NAME, which is how `rundir.layout` knows it again. Reading what may come from anyone
is in `untrusted`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
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


def open_new(path: Path, mode: int = 0o666) -> IO[bytes]:
    """A file that nobody had before: what lies there under its name goes, and a link is not followed."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write into that takes the place of `path` when it is whole, and is gone when that fails."""
    temporary = unfinished_name(path)
    try:
        with open_new(temporary, mode) as file:
            yield file
        temporary.replace(path)
    finally:  # an interrupt leaves nothing either
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step. Raises OSError; then the old one is as it was.

    Names from recordings may hold what UTF-8 cannot, shown as an escape rather than lost.
    """
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
