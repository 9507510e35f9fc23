"""One run of ncu for a planned capture: as it was planned, in another replay mode, or by one of its alternatives.

Which of these it is stands in the manifest; the name of its files only has to be one that no other attempt has.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import define

from llm_perf_opt import planning
from llm_perf_opt.capture.collective_watch import CollectiveWatch
from llm_perf_opt.capture.commands import Captured, ReportProgress, evaluate, files_in, finish, progress_of, start_table
from llm_perf_opt.capture.context import RunContext
from llm_perf_opt.capture.early_end import end_of_timeline
from llm_perf_opt.capture.head_start import HeadStart
from llm_perf_opt.capture.server_window import ServerWindow, run_watched
from llm_perf_opt.capture.whole_files import ended_well, whole_file
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode, MissingTool, UserError
from llm_perf_opt.inject import read_log, under_ncu, windows_environment
from llm_perf_opt.nsight.ncu.argv import build_ncu_cmd, build_ncu_details_cmd, build_ncu_raw_cmd
from llm_perf_opt.nsight.ncu.rank_options import leaves_out_collectives
from llm_perf_opt.nsight.ncu.replay_modes import left_out, split_metrics
from llm_perf_opt.nsight.outcome import absent_metrics
from llm_perf_opt.nsight.tools import Tool
from llm_perf_opt.planning import PlannedCapture
from llm_perf_opt.process.supervise import start_supervised
from llm_perf_opt.readers.ncu_rep import read_ncu_rep
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.text import counted
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import retaken_with
from llm_perf_opt.rundir.manifest import Manifest, Step

_RUN, _TABLE, _DETAILS = "ncu", "raw", "details"
_DEFAULT_MODE = "kernel"
_SERVER_STEPS = 64  # of a server under ncu: enough for a launch of every signature


@define(frozen=True)
class Attempt:
    """What ncu is asked for now, and which planned capture that is for."""

    capture: PlannedCapture  # its name is that of the files
    planned: str
    alternative: str = ""  # the alternative of the planned capture that this is; none: it is as planned

    @staticmethod
    def as_planned(capture: PlannedCapture) -> Attempt:
        return Attempt(capture, capture.name)

    @property
    def mode(self) -> str:
        return self.capture.options.replay_mode or _DEFAULT_MODE

    def alternatives(self) -> list[Attempt]:
        """What else may be tried, by ncu's own filters: all of them together stand for this one."""
        return [
            Attempt(attrs.evolve(other, name=f"{other.name}-filtered"), self.planned, other.name)
            for other in self.capture.alternatives
        ]

    def windows_file(self, run: RunDirectory) -> Path:
        return run.path / "ncu" / f"{self.capture.name}-windows.json"

    def windows_log(self, run: RunDirectory) -> Path:
        return self.windows_file(run).with_suffix(".jsonl")


# -- in the manifest --------------------------------------------------------------------------------


def is_attempt(command: Step) -> bool:
    return command.name == _RUN


def is_of_ncu(command: Step) -> bool:
    """A run of ncu, or what it printed of one."""
    return command.name in (_RUN, _TABLE, _DETAILS)


def planned_of(command: Step) -> str:
    """The planned capture that a command of ncu was for; manifests of older versions have the files' name alone."""
    return command.planned or command.capture


def files_of_attempt(command: Step) -> Sequence[str]:
    """Files that would be in the way if this command of ncu were run again."""
    if command.name == _RUN or command.status == "running":  # the file of a table was not listed yet
        return retaken_with(command.name, command.capture)
    return [f"ncu/{name}" for name in command.files if "/" not in name and is_of_ncu(command)]


def whole_reports(run: Path, capture: PlannedCapture, manifest: Manifest) -> list[Path]:
    """The whole reports of a planned capture: its own, or else those of all its alternatives; none: not taken yet."""
    own = _report_of(run, manifest, capture.name)
    if own is not None:
        return [own]
    others = [_report_of(run, manifest, capture.name, other.name) for other in capture.alternatives]
    found = [report for report in others if report is not None]
    return found if len(found) == len(others) else []


def _report_of(run: Path, manifest: Manifest, planned: str, alternative: str = "") -> Path | None:
    """The last whole one, in whichever replay mode that was."""
    for step in reversed(manifest.steps):
        mine = is_attempt(step) and planned_of(step) == planned and step.alternative == alternative
        if mine and ended_well(step) and (report := whole_file(run, f"ncu/{step.capture}.ncu-rep", step, manifest)):
            return report
    return None


def reports_without_table(manifest: Manifest, reports: Sequence[Path], cut_off: Sequence[str]) -> list[Path]:
    done = {step.capture for step in manifest.steps if step.name == _TABLE and step.status not in cut_off}
    return [report for report in reports if report.suffix == ".ncu-rep" and report.stem not in done]


