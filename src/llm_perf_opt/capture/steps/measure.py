"""The program by itself, every range of it timed from inside: what it takes when nobody looks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from llm_perf_opt import inject
from llm_perf_opt.capture.context import ANNOTATION_LOG, RunContext
from llm_perf_opt.capture.gpu_sampler import GpuSampler
from llm_perf_opt.capture.undisturbed import end_undisturbed
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.inject import read_log
from llm_perf_opt.process.supervise import run_supervised
from llm_perf_opt.readers.measured import collect
from llm_perf_opt.rundir.log_cleaning import clean_logs

_NAME, _FOLDER, _FILE, _LOG = "measure", "measure", "measure/run.json", "measure/workload.log"


def take_measure(run: RunContext) -> None:
    """Run the program as often as was asked for, and keep the times of its ranges."""
    asked, directory = run.request.measure, run.directory
    if not asked.enable:
        return
    folder = directory.path / _FOLDER
    folder.mkdir(exist_ok=True)
    raw: list[Path] = []
    gpus: list[list[dict[str, Any]]] = []  # of each run
    try:
        for number in range(1, asked.runs + 1):
            raw.append(folder / f".run-{number}")
            raw[-1].mkdir()
            with GpuSampler() as sampler:
                went_well = _run_once(run, raw[-1], number)
            gpus.append(sampler.found)
            if not went_well:
                break
        if not collect(raw, directory.path / _FILE, gpus) and not run.failures:
            run.failures.append(ExitCode.NOTHING_CAPTURED)
            run.note(diagnose("NOTHING_TIMED"))
    finally:
        for place in raw:
            shutil.rmtree(place, ignore_errors=True)


def _run_once(run: RunContext, times: Path, number: int) -> bool:
    """Whether the program ended well."""
    request, directory = run.request, run.directory
    log = directory.path / _LOG
    of = f" ({number} of {request.measure.runs})" if request.measure.runs > 1 else ""
    environment = inject.environment(
        *(request.annotate.mode, request.annotate.depth), ranges=True, log=directory.path / ANNOTATION_LOG, timers=times
    )
    title = f"measure: the program runs by itself{of}"
    with run.report_progress.work(title, "measure", expected_s=run.expected_seconds(_NAME)):
        step = directory.begin(_NAME, request.command, _FOLDER, program=request.command, environment=environment)
        ended = run_supervised(
            request.command,
            log=log,
            environment={**environment, **run.bytecode},
            timeout_s=request.measure.timeout_s,
            report_progress=run.report_progress,
            held=directory.handles,
        )
        clean_logs([log], request.command)
    for trouble in read_log(directory.path / ANNOTATION_LOG).troubles if request.annotate.mode != "off" else ():
        run.note(diagnose("NOT_ANNOTATED", problem=trouble))
    return end_undisturbed(run, step, ended, _LOG)
