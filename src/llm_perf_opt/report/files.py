"""Writing: names that are safe on any file system, files that are whole or not there, nobody else's file replaced."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from llm_perf_opt import files
from llm_perf_opt.errors import UserError
from llm_perf_opt.rundir.generation import read_list
from llm_perf_opt.untrusted import read_head

_LONGEST = 80
_SAFE = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]*")
# Names Windows keeps for devices, with or without an extension.
_RESERVED = re.compile(r"(con|prn|aux|nul|conin|conout|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def folder_names(regions: Iterable[tuple[str, list[str]]]) -> list[str]:
    """One folder name for each (domain, path): readable, safe, and never the same twice.

    A name that had to be changed carries a hash of the true one; the true one is in the JSON.
    """
    taken: set[str] = set()
    names = []
    for domain, path in regions:
        plain = (f"{domain}@" if domain else "") + "__".join(path)
        faithful = (
            len(plain) <= _LONGEST
            and _SAFE.fullmatch(plain)
            and not plain.endswith(".")
            and not _RESERVED.fullmatch(plain)
            and not any("__" in part or "@" in part for part in (domain, *path))
        )
        name = plain
        if not faithful or plain.casefold() in taken:
            digest = hashlib.sha256(repr((domain, path, plain)).encode("utf-8", "surrogatepass")).hexdigest()
            readable = re.sub(r"[^A-Za-z0-9._@+-]+", "_", plain)[:_LONGEST].strip("._-") or "region"
            if _RESERVED.fullmatch(readable):  # whatever follows the dot, it is the device
                readable = readable.replace(".", "_")
            name = f"{readable}-{digest[:8]}"
            extra = 1
            while name.casefold() in taken:
                extra += 1
                name = f"{readable}-{digest[:8]}-{extra}"
        taken.add(name.casefold())
        names.append(name)
    return names


def make_folder(path: Path, option: str = "") -> Path:
    """Create an output folder, or say why that is not possible; `option` chooses another one."""
    fix = f"Choose another folder with {option}." if option else "Choose another folder."
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"{path} is a file, but must be a folder.", fix) from error
    except OSError as error:
        raise UserError(f"The folder {path} cannot be created: {error.strerror or error}.", fix) from error
    return path


def replaceable(
    paths: Iterable[Path], is_ours: Callable[[Path], bool], *, inputs: Sequence[Path] = (), force: bool = False
) -> list[Path]:
    """May these files be written? Raises UserError; with `force`, those that are replaced though they are not ours.

    Never one of the inputs, whatever it is called: a link and a second name of the same file count too. A link that
    leads elsewhere goes, what it leads to stays.
    """
    foreign = []
    for path in paths:
        same = next((given for given in inputs if path.exists() and given.exists() and path.samefile(given)), None)
        if same is not None:
            raise UserError(f"{path} is the input {same} itself.", "Write to another place; nothing was changed.")
        if path.is_symlink() or not path.exists():
            continue
        if not path.is_file():
            raise UserError(f"{path} is not a file.", "Write to another place.")
        if path.name in read_list(path.parent).files:
            foreign.append((path, "it belongs to the report there"))
        elif not is_ours(path):
            foreign.append((path, "llm-perf did not write it"))
    if foreign and not force:
        named = ", ".join(f"{path} ({why})" for path, why in foreign[:3])
        raise UserError(
            f"This would replace {named}. Nothing was written.",
            "Write to another place, or replace what is there with --force.",
        )
    return [path for path, _ in foreign]


def begins_with(path: Path, *beginnings: bytes) -> bool:
    """Does a file begin in one of these ways?"""
    try:
        return read_head(path, max(map(len, beginnings))).startswith(beginnings)
    except OSError:
        return False


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into that takes the place of `path` when it is whole, and is gone when that fails."""
    try:
        with files.replacing(path) as file:
            yield file
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}.", "Free some space or choose another place."
        ) from error


def write_text(path: Path, text: str) -> Path:
    """Write a file in one step: a reader never sees half of it, and a failure leaves the old one."""
    try:
        files.write_text(path, text)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}.",
            "Free some space or choose another folder with --out.",
        ) from error
    return path
