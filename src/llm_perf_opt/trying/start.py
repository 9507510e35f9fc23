"""From a request to a trial on disk: first the answer of the program, then its levers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from llm_perf_opt.api.reporting import INSIDE_RUN, Showing, make_report, publish
from llm_perf_opt.capture.context import KeptRun, Tools
from llm_perf_opt.capture.preparation import check_program, known_patterns, ready
from llm_perf_opt.capture.progress_reporter import ProgressReporter
from llm_perf_opt.capture.session import run_profile
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.nsight.tools import find_nsys
from llm_perf_opt.options.of_trials import LEVER_NAMES, TRIAL_BATCH, TRIAL_BUDGET, TRIAL_OUTPUT, TRIAL_RUNS
from llm_perf_opt.options.values import parse_seconds
from llm_perf_opt.process.bytecode import bytecode_cache
from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.trying.batch_size import batch_levers
from llm_perf_opt.trying.files_of_trial import show_trial, write_trial
from llm_perf_opt.trying.levers import named_levers
from llm_perf_opt.trying.program_runs import ProgramRuns, first_run
from llm_perf_opt.trying.turns import Interrupted, Wanted, run_trial

_SHORT_S = 60.0  # of a budget


def try_program(
    request: ProfileRequest, settings: dict[str, Any], typed: list[str], *, as_json: bool = False, quiet: bool = False
) -> int:
    """The program's answer first, with nsys where it is installed; then its levers."""
    wanted, began = wanted_of(request), time.monotonic()
    check_program(request.command)
    mode = request.annotate.mode if request.annotate.mode != "off" else "stages"
    # A short budget is for levers: without a recording, those that fit the program are tried.
    is_short = wanted.budget_s is not None and wanted.budget_s < _SHORT_S
    has_nsys = not wanted.levers and not is_short and _has_nsys()
    request = attrs.evolve(
        request,
        annotate=attrs.evolve(request.annotate, mode=mode),
        timeline=attrs.evolve(request.timeline, enable=has_nsys),
        counters=attrs.evolve(request.counters, enable=False),
    )
    tools = Tools(None, None)
    if has_nsys:
        request, tools = ready(request)
    directory = RunDirectory.create(
        *(Path(request.out) if request.out else None, request.command, settings),
        recordings=has_nsys,
        made_by="try",
        typed=typed,
        show_command=request.show_command,
    )
    with tempfile.TemporaryDirectory(prefix="llm-perf-try-") as folder:
        kept = KeptRun(Path(folder))
        with directory.interrupted_in_order():
            code = run_profile(request, tools, directory, quiet=quiet or as_json, silent=True, kept=kept)
        if code in (ExitCode.WORKLOAD_FAILED, ExitCode.INTERRUPTED):
            return code
        if wanted.budget_s is not None:
            wanted = attrs.evolve(wanted, budget_s=wanted.budget_s - (time.monotonic() - began))
        return try_run(request, directory.path, wanted, kept, as_json=as_json, quiet=quiet)


def _has_nsys() -> bool:
    """Without it, the program is timed and no more."""
    try:
        find_nsys()
    except UserError:
        return False
    return True


def wanted_of(request: ProfileRequest) -> Wanted:
    """Refuses names of levers that do not exist before anything is run."""
    names = str(request.value(LEVER_NAMES))
    budget, batch = request.value(TRIAL_BUDGET), request.value(TRIAL_BATCH)
    return Wanted(
        levers=[] if names == "auto" else named_levers([word.strip() for word in names.split(",") if word.strip()]),
        runs=request.value(TRIAL_RUNS),
        budget_s=parse_seconds(budget) if isinstance(budget, str) else budget,
        more=batch_levers(str(batch), request.command) if batch else (),
    )


def try_run(
    request: ProfileRequest,
    path: Path,
    wanted: Wanted,
    kept: KeptRun | None = None,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Try levers in a run that has its report; `try.json` goes beside it, and what was tried into it.

    `kept`: the program as it is, where it was run with notes for this.
    """
    reporter = ProgressReporter(quiet=quiet, silent=as_json)
    wanted = attrs.evolve(wanted, fixes=_fixes(request, path))
    directory = RunDirectory.reopen(path)
    code, state = ExitCode.DONE, "failed"
    try:
        with bytecode_cache() as bytecode:
            output = request.value(TRIAL_OUTPUT)
            first = None if kept is None or output is not None else first_run(kept)
            runs = ProgramRuns(request, directory, reporter, bytecode, output, first)
            try:
                with runs:
                    trial = run_trial(runs, wanted, list(directory.manifest.workload))
                state = "done"
            except Interrupted as interrupted:
                trial, code, state = interrupted.trial, ExitCode.INTERRUPTED, "interrupted"
        write_trial(trial, path)
    finally:
        directory.finish(state)
        directory.release()
    _report_again(request, path)
    if as_json:
        print_json({"out": str(path), **trial.as_json()})
    else:
        show_trial(trial, path, quiet=quiet)
    return int(code)


def _fixes(request: ProfileRequest, path: Path) -> list[Fix]:
    try:
        return make_report([str(path)], known_patterns(request), quiet=True).answer.stage_fixes
    except UserError:  # nothing was timed, or recorded: levers that fit the program are tried
        return []


def _report_again(request: ProfileRequest, path: Path) -> None:
    """The report says of each fix what became of it."""
    try:
        report = make_report([str(path)], known_patterns(request), quiet=True)
    except UserError:
        return
    publish(report, path, regions=INSIDE_RUN, top=request.report.top, showing=Showing(silent=True), force=True)
