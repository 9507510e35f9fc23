"""Which runs there are below a folder, how each of them ended, and what it takes on the disk.

Looks only: nothing is changed, and what cannot be looked at is named instead of passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from attrs import Factory, define

from llm_perf_opt.errors import UserError
from llm_perf_opt.processes import is_alive
from llm_perf_opt.rundir.contents import RunFile, files_of
from llm_perf_opt.rundir.job import is_job, rank_folders
from llm_perf_opt.rundir.layout import MANIFEST, SWEEP, SWEEP_FILES
from llm_perf_opt.rundir.lock import is_held
from llm_perf_opt.rundir.manifest import Manifest, read_manifest
from llm_perf_opt.untrusted import read_head

RUNS = Path("tmp") / "profile-output"  # where runs go unless asked otherwise
_DEEPEST = 3  # a sweep keeps its runs one folder deeper
# States in which nothing works on a run any more.
OVER = ("done", "failed", "interrupted", "killed")


@define
class Run:
    """A run directory, as it is now."""

    path: Path
    state: str  # those of OVER | "running" | "unknown" | "damaged" | "unreadable"
    started: datetime
    manifest: Manifest | None = None
    files: list[RunFile] = Factory(list)
    problem: str = ""  # why it is left alone

    @property
    def bytes(self) -> int:
        """What this project wrote there."""
        return sum(file.bytes for file in self.files if file.is_ours)

    @property
    def foreign(self) -> list[RunFile]:
        return [file for file in self.files if not file.is_ours]


@define
class Inventory:
    """The runs below a folder, newest first, and what is no run or could not be looked at."""

    folder: Path
    runs: list[Run]
    others: list[tuple[Path, str]] = Factory(list)  # with the reason

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)


def take_inventory(folder: Path) -> Inventory:
    """All runs below a folder, or the folder itself where it is one."""
    if not folder.exists():
        if folder == RUNS:
            return Inventory(folder, [])
        raise UserError(f"There is no folder {folder}.", "Give a run, or a folder of runs.")
    if not folder.is_dir():
        raise UserError(f"{folder} is a file.", "Give a run, or a folder of runs.")
    found = Inventory(folder, [])
    if (folder / MANIFEST).exists():
        found.runs.append(look_at(folder))
    elif is_job(folder):
        found.runs += map(look_at, rank_folders(folder).values())
    else:
        for path, reason in _below(folder, _DEEPEST):
            if reason:
                found.others.append((path, reason))
            else:
                found.runs.append(look_at(path))
    found.runs = [run for run in found.runs if run.path.exists()]  # another prune may be at work
    found.runs.sort(key=lambda run: (run.started, str(run.path)), reverse=True)
    return found


def _below(folder: Path, depth: int) -> Iterator[tuple[Path, str]]:
    """Folders with a manifest (no reason), and what else there is, with the reason why it is no run."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        yield folder, f"it cannot be read: {error.strerror}"
        return
    for entry in entries:
        path = Path(entry.path)
        try:
            if entry.is_symlink():
                yield path, "it is a link"
            elif is_of_sweep(path):
                continue
            elif not entry.is_dir(follow_symlinks=False):
                yield path, "llm-perf did not write it"
            elif (path / MANIFEST).exists():
                yield path, ""
            elif is_job(path):
                yield path, "it holds the ranks of a job, which are runs of their own: give this folder"
            elif depth > 1 and any(not why for _, why in _below(path, depth - 1)):
                yield from _below(path, depth - 1)
            else:
                os.listdir(path)  # noqa: PTH208 - only whether it can be read
                yield path, "there is no run in it"
        except OSError as error:
            yield path, f"it cannot be read: {error.strerror}"


def is_of_sweep(path: Path) -> bool:
    """Is this what Hydra leaves beside the runs of a sweep, or their comparison?"""
    begins = {SWEEP: b"hydra:", **SWEEP_FILES}.get(path.name)
    return begins is not None and path.is_file() and read_head(path, len(begins)) == begins


def look_at(path: Path) -> Run:
    """One run."""
    fallback = datetime.fromtimestamp(0, UTC)
    try:
        fallback = datetime.fromtimestamp((path / MANIFEST).lstat().st_mtime, UTC)
        manifest = read_manifest(path)
    except UserError as error:
        state = "running" if is_held(path) else "damaged"
        return Run(path, state, fallback, problem=error.message)
    except OSError as error:
        return Run(path, "unreadable", fallback, problem=f"It cannot be read: {error.strerror} ({error.filename}).")
    run = Run(path, _state(path, manifest), _time(manifest.started_at) or fallback, manifest)
    try:
        run.files = files_of(path, manifest)
    except OSError as error:
        run.state, run.problem = "unreadable", f"It cannot be read: {error.strerror} ({error.filename})."
    if run.state == "running":
        run.problem = "It still goes on, or a command is working on it."
    elif run.state == "unknown":
        run.problem = f"It may still go on, on {manifest.host or 'another machine'}."
    return run


def _state(path: Path, manifest: Manifest) -> str:
    if is_held(path):
        return "running"
    if manifest.state != "running":
        return manifest.state if manifest.state in OVER else "unknown"
    if manifest.host != os.uname().nodename:
        return "unknown"
    return "running" if is_alive(manifest.pid) else "killed"  # file systems without locks


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
        # In the year 1 or 9999 another time zone may be one too many.
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