# -- running ----------------------------------------------------------------------------------------


def run_attempt(run: RunContext, attempt: Attempt, *, later_s: float = 0.0, reported: bool = True) -> Captured:
    """Run ncu; `reported`: its results are values of the report. `later_s`: what the captures after it will take."""
    ncu, capture = run.tools.ncu, attempt.capture
    assert ncu is not None
    by_kernel = attempt.mode == _DEFAULT_MODE
    where = counted(len(capture.expressions), "region") if capture.expressions else "the whole program"
    what = counted(capture.expected, "launch") if capture.expected else "the chosen launches"
    title = f"counters: {ncu} profiles {what} in {where}"
    if not by_kernel:
        title = f"counters: {ncu} profiles {where}, replay mode {attempt.mode}"
    expected_s = capture.seconds if by_kernel else None
    with run.report_progress.work(title, "counters", expected_s=expected_s, later_s=later_s) as progress:
        captured = _record(run, ncu, attempt, capture.expected if by_kernel else None, progress)
    run.finish_command(captured)
    if reported and captured.file is not None and captured.outcome.status == "captured":
        _read_results(run, capture, captured.file)
    return captured


@define(frozen=True)
class _Command:
    """What is run for an attempt, and its files."""

    argv: list[str]
    report: Path
    log: Path
    program_log: Path

    @staticmethod
    def of(run: RunContext, ncu: Tool, capture: PlannedCapture) -> _Command:
        folder = run.directory.path / "ncu"
        report, log, program_log = (folder / f"{capture.name}{end}" for end in (".ncu-rep", ".log", "-workload.log"))
        options = attrs.evolve(capture.options, extra_args=(*capture.options.extra_args, "--log-file", str(log)))
        argv = build_ncu_cmd(
            *(folder / capture.name, run.request.command),
            ncu=ncu.path,
            options=options,
            nvtx_include=capture.expressions,
        )
        return _Command(argv, report, log, program_log)


def begin_likely(run: RunContext) -> None:
    """Start the program under ncu with what it will most likely be asked for; it waits at its first range."""
    ncu = run.tools.ncu
    if ncu is None or run.head_start is not None or run.resume.resumed or len(run.ranges_seen) != 1:
        return
    capture = planning.likely_capture(run.request, planning.facts_of(attrs.asdict(run.directory.manifest)))
    if capture is None:
        return
    attempt, directory = Attempt.as_planned(capture), run.directory
    command = _Command.of(run, ncu, capture)
    file, log = attempt.windows_file(directory), attempt.windows_log(directory)
    for one in (file, log):
        one.unlink(missing_ok=True)
    environment = under_ncu(run.environment, windows=True) | windows_environment(file, log, awaited=True)
    with contextlib.suppress(UserError, OSError):  # it is started again when its turn comes, and says why it cannot
        command.log.parent.mkdir(exist_ok=True)
        started = start_supervised(
            command.argv,
            log=command.program_log,
            environment={**environment, **run.bytecode.variables(beside=True)},
            held=directory.handles,
        )
        run.head_start = HeadStart(command.argv, environment, (command.log, command.program_log), started)


