"""The program undisturbed: without a profiler it gives the stage timings, and fails here if it fails at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.capture.commands import stop_if_interrupted_twice, tail
from llm_perf_opt.capture.context import ResumeState, RunContext
from llm_perf_opt.capture.whole_files import ended_well
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.nsight.outcome import clean
from llm_perf_opt.planning import spoken_seconds
from llm_perf_opt.process.supervise import Ended, run_supervised
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import retaken_with
from llm_perf_opt.rundir.log_cleaning import clean_logs
from llm_perf_opt.rundir.manifest import Step

_NAME = "stage1"
_LOG = "stage1.log"
_LAST_LINES = 12  # of a failed program, shown


class Measure:
    """The stage timings, by a command of their own that writes them."""

    def owns(self, command: Step) -> bool:
        return command.name == _NAME

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        ran = [step for step in directory.manifest.steps if self.owns(step)]
        state.timings = bool(ran) and ended_well(ran[-1])

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        return ["the stage timings"] if request.timings and not state.timings else []

    def stays(self, command: Step, state: ResumeState) -> bool:
        return state.timings

    def files(self, command: Step) -> Sequence[str]:
        return retaken_with(_NAME)

    def take(self, run: RunContext) -> bool:
        """Run the program; False where it failed, and so would everything else."""
        command = run.request.timings
        if not command or run.resume.timings:
            return True
        title = "stage timings: the program runs without a profiler"
        with run.report_progress.work(title, "stage timings", expected_s=run.expected_seconds(_NAME)):
            step = run.directory.begin(_NAME, command, ".", program=command)
            log = run.directory.path / _LOG
            ended = run_supervised(command, log=log, report_progress=run.report_progress, held=run.directory.handles)
            clean_logs([log], command)
        code = _of_stage1(ended)
        step.exit_code, step.seconds = ended.exit_code, round(ended.seconds, 2)
        step.status = "done" if code is None else "failed"
        run.directory.save()
        stop_if_interrupted_twice(ended)
        run.stopped = ended.interrupted
        run.report_progress(f"  {step.status} in {spoken_seconds(ended.seconds)}")
        if code is None:
            run.remember_seconds(_NAME, ended.seconds)
            return True
        run.failures.append(code)
        explain_failure(run, log, ended, _LOG)
        return False


def explain_failure(run: RunContext, log: Path, ended: Ended, name: str) -> None:
    """Show the last lines of a program that failed; `name`: of its log."""
    lines = [clean(line) for line in tail(log).splitlines() if line.strip()][-_LAST_LINES:]
    for line in lines:
        run.report_progress(f"  {line}")
    if not run.stopped and not ended.timed_out:
        last = f' Its last line of output: "{lines[-1]}".' if lines else ""
        run.note(diagnose("WORKLOAD_FAILED", code=ended.exit_code, last_line=last, log=name))


def evaluate_program(ended: Ended) -> ExitCode | None:
    """The exit code of the run where the program failed; None where all is well."""
    if ended.interrupted:
        return ExitCode.INTERRUPTED
    if ended.timed_out:
        return ExitCode.TIMED_OUT
    return ExitCode.WORKLOAD_FAILED if ended.exit_code else None


def _of_stage1(ended: Ended) -> ExitCode | None:
    """Stage 1 has the same exit codes as a run."""
    if not ended.interrupted and ended.exit_code in (ExitCode.BAD_INPUT, ExitCode.MISSING_TOOL):
        return ExitCode(ended.exit_code)
    return evaluate_program(ended)


MEASURE = Measure()
