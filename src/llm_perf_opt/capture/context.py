"""What all steps of a run share: what was asked for, where it goes, and how it went so far."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from llm_perf_opt.capture import durations
from llm_perf_opt.capture.commands import Captured
from llm_perf_opt.capture.head_start import HeadStart
from llm_perf_opt.capture.progress_reporter import ProgressReporter
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.inject import RangesSeen, read_log
from llm_perf_opt.nsight.outcome import Outcome
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.options import in_keys
from llm_perf_opt.planning import PlannedCapture
from llm_perf_opt.process.bytecode import BytecodeCache
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Action, CounterSet, Timeline
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory

ANNOTATION_LOG = "annotate.jsonl"


@define
class Tools:
    """The profilers of a run; None where it needs none."""

    nsys: Tool | None
    ncu: Tool | None


@define
class ResumeState:
    """What a run need not take again: filled by the steps, each with its own part. A new run has nothing."""

    resumed: bool = False
    timings: bool = False
    measured: bool = False
    recording: bool = False  # nsys's own; its export may be missing
    timeline: Path | None = None  # the export
    captures: list[PlannedCapture] | None = None  # as they were planned; None: there is no plan yet
    reports: dict[str, list[Path]] = field(factory=dict)  # of ncu, by the name of the planned capture
    verification: bool = False  # the regions measured as wholes
    # Tables the tools print of their recordings; written last, so a kill may have cost them alone.
    lacks_summary: bool = False
    lacks_table: list[Path] = field(factory=list)  # reports of ncu


@define
class KeptRun:
    """The measured run, kept for a trial that goes on from it: what its processes timed and noted."""

    folder: Path
    gpus: list[dict[str, Any]] = field(factory=list)  # what was seen of them
    seconds: float = 0.0

    @property
    def times(self) -> Path:
        return self.folder / "times"

    @property
    def notes(self) -> Path:
        return self.folder / "notes"


@define
class RunContext:
    """A run in progress."""

    request: ProfileRequest
    tools: Tools
    directory: RunDirectory
    report_progress: ProgressReporter
    environment: dict[str, str]  # for the program, besides what it inherits
    resume: ResumeState
    bytecode: BytecodeCache  # of the program
    timelines: dict[Path, Timeline] = field(factory=dict)  # by file: read once, then passed on
    counters: dict[Path, CounterSet] = field(factory=dict)  # the same
    kept: KeptRun | None = None  # where a trial wants the measured run
    planned: list[PlannedCapture] = field(factory=list)
    outcomes: list[Outcome] = field(factory=list)
    failures: list[ExitCode] = field(factory=list)  # besides those of the outcomes
    results: dict[str, list[Action]] = field(factory=dict)  # of the captures that succeeded, by their files' name
    head_start: HeadStart | None = None  # the program under ncu, which waits for its plan
    stopped: bool = False
    interrupted_twice: bool = False
    not_exported: bool = False  # there is a timeline that nsys itself could not read

    @property
    def code(self) -> ExitCode:
        """The exit code of the run, as far as it came: the first of a step that is not 0."""
        codes = [*(outcome.exit_code for outcome in self.outcomes), *self.failures]
        return next((code for code in codes if code != ExitCode.DONE), ExitCode.DONE)

    @property
    def ranges_seen(self) -> RangesSeen:
        """Ranges that were counted inside the program, in the run of the timeline."""
        return read_log(self.directory.path / ANNOTATION_LOG).ranges

    def read_timeline(self, file: Path) -> Timeline | None:
        """With all that planning and the reports need of it; None where the file holds something else."""
        if file not in self.timelines:
            found = read_recording(file, launch_config=True, marker_ranges=True)
            if isinstance(found, Timeline):
                self.timelines[file] = found
        return self.timelines.get(file)

    def take_head_start(self, argv: list[str], environment: Mapping[str, str]) -> HeadStart | None:
        """The command that has begun already, where it is this one; another is ended."""
        found = self.head_start
        if found is not None and found.fits(argv, environment):
            self.head_start = None
            return found
        self.drop_head_start()
        return None

    def drop_head_start(self) -> None:
        if self.head_start is not None:
            self.head_start.discard()
            self.head_start = None

    def finish_command(self, captured: Captured) -> None:
        """Report how a command of a profiler ended, and note whether the run goes on."""
        self.reword(captured.outcome.diagnoses)
        self.report_progress.step(captured)
        self.stopped = captured.ended.interrupted

    def note(self, diagnosis: Diagnosis) -> None:
        """Keep a diagnosis in the manifest, and print it."""
        self.reword([diagnosis])
        if diagnosis not in self.directory.manifest.diagnostics:  # a resumed run may come by twice
            self.directory.manifest.diagnostics.append(diagnosis)
        with contextlib.suppress(UserError):  # where nothing can be written any more, it is still printed
            self.directory.save()
        self.report_progress.diagnosis(diagnosis)

    def reword(self, diagnoses: list[Diagnosis]) -> None:
        """Advice in the spelling of the front end that is used; in place, for the manifest holds the same objects."""
        for diagnosis in diagnoses if self.request.by_keys else ():
            diagnosis.message, diagnosis.fix = in_keys(diagnosis.message), in_keys(diagnosis.fix)

    def expected_seconds(self, step: str) -> float | None:
        """What this step took the last time."""
        return durations.expected(step, self.request.known_as or self.request.command)

    def remember_seconds(self, step: str, seconds: float) -> None:
        durations.remember(step, self.request.known_as or self.request.command, seconds)
