"""The program by itself, every range of it timed from inside: what it takes when nobody looks."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from llm_perf_opt import inject
from llm_perf_opt.analysis.slow_answers import slow_answers
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.capture.context import ResumeState, RunContext
from llm_perf_opt.capture.gpu_sampler import GpuSampler
from llm_perf_opt.capture.preparation import known_patterns
from llm_perf_opt.capture.server_window import ServerWindow, nothing_is_explained, run_watched
from llm_perf_opt.capture.undisturbed import end_undisturbed
from llm_perf_opt.capture.whole_files import ended_well, whole_file
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.inject import read_log
from llm_perf_opt.inject.place import place_in_job
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.report.answer import time_sentences
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import retaken_with
from llm_perf_opt.rundir.log_cleaning import clean_logs
from llm_perf_opt.rundir.manifest import Step

_NAME, _FOLDER, FILE = "measure", "measure", "measure/run.json"
_WRITTEN_S = 1.5  # after which a server that goes on has written the times of its last steps, also where it is idle
_WRITTEN_AT_END_S = 0.5  # the same, once it is told that it is to be ended
_ROOM = 1 << 20  # bytes; with less, the times of the last ranges may be missing
_LOG, _NOTES = "measure/workload.log", "measure/annotate.jsonl"


class Measure:
    """Alone (`llm-perf measure`), or before the recordings, whose report takes its times from here."""

    def owns(self, command: Step) -> bool:
        return command.name == _NAME

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        ran = [step for step in directory.manifest.steps if self.owns(step)]
        state.measured = bool(ran) and ended_well(ran[-1])
        if state.measured and ran[-1].files:  # none: nothing could be timed
            state.measured = whole_file(directory.path, FILE, ran[-1], directory.manifest) is not None

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        # Not after the recordings: a run of an older version, or of a program that could not be measured.
        recorded = state.recording or state.timeline is not None
        wanted = request.measure.enable and not (state.measured or recorded or _barred(request))
        return ["the times of the program by itself"] if wanted else []

    def stays(self, command: Step, state: ResumeState) -> bool:
        return state.measured

    def files(self, command: Step) -> Sequence[str]:
        return retaken_with(_NAME)

    def take(self, run: RunContext) -> bool:
        """Run the program as often as was asked for; False where it failed, and so would everything else."""
        if not self.missing(run.request, run.resume):
            if run.request.measure.enable and (why := _barred(run.request)):
                run.report_progress(f"measure: left out, because the program cannot be timed from inside. {why}")
            return True
        alone = not (run.request.timeline.enable or run.request.counters.enable)
        file = run.directory.path / FILE
        went_well, timed = _take_runs(run, file, alone=alone)
        if alone and went_well and not timed and _can_be_marked(run):
            run.report_progress(
                "  it opened no range: once more, with the stages of its models marked (--annotate stages)"
            )
            marked = attrs.evolve(run.request.annotate, mode="stages")
            run.request = attrs.evolve(run.request, annotate=marked)
            went_well, timed = _take_runs(run, file, alone=alone)
        if timed or alone:
            run.directory.manifest.steps[-1].files = {file.name: file.stat().st_size}
            run.directory.save()
        else:
            file.unlink(missing_ok=True)
        if timed and not alone:
            _show(run, file)
        elif not timed and alone and not run.failures:
            run.failures.append(ExitCode.NOTHING_CAPTURED)
            if why := _nothing_timed(run):
                run.note(diagnose(why))
        elif not timed and went_well:
            run.report_progress("  no range could be timed: the times will be those of the profiled run")
        # A step that takes too long is stopped, and the others are taken all the same.
        return went_well or (ExitCode.TIMED_OUT in run.failures and not run.stopped)


def _nothing_timed(run: RunContext) -> str:
    """The code of what to say of it; empty where a message says already why."""
    if nothing_is_explained(run.directory.manifest.diagnostics):
        return ""
    if run.request.serving.is_asked:
        return "NOTHING_TIMED.window"
    if not _used_torch(run):
        return "NOTHING_TIMED.without_torch"
    return "NOTHING_TIMED.marked" if run.request.annotate.mode != "off" else "NOTHING_TIMED"


def _take_runs(run: RunContext, file: Path, *, alone: bool) -> tuple[bool, int]:
    """Whether all runs went well, and how many ranges were timed."""
    folder = run.directory.path / _FOLDER
    folder.mkdir(exist_ok=True)
    raw: list[Path] = []
    gpus: list[list[dict[str, Any]]] = []  # of each run
    windows: dict[int, tuple[int, int]] = {}  # of runs of a server
    waits: dict[str, Int64s] = {}  # of its clients, in the last of them
    went_well = False
    try:
        for number in range(1, run.request.measure.runs + 1):
            raw.append(folder / f".run-{number}")
            shutil.rmtree(raw[-1], ignore_errors=True)  # of a run that was killed
            raw[-1].mkdir()
            with GpuSampler() as sampler:
                went_well, window, waits = _run_once(run, raw[-1], number)
            if window is not None:
                windows[number - 1] = window
            gpus.append(sampler.found)
            if _is_full(folder):
                run.note(diagnose("TIMES_NOT_WRITTEN", folder=folder))
                run.failures += [ExitCode.NOTHING_CAPTURED] if _is_empty(raw[-1]) else []
            if not went_well or _is_empty(raw[-1]):  # what has no ranges has none in another run
                break
        timed = _collected(raw, file, gpus, windows, alone=alone)
        if timed and waits:
            with contextlib.suppress(UserError):  # the report says it
                for diagnosis in slow_answers(read_measured(file), waits):
                    run.note(diagnosis)
        if went_well and run.kept is not None:
            shutil.move(raw[-1], run.kept.times)
            run.kept.gpus, run.kept.seconds = gpus[-1], run.directory.manifest.steps[-1].seconds or 0.0
    finally:
        for place in raw:
            shutil.rmtree(place, ignore_errors=True)
    return went_well, timed


def _is_full(folder: Path) -> bool:
    """Is there no room left where the times are written? Without it nobody would know why they end."""
    return shutil.disk_usage(folder).free < _ROOM


def _is_empty(times: Path) -> bool:
    """Was no range timed? Names and facts are noted in any case."""
    return all(file.suffix not in (".rows", ".host") for file in times.iterdir())


def _can_be_marked(run: RunContext) -> bool:
    """Is it a program of PyTorch that marks nothing by itself, and may be started again?

    Ranks of a job have to be started together, and a server is asked for its own steps.
    """
    request = run.request
    may_start = request.annotate.mode == "off" and not request.serving.is_asked and place_in_job() is None
    return may_start and not run.failures and _used_torch(run)


def _used_torch(run: RunContext) -> bool:
    """Whether a process of the program imported PyTorch, and said so when it ended."""
    return read_log(run.directory.path / _NOTES).ended > 0


def _barred(request: ProfileRequest) -> str:
    """Why nothing of ours gets into the program that a recording is made of; nothing where it may."""
    found = inject.problems(request.command) if request.timeline.enable or request.counters.enable else []
    return found[0] if found else ""


def _collected(
    raw: list[Path], file: Path, gpus: list[list[dict[str, Any]]], windows: dict[int, tuple[int, int]], *, alone: bool
) -> int:
    """How many ranges were timed; files that cannot be read are no reason not to record."""
    try:
        return collect(raw, file, gpus, windows=windows)
    except UserError:
        if alone:
            raise
        return 0


def _show(run: RunContext, file: Path) -> None:
    """What the stages take, at once: the recordings take a while."""
    try:
        run.timelines[file] = read_measured(file)  # here: it was written by us, just now
        options = attrs.evolve(known_patterns(run.request), aggregate=True)
        report = make_report([str(file)], options, quiet=True, known=run.timelines)
        for sentence in time_sentences(report):
            run.report_progress(f"  {sentence}")
    except UserError as error:  # the report says it again
        run.report_progress(f"  {error.message}")


def _run_once(run: RunContext, times: Path, number: int) -> tuple[bool, tuple[int, int] | None, dict[str, Int64s]]:
    """Whether the program ended well; and of a server, the moments between which it was measured, and its clients' waits."""
    request, directory = run.request, run.directory
    log, notes = directory.path / _LOG, directory.path / _NOTES
    of = f" ({number} of {request.measure.runs})" if request.measure.runs > 1 else ""
    environment = inject.environment(
        *(request.annotate.mode, request.annotate.depth),
        ranges=True,
        log=notes,
        timers=times,
        steps=request.serving.is_asked,
    )
    if run.kept is not None:
        run.kept.notes.mkdir(exist_ok=True)
        environment = inject.with_levers(environment, run.kept.notes, [], outputs=True)
    title = f"measure: the program runs by itself{of}"
    with run.report_progress.work(title, "measure", expected_s=run.expected_seconds(_NAME)):
        step = directory.begin(_NAME, request.command, _FOLDER, program=request.command, environment=environment)
        recorded = request.timeline.enable or request.counters.enable  # it makes room for the one that is recorded
        window = ServerWindow.of(run, _FOLDER, keep=request.serving.keep and not recorded)
        if window is not None:
            window.on_kept = partial(_show_kept, run, times, window)
            window.on_end = partial(_have_written, times)
        ended = run_watched(
            *(window, request.command),
            notes=notes,
            output=log,
            follow={},
            log=log,
            environment={**environment, **run.bytecode.variables()},
            timeout_s=request.measure.timeout_s,
            report_progress=run.report_progress,
            held=directory.handles,
        )
        clean_logs([log], request.command)
    for trouble in read_log(notes).troubles if request.annotate.mode != "off" else ():
        run.note(diagnose("NOT_ANNOTATED", problem=trouble))
    went_well = end_undisturbed(run, step, ended, _LOG, first=request.timeline.enable)
    return went_well, None if window is None else window.finish(run.note), {} if window is None else window.waits


def _have_written(times: Path) -> None:
    """What ends a server may kill its workers at once, and their last times would be lost."""
    (times / inject.ENDING).touch()
    if any(times.glob("*.names")):
        time.sleep(_WRITTEN_AT_END_S)


def _show_kept(run: RunContext, times: Path, window: ServerWindow) -> None:
    """What the window of a server holds that goes on; the report follows when it is ended."""
    file = run.directory.path / FILE
    time.sleep(_WRITTEN_S)
    if window.opened_ns is not None and window.closed_ns is not None:
        with contextlib.suppress(UserError):  # the report says it
            collect([times], file, windows={0: (window.opened_ns, window.closed_ns)})
            _show(run, file)
        run.timelines.pop(file, None)
    run.report_progress("  the server keeps running; end it with Ctrl-C for the whole report")


MEASURE = Measure()