def _record(run: RunContext, ncu: Tool, attempt: Attempt, expected: int | None, progress: ReportProgress) -> Captured:
    directory, command, capture = run.directory, run.request.command, attempt.capture
    asked = _Command.of(run, ncu, capture)
    argv, report, log, program_log = asked.argv, asked.report, asked.log, asked.program_log
    folder, options = report.parent, capture.options
    environment = under_ncu(run.environment, windows=capture.windows is not None)
    # Nothing is planned beyond where the timeline was ended, so that the program need not go on here either.
    windows = capture.windows or end_of_timeline(directory)
    file, notes = attempt.windows_file(directory), attempt.windows_log(directory)
    if windows is not None:
        environment |= windows_environment(file, notes)
    serving = run.request.serving
    most = min(serving.window or _SERVER_STEPS, _SERVER_STEPS) if serving.is_asked else None
    window = ServerWindow.of(run, "ncu", window=most)
    if window is not None:
        environment |= {"LLM_PERF_STEPS": "1", "LLM_PERF_ANNOTATE_LOG": str(notes.resolve())}
    watch = CollectiveWatch(log) if window is None and leaves_out_collectives(options) else None
    more: dict[str, Any] = {} if watch is None else {"is_done": watch.is_stuck}
    begun = run.take_head_start(argv, environment)
    if windows is not None:
        if begun is None:
            notes.unlink(missing_ok=True)
        windows.write(file)
    step = directory.begin(
        *(_RUN, argv, "ncu", capture.name),
        program=command,
        environment=environment,
        planned=attempt.planned,
        alternative=attempt.alternative,
        replay_mode=attempt.mode,
    )
    ended = run_watched(
        *(window, argv),
        notes=notes,
        output=program_log,
        follow={log: progress_of(expected, progress)},
        again_s=0,  # ncu must not be interrupted while it writes its report
        log=program_log,
        environment={**environment, **run.bytecode.variables(beside=True)},
        timeout_s=run.request.counters.timeout_s,
        report_progress=run.report_progress,
        held=directory.handles,
        started=None if begun is None else begun.command,
        **more,
    )
    if window is not None:
        window.finish(run.note)
    if watch is not None and watch.kernel:
        run.note(diagnose("COLLECTIVE_REPLAYED", kernel=visible(watch.kernel, 80)))
        ended = attrs.evolve(ended, done=False, timed_out=True)  # the launcher has to end the other ranks, which wait
    if "--communicator" in argv:
        _take_numbered(report)
    mine = (report.name, log.name, program_log.name)  # one folder holds the files of several captures
    finished = finish(
        *(ended, log, program_log, command),
        tool="ncu",
        argv=argv,
        files={name: size for name, size in files_in(folder).items() if name in mine},
        ended_on_purpose="the end of the window" if ended.done else read_log(notes).ended_before,
        replay_mode=attempt.mode,
    )
    outcome = evaluate(directory, step, finished, ended)
    if outcome.status == "nothing" or not report.exists():
        return Captured(outcome, ended)
    write_raw(directory, ncu, report, attempt.planned)
    if options.set or options.sections:
        _start_print(directory, _DETAILS, build_ncu_details_cmd(ncu.path, report), report, attempt.planned)
    return Captured(outcome, ended, report)


def _take_numbered(report: Path) -> None:
    """With a communicator, ncu appends a number of its own to the name that it is given: each rank has another."""
    stem = report.stem
    numbered = [one for one in report.parent.glob("*.ncu-rep") if re.fullmatch(re.escape(stem) + r"\d+", one.stem)]
    if len(numbered) == 1 and not report.exists():
        numbered[0].replace(report)


def write_raw(run: RunDirectory, ncu: Tool, report: Path, planned: str) -> None:
    """Start to print the counters of a report as ncu does, as a background task."""
    _start_print(run, _TABLE, build_ncu_raw_cmd(ncu.path, report), report, planned)


def _start_print(run: RunDirectory, step: str, argv: list[str], report: Path, planned: str) -> None:
    """The first capture, which most runs have alone, has a file without its name."""
    unnamed, named = (run.path / name for name in retaken_with(step, report.stem))
    others = any(other.name == step and other.status == "running" for other in run.manifest.steps)
    target = named if others or unnamed.exists() else unnamed
    begun = run.begin(step, argv, "ncu", report.stem, printed=target, planned=planned)
    start_table(run, begun, argv, target, {})


def _read_results(run: RunContext, capture: PlannedCapture, file: Path) -> None:
    """ncu takes any metric name and collects those it knows: which it dropped is known by what is missing."""
    try:
        run.counters[file] = read_ncu_rep(file, file.name)
    except UserError as error:  # ncu exited with 0, and yet it did not finish its report
        run.failures.append(error.code if isinstance(error, MissingTool) else ExitCode.NOTHING_CAPTURED)
        run.note(diagnose("REPORT_UNREADABLE", message=error.message, fix=error.fix))
        return
    results = run.results[capture.name] = run.counters[file].actions
    found = {name for action in results for name in action.metrics}
    dropped = absent_metrics(capture.options.metrics, found) if results and capture.options.metrics else None
    if dropped is not None:
        run.note(dropped)


def discard(run: RunContext, report: Path) -> None:
    """Delete the results of an attempt whose launches were all taken again: they would count twice."""
    run.directory.background.wait()  # its table is being written
    report.unlink(missing_ok=True)
    for step in run.directory.manifest.steps:
        if step.name in (_TABLE, _DETAILS) and step.capture == report.stem:
            for name in step.files:
                (report.parent / name).unlink(missing_ok=True)


def without_refused_metrics(run: RunContext, attempt: Attempt) -> Attempt:
    """Leave out metrics the replay mode cannot take; a list that would be empty stays, and ncu says why."""
    options = attempt.capture.options
    split = split_metrics(attempt.mode, options.metrics)
    refused = left_out(attempt.mode, split.left_out)
    if refused is None or not (split.taken or options.sections or options.set):
        return attempt
    run.note(refused)
    options = attrs.evolve(options, metrics=tuple(split.taken))
    return attrs.evolve(attempt, capture=attrs.evolve(attempt.capture, options=options))
