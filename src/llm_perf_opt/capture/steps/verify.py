"""The verification: the regions measured as wholes, to hold the estimates against. Whatever fails here changes nothing else."""

from __future__ import annotations

from llm_perf_opt.api.inputs import VERIFY as NAME
from llm_perf_opt.capture.context import ResumeState, RunContext
from llm_perf_opt.capture.steps.attempt import (
    Attempt,
    files_of_attempt,
    is_of_ncu,
    planned_of,
    run_attempt,
    whole_reports,
    without_refused_metrics,
)
from llm_perf_opt.capture.whole_files import CUT_OFF
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning import CounterPlan, PlannedCapture, plan_verification
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.manifest import Step


class Verify:
    """One capture of its own, which is no part of the plan."""

    def owns(self, command: Step) -> bool:
        return is_of_ncu(command) and planned_of(command) == NAME

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        state.verification = bool(whole_reports(directory.path, PlannedCapture(NAME, NcuOptions()), directory.manifest))

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        wanted = request.counters.enable and request.counters.verify and bool(state.captures)
        return ["the verification"] if wanted and not state.verification else []

    def stays(self, command: Step, state: ResumeState) -> bool:
        return state.verification and command.status not in CUT_OFF

    files = staticmethod(files_of_attempt)

    def take(self, run: RunContext, plan: CounterPlan, seen: NCUProfileRegionReport | None) -> None:
        if not run.request.counters.verify or run.stopped or run.resume.verification:
            return
        capture = self._planned(run, plan, seen)
        if isinstance(capture, str):
            run.note(diagnose("NOT_VERIFIED.skipped" if plan.skipped else "NOT_VERIFIED", why=capture))
            return
        attempt = without_refused_metrics(run, Attempt.as_planned(capture))
        run.report_progress(
            "verifying: the program runs once for every pass of the counters, its regions measured as wholes"
        )
        captured = run_attempt(run, attempt, reported=False)
        run.outcomes.append(captured.outcome)
        if captured.file is None and not run.stopped:
            run.note(diagnose("VERIFY_FAILED", folder=run.directory.path, capture=capture.name))

    def _planned(self, run: RunContext, plan: CounterPlan, seen: NCUProfileRegionReport | None) -> PlannedCapture | str:
        """The capture, or why there is none."""
        if seen is None:
            return "without a timeline nothing is estimated"
        if not run.results and not run.resume.reports:
            return "no counters were captured"
        return plan_verification(seen, run.request, plan.captures)


VERIFY = Verify()
