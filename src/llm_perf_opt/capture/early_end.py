"""Ends the program under a profiler where enough of it was seen: what `planning/program_end.py` chose, for the steps."""

from __future__ import annotations

from llm_perf_opt import inject
from llm_perf_opt.capture.context import ANNOTATION_LOG, RunContext
from llm_perf_opt.capture.steps.measure import FILE as MEASURED
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import UserError
from llm_perf_opt.inject import CaptureWindows, read_log
from llm_perf_opt.options.declared import INSTANCES
from llm_perf_opt.planning.program_end import EarlyEnd, choose_end
from llm_perf_opt.regions.names import visible
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.untrusted import read_json

_FILE = "nsys/window.json"


def early_end(run: RunContext) -> EarlyEnd | None:
    """Where the timeline of a program that was measured may end; None where it takes all of it."""
    asked, file = run.request.counters, run.directory.path / MEASURED
    if asked.run_to_end or not asked.windows or not file.is_file():
        return None
    took = [step.seconds for step in run.directory.manifest.steps if step.name == "measure" and step.seconds]
    if not took:  # stage 1 left the file: under the profilers it makes fewer passes
        return None
    try:
        measured = run.read_timeline(file)
    except UserError:  # the report says so
        return None
    end = None if measured is None else choose_end(measured, took[-1], run.request.value(INSTANCES))
    if end is not None and end.not_reached:
        regions = ", ".join(visible(key, 60) for key in end.not_reached[:5])
        run.note(diagnose("NOT_RECORDED", regions=regions, where=f"{full_name(end)} {end.number}"))
    return end


def full_name(end: EarlyEnd) -> str:
    name = visible(end.name, 60)
    return f"{visible(end.domain, 40)}@{name}" if end.domain else name


def ending(run: RunContext, end: EarlyEnd | None) -> dict[str, str]:
    """The variables for the program under nsys, so that it is ended there; and for a server, so that its steps are counted."""
    serves = run.request.serving.is_asked
    if end is None and not serves:
        return run.environment
    annotate, log = run.request.annotate, run.directory.path / ANNOTATION_LOG
    environment = run.environment
    if environment.get("LLM_PERF_RANGES") != "1":  # nobody else wants to act on ranges, nor marker ranges for that
        environment = inject.environment(annotate.mode, annotate.depth, ranges=True, log=log)
        environment["LLM_PERF_MARKERS"] = ""
    if serves:
        environment = {**environment, "LLM_PERF_STEPS": "1"}
    return environment if end is None else {**environment, **end.windows.environment(run.directory.path / _FILE, log)}


def end_of_timeline(directory: RunDirectory) -> CaptureWindows | None:
    """Where the program was ended under nsys; None where it ran to its end."""
    if not read_log(directory.path / ANNOTATION_LOG).ended_before:
        return None
    try:
        return CaptureWindows.from_json(read_json(directory.path / _FILE))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
