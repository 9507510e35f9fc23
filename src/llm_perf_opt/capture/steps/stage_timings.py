"""The stage timings of the built-in workload: it runs without a profiler, and fails here if it fails at all."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.capture.context import ResumeState, RunContext
from llm_perf_opt.capture.gpu_sampler import GpuSampler
from llm_perf_opt.capture.steps.measure import FILE as MEASURED
from llm_perf_opt.capture.undisturbed import end_undisturbed
from llm_perf_opt.capture.whole_files import ended_well
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.process.supervise import Ended, run_supervised
from llm_perf_opt.readers.measured import add_gpus
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.layout import retaken_with
from llm_perf_opt.rundir.log_cleaning import clean_logs
from llm_perf_opt.rundir.manifest import Step

_NAME = "stage1"
_LOG = "stage1.log"


class StageTimings:
    """By a command of their own that writes them."""

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
            with GpuSampler() as sampler:
                ended = run_supervised(
                    command,
                    log=log,
                    environment=run.bytecode.while_running(),
                    report_progress=run.report_progress,
                    held=run.directory.handles,
                )
            times = run.directory.path / MEASURED
            if ended.exit_code == 0 and sampler.found and times.is_file():
                add_gpus(times, sampler.found)
            clean_logs([log], command)
        return end_undisturbed(run, step, ended, _LOG, code=_own_code(ended))


def _own_code(ended: Ended) -> ExitCode | None:
    """Stage 1 has the same exit codes as a run; None for those of any program."""
    bad = (ExitCode.BAD_INPUT, ExitCode.MISSING_TOOL)
    return ExitCode(ended.exit_code) if ended.exit_code in bad and not ended.interrupted else None


STAGE_TIMINGS = StageTimings()
