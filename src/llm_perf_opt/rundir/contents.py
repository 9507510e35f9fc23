"""Which files are in a run directory, and which of them this project wrote.

Only those are ever moved, packed or deleted. A name counts as ours where `layout` has it fixed, where the manifest
names a step or capture that writes it, or where the report lists it, and of a report also its content says so;
everything else in the folder belongs to someone else. Manifests and lists are untrusted: a name in them never leads
out of the folder, and links are never followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from attrs import define

from llm_perf_opt.rundir.generation import is_ours, read_list
from llm_perf_opt.rundir.layout import artefact, fixed_names, is_half_written, is_known, names_of_step
from llm_perf_opt.rundir.manifest import Manifest


@define(frozen=True)
class RunFile:
    """A file below a run directory."""

    name: str  # its path below the run, with slashes
    bytes: int
    why_not_ours: str = ""  # empty: this project wrote it

    @property
    def is_ours(self) -> bool:
        return not self.why_not_ours


def files_of(run: Path, manifest: Manifest) -> list[RunFile]:
    """Everything below a run directory that is no folder, sorted by name."""
    ours = _names(run, manifest)
    found = []
    for name, status in _walk(run):
        if not stat.S_ISREG(status.st_mode):
            why = "it is a link" if stat.S_ISLNK(status.st_mode) else "it is no regular file"
        else:
            row = artefact(name)
            known = is_known(name, ours) and (row is None or row.step != "report" or is_ours(run, name))
            why = "" if known else "llm-perf did not write it"
        found.append(RunFile(name, status.st_size, why))
    return sorted(found, key=lambda file: file.name)


def _names(run: Path, manifest: Manifest) -> frozenset[str]:
    steps = (*manifest.steps, *manifest.earlier_steps)
    named = {name for step in steps for name in names_of_step(step.name, step.capture, step.files)}
    return fixed_names() | named | read_list(run).files.keys()


def files_below(folder: Path) -> Iterator[str]:
    """Paths of everything below a folder that is no folder itself. Raises OSError."""
    return (name for name, _ in _walk(folder))


def _walk(folder: Path, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Names and states below a folder; links are named, not followed. What cannot be looked at raises OSError."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False)


def remove(run: Path, names: list[str]) -> None:
    """Delete files below a run, and the folders this empties; no link on the way is followed. Raises OSError."""
    root = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for name in names:
            _remove_one(root, PurePosixPath(name).parts)
    finally:
        os.close(root)


def _remove_one(folder: int, parts: tuple[str, ...]) -> None:
    name, *rest = parts
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        if not rest:
            os.unlink(name, dir_fd=folder)
            return
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            _remove_one(below, tuple(rest))
        finally:
            os.close(below)
        remove_empty(name, folder)


def remove_empty(name: str | Path, inside: int | None = None) -> bool:
    """Delete a folder if nothing is in it; whether it is gone."""
    try:
        os.rmdir(name, dir_fd=inside)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_unfinished(run: Path) -> None:
    """Remove what a killed process was writing: nobody writes now. Raises OSError."""
    names = [name for name, status in _walk(run) if stat.S_ISREG(status.st_mode)]
    remove(run, [name for name in names if is_half_written(name)])
