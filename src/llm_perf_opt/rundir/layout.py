"""Which files of a run directory this project wrote.

Only those are ever moved, packed or deleted. A name counts as ours where it is fixed, where the manifest lists it,
or where the report lists it; everything else in the folder is somebody else's. Manifests and lists may come from
strangers: a name in them never leads out of the folder, and links are never followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from attrs import define

from llm_perf_opt.nsight.nsys.gpu_metrics import TRAFFIC_SET
from llm_perf_opt.rundir.directory import MANIFEST, RESERVE, Manifest, Step
from llm_perf_opt.rundir.lock import LOCK

PACKED = (".gz", ".xz")
REPORT_LIST = ".llm-perf-files"  # what the report in the folder consists of
OF_CAPTURE = (
    ".ncu-rep",
    ".log",
    "-workload.log",
    "-windows.json",
    "-windows.jsonl",
    "-gate.json",
    "-gate.jsonl",
)  # endings of what ncu's runs leave
EARLIER = re.compile(r"earlier-(\d{1,6})")  # folders of what was taken again when the run was resumed
_ROOT = (
    *(
        MANIFEST,
        LOCK,
        RESERVE,
        REPORT_LIST,
        "env.json",
        "config.yaml",
        "inputs.yaml",
        "plan.json",
        "annotate.jsonl",
        "cmd.txt",
    ),
    *("stage1.log", "workload.log", "predictions.jsonl"),
)
_STAGE1 = (
    *(
        f"torch_profiler/{name}"
        for name in ("report.md", "operators.md", "metrics.json", "trace.json", "trace.json.gz")
    ),
    *(f"static_analysis/static_compute.{ending}" for ending in ("json", "md")),
)
_WORKLOAD = tuple(f"workload/{name}" for name in ("env.json", "inputs.yaml", "predictions.jsonl", *_STAGE1))
_NSYS = tuple(
    f"nsys/{name}"
    for name in (
        *("run.nsys-rep", "run.qdstrm", "run.sqlite", "summary_cuda_gpu_kern_sum.csv", "nsys.log", "cmd.txt"),
        *(TRAFFIC_SET, ".program.pid", ".run.sqlite.tmp"),
    )
)
_NCU = tuple(f"ncu/{name}" for name in ("cmd.txt", "raw.csv", "sections_report.txt"))
_FIXED = frozenset((*_ROOT, *_STAGE1, *_WORKLOAD, *_NSYS, *_NCU))
# Half-written files: `.NAME.PID.tmp` or `.NAME.tmp` beside the file NAME that they were to become.
_UNFINISHED = re.compile(r"\.(?P<name>.+?)(?:\.\d+)?\.tmp")
_FOLDER_OF = {"nsys": "nsys", "export": "nsys", "stats": "nsys", "ncu": "ncu", "raw": "ncu"}


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
            why = "" if is_known(name, ours) else "llm-perf did not write it"
        found.append(RunFile(name, status.st_size, why))
    return sorted(found, key=lambda file: file.name)


def is_known(name: str, ours: frozenset[str]) -> bool:
    """Is this path below a run one of `ours`, whole or unfinished, packed or not, set aside or not?"""
    path = PurePosixPath(name)
    if len(path.parts) > 1 and EARLIER.fullmatch(path.parts[0]):
        path = path.relative_to(path.parts[0])
    if unfinished := _UNFINISHED.fullmatch(path.name):
        path = path.with_name(unfinished["name"])
    plain = str(path)
    return plain in ours or any(plain.removesuffix(ending) in ours for ending in PACKED)


def _names(run: Path, manifest: Manifest) -> frozenset[str]:
    names = set(_FIXED)
    for step in (*manifest.steps, *manifest.earlier_steps):
        names.update(_of_step(step))
    names.update(listed_in_report(run))
    return frozenset(names)


def _of_step(step: Step) -> Iterator[str]:
    folder = _FOLDER_OF.get(step.name)
    if folder is None:
        return
    for name in step.files:
        if _is_plain(name):
            yield f"{folder}/{name}"
    if step.name in ("ncu", "raw") and step.capture and _is_plain(step.capture):
        for ending in OF_CAPTURE:
            yield f"ncu/{step.capture}{ending}"
        yield f"ncu/raw-{step.capture}.csv"


def listed_in_report(folder: Path) -> set[str]:
    """Files of the report in a folder, as it lists them itself."""
    try:
        handle = os.open(folder / REPORT_LIST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, encoding="utf-8") as file:
            names = file.read(16 << 20).splitlines()
    except (OSError, UnicodeDecodeError):
        return set()
    return {name for name in names if name and all(map(_is_plain, name.split("/")))}


def _is_plain(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _walk(folder: Path, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Names and states below a folder; links are told, not followed. What cannot be looked at raises OSError."""
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
    if len(parts) == 1:
        try:
            os.unlink(parts[0], dir_fd=folder)
        except FileNotFoundError:
            return  # somebody was faster
        return
    try:
        below = os.open(parts[0], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        _remove_one(below, parts[1:])
    finally:
        os.close(below)
    remove_empty(parts[0], folder)


def remove_empty(name: str | Path, inside: int | None = None) -> bool:
    """Delete a folder if nothing is in it; whether it is gone."""
    try:
        os.rmdir(name, dir_fd=inside)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
