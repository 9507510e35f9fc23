"""Goes on with a run that ended early: what is whole is kept, what is missing or half-written is taken again.

Which results are whole, the steps say themselves (steps/). What is taken again is moved away first and deleted only
when the whole run has succeeded, so that a second failure loses nothing of the first attempt.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from llm_perf_opt.capture.context import ResumeState
from llm_perf_opt.capture.steps.counters import COUNTERS
from llm_perf_opt.capture.steps.measure import MEASURE
from llm_perf_opt.capture.steps.stage_timings import STAGE_TIMINGS
from llm_perf_opt.capture.steps.timeline import TIMELINE
from llm_perf_opt.capture.steps.verify import VERIFY
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.nvidia_smi import gpu_facts
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.processes import is_alive
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.command_lines import HIDDEN, clean_argv, hides_something, shell_text
from llm_perf_opt.rundir.contents import files_of, remove
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import EARLIER, PACKED
from llm_perf_opt.rundir.lock import Busy
from llm_perf_opt.rundir.manifest import NOT_KEPT, Manifest, Step, now, program_files, read_manifest
from llm_perf_opt.rundir.secrets import REMOVED
from llm_perf_opt.rundir.state import RESUMABLE
from llm_perf_opt.version import __version__


class CaptureStep(Protocol):
    """What every step knows of itself, so that a run is resumed without knowing which is which. It may take several commands, each noted in the manifest as a `Step`."""

    def owns(self, command: Step) -> bool:
        """Is a command of the manifest one of this step's?"""

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        """Note in `state` which results of this step are whole; those of the steps before are noted already."""

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        """What has to be taken, in words."""

    def stays(self, command: Step, state: ResumeState) -> bool:
        """Does a command of this step count as done when the run goes on?"""

    def files(self, command: Step) -> Sequence[str]:
        """Files below the run directory that would be in the way when this command is run again."""


STEPS: tuple[CaptureStep, ...] = (STAGE_TIMINGS, MEASURE, TIMELINE, COUNTERS, VERIFY)  # in their order
# Diagnoses of a run's end, and of its timeline: those are found anew.
_OF_THE_TIMELINE = ("TRAFFIC_NOT_SAMPLED",)
_OF_THE_END = ("INTERRUPTED", "RUN_FAILED", "NO_REPORT", "WORKLOAD_FAILED")
_PATIENCE_S = 150.0  # after a kill the guard ends what is left within this


def find_results(directory: RunDirectory, request: ProfileRequest) -> ResumeState:
    """What of the run can be kept."""
    state = ResumeState(resumed=True)
    for step in STEPS:
        step.find(directory, request, state)
    return state


def missing(request: ProfileRequest, state: ResumeState) -> list[str]:
    """What has to be taken, in words."""
    return [words for step in STEPS for words in step.missing(request, state)]


# -- opening ---------------------------------------------------------------------------------------


def open_again(path: Path) -> RunDirectory:
    """A run to go on with. Only what this user started on this machine is started again."""
    directory = _when_free(path)
    try:
        _refuse_unusual_files(directory.path)
        manifest = directory.manifest
        if manifest.made_by not in RESUMABLE:
            by = (
                f"llm-perf {manifest.made_by}" if manifest.made_by == "plan" else manifest.made_by or "an older version"
            )
            raise UserError(
                f"{path} cannot be resumed: it was made by {by}, and only profiling runs can be resumed.",
                "Start it again; its command is in manifest.json.",
            )
        if manifest.rank is not None:
            raise UserError(
                f"{path} is rank {manifest.rank} of a job, and one rank alone cannot run again.",
                "Start the whole job again, with another folder.",
            )
        if not manifest.is_ours:
            raise UserError(
                f"{path} was not made here by you, or its command or options were changed since: it is not started again.",
                f"Report on what it contains: llm-perf report {shlex.quote(str(path))}. Or start a new run of your own.",
            )
    except UserError:
        directory.release()
        raise
    return directory


def _refuse_unusual_files(run: Path) -> None:
    """Nothing is written through a link out of a run, and no pipe in it is waited for."""
    for folder in (run, run / "measure", run / "nsys", run / "ncu"):
        if not os.path.lexists(folder):
            continue
        for entry in (folder, *(folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ())):
            kind = entry.lstat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or (entry == folder and not stat.S_ISDIR(kind)):
                raise UserError(
                    f"{run} cannot be resumed: {entry.relative_to(run.parent)} is a link, a pipe or a device, where a "
                    "run has plain files.",
                    "Replace it by the file it stands for, or remove it if it does not belong to the run.",
                )


def _when_free(path: Path) -> RunDirectory:
    """Open a run; where its owner was killed, wait for what the owner had started."""
    until = time.monotonic() + _PATIENCE_S
    announced = False
    while True:
        try:
            return RunDirectory.reopen(path)
        except Busy:
            if time.monotonic() > until or not _was_killed(path):
                raise
        if not announced:
            print("waiting for what is left of the killed run …", file=sys.stderr, flush=True)
            announced = True
        time.sleep(0.2)


def _was_killed(path: Path) -> bool:
    manifest = read_manifest(path)
    here = manifest.state == "running" and manifest.host == os.uname().nodename
    return here and manifest.pid > 0 and not is_alive(manifest.pid)


