"""How a program ended that ran without a profiler: noted in the manifest, and explained where it failed."""

from __future__ import annotations

import signal

from llm_perf_opt.capture.commands import stop_if_interrupted_twice, tail
from llm_perf_opt.capture.context import RunContext
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.messages import STATES
from llm_perf_opt.nsight.outcome import clean, of_rule
from llm_perf_opt.planning import spoken_seconds
from llm_perf_opt.process.supervise import Ended
from llm_perf_opt.rundir.manifest import Step

_LAST_LINES = 12  # of a failed program, shown


def end_undisturbed(
    run: RunContext, step: Step, ended: Ended, log: str, *, code: ExitCode | None = None, first: bool = False
) -> bool:
    """Whether the program ended well. `log`: of its output, below the run. `code`: of the run, where it is known.

    `first`: of a run that would record the program next.
    """
    code = code or _code_of(ended)
    step.exit_code, step.seconds = ended.exit_code, round(ended.seconds, 2)
    step.status = "done" if code is None else "failed"
    run.directory.save()
    stop_if_interrupted_twice(ended)
    run.stopped = ended.interrupted
    run.report_progress(f"  {step.status} in {spoken_seconds(ended.seconds)}")
    if code is None:
        run.remember_seconds(step.name, ended.seconds)
        return True
    run.failures.append(code)
    lines = [clean(line) for line in tail(run.directory.path / log).splitlines() if line.strip()][-_LAST_LINES:]
    for line in lines:
        run.report_progress(f"  {line}")
    if ended.timed_out:
        run.note(of_rule(STATES["TIMED_OUT"]))
    elif not run.stopped:
        last = f' Its last line of output: "{lines[-1]}".' if lines else ""
        name = "WORKLOAD_FAILED.measured" if first else "WORKLOAD_FAILED"
        if lines and lines[-1].startswith("EOFError: EOF when reading a line"):  # input() of Python
            name = "WORKLOAD_FAILED.no_input"
        if ended.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):  # by nobody's fault but who sent it
            name = "WORKLOAD_FAILED.killed"
        run.note(diagnose(name, code=ended.exit_code, last_line=last, log=log))
    return False


def _code_of(ended: Ended) -> ExitCode | None:
    if ended.interrupted:
        return ExitCode.INTERRUPTED
    if ended.timed_out:
        return ExitCode.TIMED_OUT
    if ended.done:  # how it takes it to be ended says nothing
        return None
    return ExitCode.WORKLOAD_FAILED if ended.exit_code else None
