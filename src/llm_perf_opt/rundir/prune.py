"""Removes old runs. Only files this project wrote go; a run that goes on, or that cannot be understood, stays.

Deciding and doing are two things: the decision alone is the dry run. Each run is looked at again, under its lock,
when its turn comes. Its manifest goes last, so that a removal that was interrupted is finished by the next one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from attrs import Factory, define

from llm_perf_opt.errors import UserError
from llm_perf_opt.rundir import lock as run_lock
from llm_perf_opt.rundir.contents import files_of, remove, remove_empty
from llm_perf_opt.rundir.inventory import OVER, Inventory, Run, is_of_sweep
from llm_perf_opt.rundir.layout import FOLDERS, LOCK, MANIFEST, SWEEP
from llm_perf_opt.rundir.manifest import read_manifest


@define
class Removal:
    """One run that is to go."""

    run: Run
    reason: str
    bytes: int = 0  # that were removed
    left: list[tuple[str, str]] = Factory(list)  # files that stay, with the reason
    problem: str = ""  # why it was not removed after all


@define
class Decision:
    """Which runs go, and which would but stay."""

    removals: list[Removal]
    kept: list[Run]
    spared: list[tuple[Run, str]]  # runs the limits would take, with the reason why they stay
    bytes_left: int  # of all runs that stay
    too_large: bool = False  # what stays is more than was allowed


def decide(inventory: Inventory, keep: int | None, max_bytes: int | None) -> Decision:
    """The oldest go first: those beyond the newest `keep`, then as many as it takes to get below `max_bytes`."""
    going: dict[int, str] = {}
    spared: list[tuple[Run, str]] = []
    runs = inventory.runs  # newest first
    newer = 0
    for number, run in enumerate(runs):
        if run.manifest is None:
            # How old it is nobody knows: it must not count as one of the newest and push out one that is.
            spared.append((run, run.problem))
        elif keep is not None and newer >= keep:
            if run.state in OVER:
                going[number] = f"more than the {keep} newest"
            else:
                spared.append((run, run.problem))
        newer += run.manifest is not None
    left = sum(run.bytes for number, run in enumerate(runs) if number not in going)
    if max_bytes is not None:
        for number in reversed(range(len(runs))):
            if left <= max_bytes:
                break
            if number in going:
                continue
            if runs[number].state in OVER:
                going[number] = "all runs together are too large"
                left -= runs[number].bytes
            elif not any(run is runs[number] for run, _ in spared):
                spared.append((runs[number], runs[number].problem))
    return Decision(
        [Removal(runs[number], going[number]) for number in sorted(going, reverse=True)],
        [run for number, run in enumerate(runs) if number not in going],
        spared,
        left,
        max_bytes is not None and left > max_bytes,
    )


def carry_out(decision: Decision, root: Path) -> None:
    """Remove the runs of a decision, oldest first; what happened to each is noted in it."""
    for removal in decision.removals:
        _remove_run(removal)
        folder = removal.run.path.parent
        # The folder of a sweep, when its last run is gone.
        while not removal.problem and folder != root and folder.is_relative_to(root) and _remove_sweep(folder):
            folder = folder.parent


def _remove_sweep(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
        if SWEEP in [entry.name for entry in entries] and all(map(is_of_sweep, entries)):
            remove(folder, [entry.name for entry in entries])
    return remove_empty(folder)


def _remove_run(removal: Removal) -> None:
    path = removal.run.path
    try:
        lock = run_lock.take(path)
    except run_lock.Busy as error:
        removal.problem = error.message
        return
    except OSError as error:
        removal.problem = "" if not path.exists() else f"It cannot be removed: {error.strerror}."
        return  # gone already: another prune was faster
    try:
        try:
            manifest = read_manifest(path)
        except UserError as error:  # changed since it was looked at
            if not (path / MANIFEST).exists():  # removed by another prune meanwhile; the lock file is ours
                remove(path, [LOCK])
                remove_empty(path)
                return
            removal.problem = error.message
            return
        files = files_of(path, manifest)
        last = (MANIFEST, LOCK)
        ours = [file for file in files if file.is_ours]
        remove(path, [file.name for file in ours if file.name not in last])
        remove(path, list(last))
        removal.bytes = sum(file.bytes for file in ours)
        removal.left = [(file.name, file.why_not_ours) for file in files if not file.is_ours]
        for name in FOLDERS:  # a run makes some before there is anything for them
            if not (path / name).is_symlink():
                remove_empty(path / name)
        if not remove_empty(path) and not removal.left:
            removal.left = [("", "something was put there meanwhile")]
    except OSError as error:
        removal.problem = f"It could not be removed completely: {error.strerror} ({error.filename})."
    finally:
        run_lock.release(lock)
