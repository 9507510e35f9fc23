"""Goes on with a run that ended early: what is whole is kept, what is missing or half-written is taken again.

A result counts as whole where the manifest says that its step ended well and the file is still what it was then.
What is taken again is set aside first and deleted only when the whole run has succeeded, so that a second failure
loses nothing of the first attempt.
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
from typing import Any

import attrs
from attrs import Factory, define

from llm_perf_opt.api.inputs import VERIFY
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import UnreadableInput, UserError
from llm_perf_opt.inject import Gate
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.nvidia_smi import gpu_facts
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.planning import PlannedCapture
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.readers.nsys_sqlite import looks_like_sqlite
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.compress import unpacks_to
from llm_perf_opt.rundir.contents import files_of, remove
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import EARLIER, PACKED, retaken_with
from llm_perf_opt.rundir.lock import Busy
from llm_perf_opt.rundir.manifest import NOT_KEPT, Manifest, Step, now, program_files
from llm_perf_opt.rundir.secrets import REMOVED, clean_argv
from llm_perf_opt.version import __version__

RESUMABLE = ("profile", "deep_profile_runner")
# What a run says of its end: it ends anew.
_OF_THE_TIMELINE = ("TRAFFIC_NOT_SAMPLED",)
_OF_THE_END = ("INTERRUPTED", "RUN_FAILED", "NO_REPORT", "WORKLOAD_FAILED")
_WANTED_END = "RECORDING_TOO_LARGE"  # stopped at the size that was asked for: it would be again
_TRY_AGAIN = ("running", "failed")  # of a table: cut off by a kill, or by an interrupt
_PATIENCE_S = 150.0  # after a kill the guard ends what is left within this


@define
class Kept:
    """What a run need not take again. A new run keeps nothing."""

    resumed: bool = False
    timings: bool = False
    recording: bool = False  # nsys's own; its export may be missing
    timeline: Path | None = None  # the export
    captures: list[PlannedCapture] | None = None  # as they were planned; None: there is no plan yet
    reports: dict[str, Path] = Factory(dict)  # of ncu, by the name of the planned capture
    verification: bool = False  # the regions measured as wholes
    # Tables the tools print of their recordings; written last, so a kill may have cost them alone.
    without_summary: bool = False
    without_table: list[Path] = Factory(list)  # reports of ncu

    def missing(self, request: ProfileRequest) -> list[str]:
        """What has to be taken, in words."""
        found = ["the stage timings"] if request.timings and not self.timings else []
        if request.timeline.enable and self.timeline is None:
            found.append("the SQLite export of the timeline" if self.recording else "the timeline")
        if request.counters.enable and self.captures is None:
            found.append("the counters")
        found += [f"the counters {c.name!r}" for c in self.captures or [] if c.name not in self.reports]
        if request.counters.verify and self.captures and not self.verification:
            found.append("the verification")
        found += ["the table of the timeline's kernels"] if self.without_summary else []
        return found + [f"the counters of {report.name} as a table" for report in self.without_table]

    def needs_ncu(self, request: ProfileRequest) -> bool:
        """Is there anything left that only ncu can do?"""
        if not request.counters.enable:
            return False
        if self.captures is None or self.without_table:
            return True
        unverified = request.counters.verify and bool(self.captures) and not self.verification
        return unverified or any(capture.name not in self.reports for capture in self.captures)


def as_order(capture: PlannedCapture) -> dict[str, Any]:
    """A planned capture as the manifest keeps it."""
    options = attrs.asdict(capture.options, value_serializer=lambda _, __, v: list(v) if isinstance(v, tuple) else v)
    return {
        "name": capture.name,
        "options": options,
        "expressions": list(capture.expressions),
        "expected": capture.expected,
        "gate": capture.windows and capture.windows.as_json(),
        "instead": [as_order(other) for other in capture.alternatives],
    }


def _planned(order: Mapping[str, Any]) -> PlannedCapture:
    gate, name = order["gate"], str(order["name"])
    if not re.fullmatch(r"[^./\0][^/\0]*", name):  # it names files in the run, and must not lead out of it
        raise ValueError(f"{name!r} is no name of a capture")
    return PlannedCapture(
        name,
        NcuOptions(**order["options"]),
        tuple(map(str, order["expressions"])),
        order["expected"],
        windows=gate and Gate.from_json(gate),
        alternatives=tuple(_planned(other) for other in order["instead"]),
    )


# -- opening ---------------------------------------------------------------------------------------


def open_again(path: Path) -> RunDirectory:
    """A run to go on with. Only what this user started on this machine is started again."""
    directory = _when_free(path)
    try:
        _refuse_strange_files(directory.path)
        manifest = directory.manifest
        if manifest.made_by not in RESUMABLE:
            by = (
                f"llm-perf {manifest.made_by}" if manifest.made_by == "plan" else manifest.made_by or "an older version"
            )
            raise UserError(
                f"{path} cannot be resumed: it was made by {by}, and only profiling runs can.",
                "Start it again; its command is in manifest.json.",
            )
        if not manifest.is_ours:
            raise UserError(
                f"{path} was not made here by you, or its command or options were changed since: it is not started again.",
                f"Report on what it holds: llm-perf report {shlex.quote(str(path))}. Or start a new run of your own.",
            )
    except UserError:
        directory.release()
        raise
    return directory


def _refuse_strange_files(run: Path) -> None:
    """Nothing is written through a link out of a run, and nobody waits for a pipe in it."""
    for folder in (run, run / "nsys", run / "ncu"):
        if not os.path.lexists(folder):
            continue
        for entry in (folder, *(folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ())):
            kind = entry.lstat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or (entry == folder and not stat.S_ISDIR(kind)):
                raise UserError(
                    f"{run} cannot be resumed: {entry.relative_to(run.parent)} is a link, a pipe or a device, where a "
                    "run has plain files.",
                    "Replace it by the file it stands for, or remove it if it is none of the run's.",
                )


def _when_free(path: Path) -> RunDirectory:
    """Open a run; where its owner was killed, wait for what the owner had started."""
    until = time.monotonic() + _PATIENCE_S
    told = False
    while True:
        try:
            return RunDirectory.reopen(path)
        except Busy:
            if time.monotonic() > until or not _was_killed(path):
                raise
        if not told:
            print("waiting for what is left of the killed run …", file=sys.stderr, flush=True)
            told = True
        time.sleep(0.2)


def _was_killed(path: Path) -> bool:
    from llm_perf_opt.rundir.manifest import read_manifest

    manifest = read_manifest(path)
    if manifest.state != "running" or manifest.host != os.uname().nodename or manifest.pid <= 0:
        return False
    try:
        os.kill(manifest.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def command_of(manifest: Manifest, given: Sequence[str]) -> list[str]:
    """The command of a run; `given`: typed again, which is needed where a secret in it was not kept."""
    if given:
        if clean_argv(list(given)) != manifest.command:
            raise UserError(
                f"The command given is not that of the run: {shlex.join(manifest.command)}",
                "A resumed run profiles the same program: give the same command, or start a new run.",
            )
        return list(given)
    if any(REMOVED in word for word in manifest.command):
        raise UserError(
            f"The command of this run held a secret, which was not kept: {shlex.join(manifest.command)}",
            "Give it again: llm-perf profile --resume RUN -- CMD",
        )
    return list(manifest.command)


def settings_of(manifest: Manifest) -> dict[str, Any]:
    """The options of a run; none of them may have lost its value."""
    for marker, what in ((REMOVED, "a secret"), (NOT_KEPT, "an infinite number")):
        if lost := _removed(manifest.settings, marker):
            raise UserError(
                f"The configuration of this run held {what} in {lost[0]}, which was not kept.",
                "Start the run again with the full configuration.",
            )
    return manifest.settings


def _removed(value: Any, marker: str, name: str = "") -> list[str]:
    """Names of the settings that have the marker instead of their value."""
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in _removed(item, marker, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [found for item in value for found in _removed(item, marker, name)]
    return [name] if isinstance(value, str) and marker in value else []


# -- what is whole ---------------------------------------------------------------------------------


def look(directory: RunDirectory, request: ProfileRequest) -> Kept:
    """What of the run can be kept."""
    run, manifest = directory.path, directory.manifest
    last = {step.name: step for step in manifest.steps}
    kept = Kept(resumed=True, timings=_ended_well(last.get("stage1")))
    recorded, exported = last.get("nsys"), last.get("export")
    if request.timeline.enable and recorded is not None and _ended_well(recorded):
        kept.recording = _whole(run, "nsys/run.nsys-rep", recorded, manifest) is not None
        if exported is not None and exported.status == "done":
            kept.timeline = _whole(run, "nsys/run.sqlite", exported, manifest)
    if kept.timeline is not None and not _opens_as_sqlite(kept.timeline):
        kept.timeline = None
    try:
        kept.captures = None if manifest.captures is None else [_planned(order) for order in manifest.captures]
    except (KeyError, TypeError, ValueError, AttributeError, UserError):
        kept.captures = None  # of another version: planned anew
    for capture in kept.captures or []:
        if (report := _report_of_capture(run, capture, manifest)) is not None:
            kept.reports[capture.name] = report
    tried = any(step.capture == VERIFY and step.status != "running" for step in manifest.steps)
    kept.verification = tried and _report_of(run, VERIFY, manifest) is not None
    _look_at_tables(kept, manifest.steps)
    if request.timeline.enable and not kept.recording and kept.timeline is None and not kept.reports:
        kept.captures = None  # there is nothing left that the plan was made from
    return kept


def _look_at_tables(kept: Kept, steps: Sequence[Step]) -> None:
    ended = [step for step in steps if step.status not in _TRY_AGAIN]
    if kept.timeline is not None and kept.timeline.suffix not in PACKED:
        kept.without_summary = not any(step.name == "stats" for step in ended)
    tables = {step.capture for step in ended if step.name == "raw"}
    plain = [report for report in kept.reports.values() if report.suffix not in PACKED]
    kept.without_table = [report for report in plain if report.stem not in tables]


def _ended_well(step: Step | None) -> bool:
    if step is None:
        return False
    wanted = step.status == "partial" and any(d.code == _WANTED_END for d in step.diagnostics)
    return step.status in ("captured", "done") or wanted


def _report_of_capture(run: Path, capture: PlannedCapture, manifest: Manifest) -> Path | None:
    """The whole report of a planned capture; where others were taken instead of it, all of them have to be there."""
    instead = [f"{other.name}-ungated" for other in capture.alternatives]
    own = _report_of(run, capture.name, manifest, but_for=instead)
    if own is not None:
        return own
    others = [_report_of(run, name, manifest) for name in instead]
    return others[0] if others and all(others) else None


def _report_of(run: Path, name: str, manifest: Manifest, but_for: Sequence[str] = ()) -> Path | None:
    """The whole report that serves as one of this name, in whichever replay mode it succeeded."""
    for step in reversed(manifest.steps):
        if any(serves(step, other) for other in but_for):
            continue
        if step.name == "ncu" and serves(step, name) and _ended_well(step):
            report = _whole(run, f"ncu/{step.capture}.ncu-rep", step, manifest)
            if report is not None and (report.suffix in PACKED or _opens_as_report(report)):
                return report
    return None


def serves(step: Step, capture: str) -> bool:
    """Was a step of ncu taken for this planned capture? Other replay modes add their name to it."""
    return step.capture == capture or step.capture.startswith(f"{capture}-")


def _whole(run: Path, name: str, step: Step, manifest: Manifest) -> Path | None:
    """A file of a step as it was when the step ended, or packed since; None where it is not."""
    size = step.files.get(Path(name).name)
    file = run / name
    if size and not file.is_symlink() and file.is_file() and file.stat().st_size == size:
        return file
    packed = manifest.compressed.get(name)
    if not file.exists() and packed is not None and packed.get("bytes") == size:
        for ending in PACKED:
            other = file.with_name(file.name + ending)
            if other.is_file() and not other.is_symlink() and other.stat().st_size == packed.get("packed_bytes"):
                return other if unpacks_to(other, size or 0, str(packed.get("sha256"))) else None
    return None


def _opens_as_sqlite(file: Path) -> bool:
    if file.suffix in PACKED:
        return True  # it was, when it was packed, and it is the same
    with file.open("rb") as content:
        return looks_like_sqlite(content.read(4096))


def _opens_as_report(file: Path) -> bool:
    try:
        read_container(file, file.name)
    except (UnreadableInput, OSError):
        return False
    return True


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


def begin_again(directory: RunDirectory, kept: Kept, taken: list[str], changed: list[str]) -> None:
    """Note in the manifest that the run goes on, and set aside what is taken again."""
    manifest = directory.manifest
    steps = [step for step in manifest.steps if _stays(step, kept)]
    superseded = [step for step in manifest.steps if step not in steps]
    # First where things will be, then the move: killed in between, the files are still known as ours.
    manifest.earlier_steps += superseded
    manifest.steps = steps
    manifest.captures = None if kept.captures is None else [as_order(c) for c in kept.captures]
    outdated = {*_OF_THE_END, *(() if kept.recording or kept.timeline else _OF_THE_TIMELINE)}
    manifest.diagnostics = [d for d in manifest.diagnostics if d.code not in outdated]
    manifest.state, manifest.finished_at = "running", None
    manifest.pid, manifest.host = os.getpid(), os.uname().nodename
    manifest.resumed.append({"at": now(), "llm_perf_opt": __version__, "took": taken, "changed": changed})
    directory.save()
    try:
        directory.drop_unfinished()
        directory.keep_reserve()
        _set_aside(directory, superseded)
    except OSError as error:
        raise UserError(
            f"{directory.path} cannot be written: {error.strerror or error} ({error.filename}).",
            "Check free space and rights; nothing is lost.",
        ) from error
    if changed and taken:
        message = f"This run was resumed after something had changed: {'; '.join(changed)}. Its parts may not belong together."
        note = Diagnosis("RESUMED_AFTER_CHANGES", "warning", message, "If they must, start a new run.")
        if note not in manifest.diagnostics:
            manifest.diagnostics.append(note)
            directory.save()


def _stays(step: Step, kept: Kept) -> bool:
    if step.name == "stage1":
        return kept.timings
    if step.name == "nsys":
        return kept.recording or kept.timeline is not None
    if step.name in ("export", "stats"):
        return kept.timeline is not None and step.status not in _TRY_AGAIN
    names = [*kept.reports, *([VERIFY] if kept.verification else [])]
    return any(serves(step, name) for name in names) and step.status not in _TRY_AGAIN


def _set_aside(directory: RunDirectory, superseded: Sequence[Step]) -> None:
    """Move files of steps that are taken again out of the way of the new ones."""
    run = directory.path
    names: dict[str, None] = {}
    for step in superseded:
        names.update(dict.fromkeys(retaken_with(step.name, step.capture)))
        if step.name == "raw":
            names.update(dict.fromkeys(f"ncu/{name}" for name in step.files if "/" not in name))
            if step.status == "running":  # its file was not listed yet
                names["ncu/raw.csv"] = names[f"ncu/raw-{Path(step.capture).name}.csv"] = None
    finished = {f"ncu/{name}" for step in directory.manifest.steps if step.name == "raw" for name in step.files}
    names = {name: None for name in names if name not in finished}
    there = [name for plain in names for name in (plain, *(plain + e for e in PACKED)) if (run / name).is_file()]
    if not there:
        return
    numbers = [int(found[1]) for entry in run.iterdir() if (found := EARLIER.fullmatch(entry.name))]
    aside = run / f"earlier-{max(numbers, default=0) + 1}"
    for name in there:
        target = aside / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (run / name).replace(target)


def drop_earlier(directory: RunDirectory) -> None:
    """Delete what was set aside: all of it was taken again."""
    with contextlib.suppress(OSError):  # what stays is found by llm-perf runs prune
        files = files_of(directory.path, directory.manifest)
        names = [file.name for file in files if file.is_ours and EARLIER.fullmatch(file.name.partition("/")[0])]
        remove(directory.path.resolve(), names)
