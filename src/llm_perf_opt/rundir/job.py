"""The folder that the ranks of one job share: which job it is, a run directory for each rank, and who is done.

Ranks run on many machines and see one folder through a network file system. So nothing is locked between them and no
file has two writers: `job.json` is made once, by whoever comes first and as a whole; everything else of a rank is in
its own run directory, whose manifest says how far it is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import attrs
from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.errors import UserError
from llm_perf_opt.files import finished_name, open_new
from llm_perf_opt.regions.names import visible
from llm_perf_opt.rundir.layout import (
    JOB,
    MANIFEST,
    MERGED_BY,
    RANKS,
    Input,
    input_patterns,
    rank_folder,
    rank_of_folder,
)
from llm_perf_opt.rundir.manifest import LARGEST_MANIFEST
from llm_perf_opt.rundir.state import RunState, state_of
from llm_perf_opt.untrusted import read_json

_LARGEST = 1 << 20
_OVER = ("done", "failed", "interrupted")
_ELSEWHERE = "Give every job a folder of its own with --out."
_AGAIN = "For what is missing start the job again, with another folder."
_MOST_LISTED = 8
_MOST_OF_A_CODE = 4  # diagnoses; more ranks say the same in other words
MOST_RANKS = 200_000  # of a job: more there are nowhere
_LONGEST = 1_000  # text that names ranks


@define(frozen=True)
class JobFacts:
    """What `job.json` holds: the same for all ranks."""

    job: str  # what the launcher calls it; empty: it has no name
    launcher: str
    size: int | None  # ranks of the job
    ranks: str  # which of them are profiled, as it was asked for
    made_by: str
    command: list[str] = Factory(list)  # the program with its arguments, cleaned


def join_job(out: Path, facts: JobFacts, rank: int) -> Path:
    """The run directory of a rank, which is not made yet. The folder of the job and `job.json` are there afterwards."""
    try:
        if out.is_dir() and not (out / JOB).exists() and any(map(_is_foreign, out.iterdir())):
            raise UserError(f"The folder {out} is not empty.", _ELSEWHERE)
        (out / RANKS).mkdir(parents=True, exist_ok=True)
        _write_once(out / JOB, json.dumps(attrs.asdict(facts), indent=1) + "\n", rank)
    except OSError as error:
        raise UserError(f"The folder {out} cannot be written: {error.strerror or error}.", _ELSEWHERE) from error
    found = read_job(out)
    if found is None or (found.job, found.size, found.made_by) != (facts.job, facts.size, facts.made_by):
        raise UserError(f"{out} belongs to another job.", _ELSEWHERE)
    folder = out / rank_folder(rank)
    if folder.exists():
        raise UserError(f"{out} has a run of rank {rank} already.", _ELSEWHERE)
    return folder


def _is_foreign(entry: Path) -> bool:
    """Other ranks may have begun: their folder is there, and `job.json` or what becomes it."""
    return entry.name not in (RANKS, JOB) and finished_name(entry.name) != JOB


def _write_once(file: Path, text: str, rank: int) -> None:
    """Whoever is first writes it, and nobody ever sees a part of it. Raises OSError."""
    if file.exists():
        return
    temporary = file.with_name(f".{file.name}.{rank}.tmp")  # of this rank: process ids are the same on two machines
    try:
        with open_new(temporary) as handle:
            handle.write(text.encode())
        try:
            file.hardlink_to(temporary)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links; the content of all ranks is the same
            temporary.replace(file)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read_job(folder: Path) -> JobFacts | None:
    """None where this is not the folder of a job."""
    try:
        content = read_json(folder / JOB, _LARGEST)
        facts = {name: content[name] for name in attrs.fields_dict(JobFacts)}
        found = JobFacts(**facts)
        texts = (found.job, found.launcher, found.ranks, found.made_by, *found.command)
        plain = type(found.size) in (int, type(None)) and (found.size or 0) <= MOST_RANKS
        if not plain or not all(isinstance(text, str) for text in texts) or len(found.ranks) > _LONGEST:
            return None
        wanted_ranks(found.ranks, found.size)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None
    return found


def rank_folders(folder: Path) -> dict[int, Path]:
    """The run directories of a job by rank, in order; none where it is no job."""
    try:
        below = [path for path in (folder / RANKS).iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return {}
    found = {rank: path for path in below if (rank := rank_of_folder(path)) is not None}
    return dict(sorted(found.items()))


def is_job(folder: Path) -> bool:
    return read_job(folder) is not None and bool(rank_folders(folder))


def ranks_over(folder: Path) -> set[int]:
    """The ranks whose run has ended."""
    return {rank for rank, path in rank_folders(folder).items() if _manifest(path).get("state") in _OVER}


def claim_merge(folder: Path, rank: int) -> bool:
    """Whether this rank is the one that makes the report of all; the next to ask is not."""
    try:
        handle = os.open(folder / MERGED_BY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except OSError:
        return False
    os.write(handle, f"{rank}\n".encode())
    os.close(handle)
    return True


def state_of_job(folder: Path) -> RunState:
    """What all ranks say of themselves: who failed, and where, the first to end before the others."""
    found = {rank: (state_of(path), _manifest(path)) for rank, path in rank_folders(folder).items()}
    told: dict[tuple[str, str, str, str], list[str]] = {}
    for rank, (state, manifest) in sorted(found.items(), key=lambda one: (_ended_at(one[1][1]), one[0])):
        for one in state.diagnostics if state is not None else ():
            fix = _AGAIN if "--resume" in one.fix else one.fix  # one rank alone cannot be run again
            key = one.code, one.severity, one.message, fix
            told.setdefault(key, []).append(f"rank {rank} on {_node(manifest)} ({rank_folder(rank)})")
    diagnostics = []
    by_code: Counter[str] = Counter()
    for (code, severity, message, fix), places in told.items():
        by_code[code] += 1
        if by_code[code] <= _MOST_OF_A_CODE:
            message = message if severity == "info" else f"{_listed(places)}: {message}"
            diagnostics.append(Diagnosis(code, severity, message, fix))
    more = sum(max(count - _MOST_OF_A_CODE, 0) for count in by_code.values())
    diagnostics += [diagnose("RANKS_SAY_MORE", count=more)] if more else []
    selection = next((state.selection for state, _ in found.values() if state is not None), {})
    silent = {
        rank
        for rank, (state, _) in found.items()
        if state is None or not any(d.severity != "info" for d in state.diagnostics)
    }
    empty = {rank for rank in silent if not _has_recordings(folder / rank_folder(rank))}
    return RunState([*_missing(folder, set(found) - empty), *diagnostics], selection)


def _ended_at(manifest: dict[str, Any]) -> str:
    """One that was killed has no time, and comes first: that is what the others suffer from."""
    return str(manifest.get("finished_at") or "")


def _has_recordings(run: Path) -> bool:
    """A file of no length is what a full disk leaves."""
    patterns = (pattern for kind in get_args(Input) for pattern in input_patterns(kind))
    return any(file.stat().st_size for pattern in patterns for file in run.glob(pattern) if file.is_file())


def _missing(folder: Path, found: Collection[int]) -> list[Diagnosis]:
    """Ranks that were to be profiled and left nothing."""
    job = read_job(folder)
    wanted = wanted_ranks(job.ranks, job.size) if job is not None else None
    lost = sorted((wanted or set()) - set(found))
    return [diagnose("RANKS_MISSING", ranks=_listed([f"rank {rank}" for rank in lost]))] if lost else []


def wanted_ranks(choice: str, size: int | None) -> set[int] | None:
    """The ranks that an option names; None where only they know themselves. Raises UserError."""
    if choice == "one-per-node":
        return None
    if choice == "all":
        return None if size is None else set(range(size))
    wanted: set[int] = set()
    for part in choice.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not last)) or len(first) > 6 or len(last) > 6:
            raise UserError(
                f"--ranks {choice!r} names no ranks.", "Give all, one-per-node, or numbers, as in --ranks 0,7 or 0-3."
            )
        wanted |= set(range(int(first), min(int(last or first) + 1, size or MOST_RANKS)))
    if size is not None and not wanted:
        raise UserError(f"--ranks {choice} names none of the {size} ranks of this job.", f"They are 0 to {size - 1}.")
    return wanted


def _listed(places: list[str]) -> str:
    more = f" and {len(places) - _MOST_LISTED} more" if len(places) > _MOST_LISTED else ""
    return ", ".join(places[:_MOST_LISTED]) + more


def _node(manifest: dict[str, Any]) -> str:
    return visible(str(manifest.get("node") or manifest.get("host") or "an unknown machine"), 80)


def _manifest(run: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = read_json(run / MANIFEST, LARGEST_MANIFEST)
        return found if isinstance(found, dict) else {}
    return {}
