"""The timeline: one run of the program under nsys, its recording exported as SQLite and summed up by nsys itself."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs

from llm_perf_opt.capture import commands
from llm_perf_opt.capture.commands import Captured, ReportProgress, evaluate, files_in, finish, progress_of, start_table
from llm_perf_opt.capture.context import ANNOTATION_LOG, ResumeState, RunContext
from llm_perf_opt.capture.early_end import early_end, ending, full_name
from llm_perf_opt.capture.server_window import ServerWindow, run_watched
from llm_perf_opt.capture.steps.attempt import begin_likely
from llm_perf_opt.capture.whole_files import CUT_OFF, ended_well, whole_file
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.inject import read_log, with_lines
from llm_perf_opt.nsight.nsys import gpu_metrics
from llm_perf_opt.nsight.nsys.argv import (
    NsysOptions,
    build_nsys_cmd,
    build_nsys_export_cmd,
    build_nsys_stats_cmd,
    build_nsys_stop_cmd,
)
from llm_perf_opt.nsight.nsys.argv import environment as nsys_environment
from llm_perf_opt.nsight.progress import recording_bytes
from llm_perf_opt.nsight.tools import Tool, known_options, library_path_for
from llm_perf_opt.planning.program_end import EarlyEnd
from llm_perf_opt.process import redirect
from llm_perf_opt.process.supervise import Ended, InterruptedTwice, grace_seconds, run_short
from llm_perf_opt.readers.nsys_export import refuse_truncated
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.compress import unpack_again
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import PACKED, retaken_with
from llm_perf_opt.rundir.manifest import Step

_RECORD, _EXPORT, _SUMMARY = "nsys", "export", "stats"
_RECORDING, _TIMELINE, _LOG = "nsys/run.nsys-rep", "nsys/run.sqlite", "nsys/nsys.log"
_PROGRAM_LOG = "workload.log"
# Every sample stops its thread for 0.2 ms; lines are marked besides (`inject`), samples tell of long waits.
_STACKS, STACKS_HZ = "--python-sampling", 100
_REDIRECT = Path(redirect.__file__)


class TimelineStep:
    """Records, exports, and has the kernel summary printed."""

    def owns(self, command: Step) -> bool:
        return command.name in (_RECORD, _EXPORT, _SUMMARY)

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        run, manifest = directory.path, directory.manifest
        last = {step.name: step for step in manifest.steps}
        recorded, exported = last.get(_RECORD), last.get(_EXPORT)
        if request.timeline.enable and recorded is not None and ended_well(recorded):
            state.recording = whole_file(run, _RECORDING, recorded, manifest) is not None
            if exported is not None and exported.status == "done":
                state.timeline = whole_file(run, _TIMELINE, exported, manifest)
        if state.timeline is not None and state.timeline.suffix not in PACKED:
            state.lacks_summary = not any(s.name == _SUMMARY and s.status not in CUT_OFF for s in manifest.steps)

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        if request.timeline.enable and state.timeline is None:
            return ["the SQLite export of the timeline" if state.recording else "the timeline"]
        return ["the table of the timeline's kernels"] if state.lacks_summary else []

    def needs_nsys(self, request: ProfileRequest, state: ResumeState) -> bool:
        """Is there anything left that only nsys can do?"""
        return request.timeline.enable and bool(self.missing(request, state))

    def stays(self, command: Step, state: ResumeState) -> bool:
        if command.name == _RECORD:
            return state.recording or state.timeline is not None
        return state.timeline is not None and command.status not in CUT_OFF

    def files(self, command: Step) -> Sequence[str]:
        return retaken_with(command.name)

    def take(self, run: RunContext) -> Path | None:
        """The exported timeline; None where there is none."""
        nsys, state = run.tools.nsys, run.resume
        if state.timeline is not None or nsys is None:
            if state.lacks_summary and state.timeline is not None and nsys is not None:
                write_summary(run.directory, nsys, state.timeline)
            return state.timeline
        if state.recording:
            run.report_progress(f"timeline: {nsys} exports the existing recording …")
            unpack_again(run.directory, _RECORDING)  # nsys reads no packed ones
            exported = export_timeline(run.directory, nsys)
            if exported is None:
                run.failures.append(ExitCode.NOTHING_CAPTURED)
            return exported
        return self._record(run, nsys)

    def _record(self, run: RunContext, nsys: Tool) -> Path | None:
        asked = run.request.timeline
        # With the counters of kernels, or where ranks start the program once and have no others.
        wanted = run.tools.ncu is not None or run.resume.reports or asked.rank is not None
        hz = asked.traffic_hz if wanted else 0
        sampling = gpu_metrics.with_sampling(asked.options, nsys, run.directory.path / "nsys", hz, asked.rank)
        if sampling.why_not is not None:
            run.note(sampling.why_not)
        options = _with_stacks(sampling.options, nsys) if asked.lines else sampling.options
        end = None if run.request.serving.is_asked else early_end(run)
        until = "" if end is None else f" until {full_name(end)} {end.number:,} of {end.of:,} is over"
        title = f"timeline: {nsys} runs the program{until}"
        with run.report_progress.work(title, "timeline", expected_s=run.expected_seconds(_RECORD)) as progress:
            captured = _record_timeline(run, nsys, options, progress, end)
        run.finish_command(captured)
        run.outcomes.append(captured.outcome)
        if end is not None and not read_log(run.directory.path / ANNOTATION_LOG).ended_before:
            run.report_progress("  the program was not ended there, so all of it is recorded")
        if captured.file is None and captured.outcome.status != "nothing":  # recorded, but not exported
            run.failures.append(ExitCode.NOTHING_CAPTURED)
            run.not_exported = True
            for diagnosis in run.directory.manifest.steps[-1].diagnostics:
                run.report_progress.diagnosis(diagnosis)
        if captured.outcome.status == "captured" and not run.stopped:
            run.remember_seconds(_RECORD, captured.ended.seconds)
        _check_annotation(run)
        return captured.file


def _check_annotation(run: RunContext) -> None:
    """Report a program that could not be annotated: its regions would be missing without a reason."""
    annotated = read_log(run.directory.path / ANNOTATION_LOG)
    if annotated.unwatched:
        run.note(diagnose("RANGES_NOT_COUNTED", why=annotated.unwatched[0].rstrip(".")))
    if run.request.annotate.mode == "off":
        return
    for trouble in [*annotated.troubles, annotated.message]:
        if trouble:
            run.note(diagnose("NOT_ANNOTATED", problem=trouble))


def _record_timeline(
    run: RunContext, nsys: Tool, options: NsysOptions, progress: ReportProgress, end: EarlyEnd | None
) -> Captured:
    """Record and export. Where nsys refuses to sample the GPUs, and did not start the program, once more without that."""
    directory, command, asked = run.directory, run.request.command, run.request.timeline
    folder = directory.path / "nsys"
    log, program_log = directory.path / _LOG, directory.path / _PROGRAM_LOG
    # nsys prints between the lines of the program, so the program's own output goes elsewhere.
    program_pid = (folder / ".program.pid").resolve()
    shim = [sys.executable, "-IS", str(_REDIRECT.resolve()), str(program_log.resolve()), str(program_pid)]
    session = options.session_new or f"llm-perf-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    options = attrs.evolve(options, session_new=session)
    argv = build_nsys_cmd(folder / "run", [*shim, *command], nsys=nsys.path, options=options)
    ours = ending(run, end)
    notes, window = directory.path / ANNOTATION_LOG, ServerWindow.of(run, "nsys")
    ours = with_lines(ours, log=notes) if asked.lines else ours
    environment = {**ours, **nsys_environment(options), **_library_path(nsys)}
    stop = build_nsys_stop_cmd(nsys.path, session)
    if window is not None:
        window.on_kept = partial(_end_recording, run, stop, log)
    step = directory.begin(_RECORD, argv, "nsys", program=command, through=shim, environment=environment)
    ended = run_watched(
        *(window, argv),
        notes=notes,
        output=program_log,
        follow={log: progress_of(None, progress)},
        log=log,
        environment={**environment, **run.bytecode.variables(beside=True)},
        timeout_s=asked.timeout_s,
        program_pid=program_pid,
        program_log=program_log,
        report_progress=run.report_progress,
        stop_command=stop,
        too_large=lambda guard: 0 < asked.max_bytes < recording_bytes(guard),
        held=directory.handles,
        program_over=None if window is not None else lambda: begin_likely(run),  # a server waits for its clients
    )
    if window is not None:
        window.finish(run.note)
    # A program may remove what it finds: it must not be started again because the note of its start is gone.
    started = program_pid.exists() or not folder.is_dir() or bool(_size(program_log))
    program_pid.unlink(missing_ok=True)
    ended_before = "" if end is None else read_log(directory.path / ANNOTATION_LOG).ended_before
    finished = finish(
        *(ended, log, program_log, command),
        tool="nsys",
        argv=argv,
        files=files_in(folder),
        ended_on_purpose="the end of the window" if ended.done else ended_before,
    )
    outcome = evaluate(directory, step, finished, ended)
    sampled = options.gpu_metrics_set is not None and outcome.status == "nothing"
    may_repeat = sampled and not (started or ended.interrupted or ended.timed_out)
    refusal = gpu_metrics.refused(finished.output) if may_repeat else None
    if refusal is not None:
        step.status, step.diagnostics = "refused", [refusal]
        directory.save()
        run.report_progress("  nsys cannot sample the GPU's memory traffic; recording again without it")
        return _record_timeline(run, nsys, gpu_metrics.without_sampling(options), progress, end)
    return Captured(outcome, ended, None if outcome.status == "nothing" else export_timeline(directory, nsys, ended))


def _end_recording(run: RunContext, stop: list[str], log: Path) -> None:
    """Of a server that is kept: nsys writes its report now, and the server goes on without it."""
    run.directory.background.start(
        lambda end: run_short(stop, output=log, environment={}, timeout_s=grace_seconds(), stop=end), lambda _: None
    )
    run.report_progress(
        "  the recording is being written, and the server keeps running; end it with Ctrl-C for the report"
    )


def export_timeline(run: RunDirectory, nsys: Tool, capture: Ended | None = None) -> Path | None:
    """nsys's recording of a run as SQLite, and the kernel summary; None where that failed.

    `capture`: how the recording ended, where it was made just now.
    """
    sqlite = run.path / _TIMELINE
    # Under another name until it is whole: a stump would be taken for the timeline.
    unfinished = sqlite.with_name(f".{sqlite.name}.tmp")
    export = build_nsys_export_cmd(nsys.path, run.path / _RECORDING, unfinished, blobs=_has_stacks(run))
    step = run.begin(_EXPORT, export, "nsys", environment=_library_path(nsys))
    exported = run_short(
        export,
        output=run.path / _LOG,
        environment=_library_path(nsys),
        timeout_s=commands.EXPORT_TIMEOUT_S,
        held=run.handles,
    )
    step.exit_code, step.seconds = exported.exit_code, round(exported.seconds, 2)
    if (why := _not_exported(exported, unfinished)) is None:
        unfinished.replace(sqlite)
        step.files = {sqlite.name: sqlite.stat().st_size}
    else:
        unfinished.unlink(missing_ok=True)
        name = "EXPORT_FAILED.interrupted" if exported.interrupted else "EXPORT_FAILED"
        step.diagnostics = [diagnose(name, why=why, command=shlex.join(export))]
    step.status = "done" if sqlite.exists() else "nothing"
    run.save()
    if exported.interrupted:  # the run ends here, with the recording
        before = capture is not None and capture.interrupted
        raise InterruptedTwice if exported.interrupted_twice or before else KeyboardInterrupt
    if not sqlite.exists():
        return None
    write_summary(run, nsys, sqlite)
    return sqlite


def write_summary(run: RunDirectory, nsys: Tool, sqlite: Path) -> None:
    """Start to print the kernels of a timeline as nsys does, as a background task."""
    summary = sqlite.with_name("summary_cuda_gpu_kern_sum.csv")
    argv = build_nsys_stats_cmd(nsys.path, sqlite)
    step = run.begin(_SUMMARY, argv, "nsys", environment=_library_path(nsys), printed=summary)
    start_table(run, step, argv, summary, _library_path(nsys))


def _with_stacks(options: NsysOptions, nsys: Tool) -> NsysOptions:
    """Have nsys sample the stacks of Python, where it can and nobody else asked for it."""
    if _STACKS not in known_options(nsys) or any(argument.startswith(_STACKS) for argument in options.extra_args):
        return options
    return attrs.evolve(options, python_sampling="true", python_sampling_frequency=str(STACKS_HZ))


def _has_stacks(run: RunDirectory) -> bool:
    recorded = [step for step in run.manifest.steps if step.name == _RECORD]
    return bool(recorded) and any(argument.startswith(_STACKS) for argument in recorded[-1].argv)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _library_path(nsys: Tool) -> Mapping[str, str]:
    extra = library_path_for(nsys.path)
    if extra is None:
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(p for p in (extra, os.environ.get("LD_LIBRARY_PATH", "")) if p)}


def _not_exported(exported: Ended, file: Path) -> str | None:
    """Why there is no whole SQLite file; None where there is one."""
    if exported.timed_out:
        return f"it did not end within {commands.EXPORT_TIMEOUT_S:g} s"
    if exported.interrupted:
        return "it was interrupted"
    if exported.exit_code != 0 or not file.exists():
        return f"it ended with code {exported.exit_code}" + ("" if file.exists() else " and left nothing")
    try:
        refuse_truncated(file, "the file")  # an exit code of 0 proves nothing
    except UserError as error:
        return error.message.rstrip(".")
    return None


TIMELINE = TimelineStep()