def command_of(manifest: Manifest, given: Sequence[str]) -> list[str]:
    """The command of a run; `given`: typed again, which is needed where something in it was not kept."""
    command = manifest.workload or manifest.command
    if given:
        if clean_argv(given, show=manifest.shows_command) != command:
            raise UserError(
                f"The command given is not that of the run: {shell_text(command)}",
                "A resumed run profiles the same program: give the same command, or start a new run.",
            )
        return list(given)
    if hides_something(command) or any(REMOVED in word for word in command):  # the latter: of an older version
        raise UserError(
            f"The command of this run contained what may be a secret, which was not stored: {shell_text(command)}",
            "Give it again: llm-perf profile --resume RUN -- CMD",
        )
    return list(command)


def settings_of(manifest: Manifest) -> dict[str, Any]:
    """The options of a run; none of them may have lost its value."""
    lost_for = ((re.escape(REMOVED), "what may be a secret"), (HIDDEN.pattern, "what may be a secret"))
    for marker, what in (*lost_for, (re.escape(NOT_KEPT), "an infinite number")):
        if lost := _removed(manifest.settings, marker):
            raise UserError(
                f"The configuration of this run contained {what} in {lost[0]}, which was not stored.",
                "Start the run again with the full configuration.",
            )
    return manifest.settings


def _removed(value: Any, marker: str, name: str = "") -> list[str]:
    """Names of the settings that have the marker instead of their value."""
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in _removed(item, marker, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [found for item in value for found in _removed(item, marker, name)]
    return [name] if isinstance(value, str) and re.search(marker, value) else []


# -- beginning again -------------------------------------------------------------------------------


def changes(manifest: Manifest, command: list[str], tools: Sequence[Tool | None]) -> list[str]:
    """What is not as it was when the run began, in words."""
    found = []
    for name, digest in program_files(command).items():
        if manifest.program.get(name, digest) != digest:
            found.append(f"{name} has other content")
    found += [f"{name} is gone" for name in manifest.program if name in command and name not in program_files(command)]
    for tool in tools:
        before = manifest.tools.get(tool.name) if tool is not None else None
        if tool is not None and before is not None and before.split(" (")[0] != str(tool.version):
            found.append(f"{tool.name} is {tool.version} instead of {before.split(' (')[0]}")
    if manifest.llm_perf_opt != __version__:
        found.append(f"llm-perf is {__version__} instead of {manifest.llm_perf_opt}")
    before_gpus, gpus = _gpus(manifest.gpus_before), _gpus(gpu_facts())
    if before_gpus and gpus != before_gpus:
        found.append(f"the GPUs are {', '.join(gpus) or 'none'} instead of {', '.join(before_gpus)}")
    return found


def _gpus(facts: list[dict[str, str]]) -> list[str]:
    return [f"{gpu.get('name')} with driver {gpu.get('driver_version')}" for gpu in facts]


def begin_again(directory: RunDirectory, state: ResumeState, taken: list[str], changed: list[str]) -> None:
    """Note in the manifest that the run goes on, and move away what is taken again."""
    manifest = directory.manifest
    steps = [step for step in manifest.steps if _step_of(step).stays(step, state)]
    superseded = [step for step in manifest.steps if step not in steps]
    # First where things will be, then the move: killed in between, the files are still known as ours.
    manifest.earlier_steps += superseded
    manifest.steps = steps
    if state.captures is None:
        manifest.captures = None
    outdated = {*_OF_THE_END, *(() if state.recording or state.timeline else _OF_THE_TIMELINE)}
    manifest.diagnostics = [d for d in manifest.diagnostics if d.code not in outdated]
    manifest.state, manifest.finished_at = "running", None
    manifest.pid, manifest.host = os.getpid(), os.uname().nodename
    manifest.resumed.append({"at": now(), "llm_perf_opt": __version__, "took": taken, "changed": changed})
    directory.save()
    try:
        directory.drop_unfinished()
        directory.keep_reserve()
        _move_away(directory, superseded)
    except OSError as error:
        raise UserError(
            f"{directory.path} cannot be written: {error.strerror or error} ({error.filename}).",
            "Check free space and permissions; nothing is lost.",
        ) from error
    if changed and taken:
        note = diagnose("RESUMED_AFTER_CHANGES", changes="; ".join(changed))
        if note not in manifest.diagnostics:
            manifest.diagnostics.append(note)
            directory.save()


def _step_of(command: Step) -> CaptureStep:
    """The step that a command belongs to; an unknown one is treated as one of the counters, and taken again."""
    return next((step for step in STEPS if step.owns(command)), COUNTERS)


def _move_away(directory: RunDirectory, superseded: Sequence[Step]) -> None:
    """Move files of commands that are run again out of the way of the new ones."""
    run = directory.path
    names = dict.fromkeys(name for step in superseded for name in _step_of(step).files(step))
    finished = {f"ncu/{name}" for step in directory.manifest.steps for name in step.files}
    names = {name: None for name in names if name not in finished}
    there = [name for plain in names for name in (plain, *(plain + e for e in PACKED)) if (run / name).is_file()]
    if not there:
        return
    numbers = [int(found[1]) for entry in run.iterdir() if (found := EARLIER.fullmatch(entry.name))]
    earlier = run / f"earlier-{max(numbers, default=0) + 1}"
    for name in there:
        target = earlier / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (run / name).replace(target)


def drop_earlier(directory: RunDirectory) -> None:
    """Delete what was moved away: all of it was taken again."""
    with contextlib.suppress(OSError):  # what stays is found by llm-perf runs prune
        files = files_of(directory.path, directory.manifest)
        names = [file.name for file in files if file.is_ours and EARLIER.fullmatch(file.name.partition("/")[0])]
        remove(directory.path.resolve(), names)
