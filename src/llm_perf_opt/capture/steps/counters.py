"""The counters: ncu profiles the few launches that the plan says are worth it, in one capture or several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from llm_perf_opt import planning
from llm_perf_opt.api.reporting import make_report
from llm_perf_opt.capture.commands import Captured
from llm_perf_opt.capture.context import ResumeState, RunContext
from llm_perf_opt.capture.preparation import known_patterns
from llm_perf_opt.capture.steps.attempt import (
    Attempt,
    discard,
    files_of_attempt,
    is_attempt,
    is_of_ncu,
    planned_of,
    reports_without_table,
    run_attempt,
    whole_reports,
    without_refused_metrics,
    write_raw,
)
from llm_perf_opt.capture.steps.verify import VERIFY
from llm_perf_opt.capture.whole_files import CUT_OFF
from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.inject import CaptureWindows, read_log
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.ncu.replay_modes import fell_back, next_mode
from llm_perf_opt.planning import CounterPlan, PlannedCapture, in_replay_mode
from llm_perf_opt.planning.windows import unseen
from llm_perf_opt.readers.marker_ranges import without_marker_ranges
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.text import counted
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.manifest import Step

# A capture with windows has failed where it gives less than this part of what was planned, and some windows have
# nothing at all.
_FEW_RESULTS = 0.7


class Counters:
    """All captures of the plan."""

    def owns(self, command: Step) -> bool:
        return is_of_ncu(command) and not VERIFY.owns(command)

    def find(self, directory: RunDirectory, request: ProfileRequest, state: ResumeState) -> None:
        manifest = directory.manifest
        try:
            state.captures = None if manifest.captures is None else [from_spec(spec) for spec in manifest.captures]
        except (KeyError, TypeError, ValueError, AttributeError, UserError):
            state.captures = None  # of another version: planned anew
        for capture in state.captures or []:
            if reports := whole_reports(directory.path, capture, manifest):
                state.reports[capture.name] = reports
        everything = [report for reports in state.reports.values() for report in reports]
        state.lacks_table = reports_without_table(manifest, everything, CUT_OFF)
        if request.timeline.enable and not state.recording and state.timeline is None and not state.reports:
            state.captures = None  # there is nothing left that the plan was made from

    def missing(self, request: ProfileRequest, state: ResumeState) -> list[str]:
        if not request.counters.enable:
            return []
        if state.captures is None:
            return ["the counters"]
        lacking = [f"the counters {c.name!r}" for c in state.captures if c.name not in state.reports]
        return lacking + [f"the counters of {report.name} as a table" for report in state.lacks_table]

    def stays(self, command: Step, state: ResumeState) -> bool:
        return planned_of(command) in state.reports and command.status not in CUT_OFF

    files = staticmethod(files_of_attempt)

    def take(self, run: RunContext, timeline: Path | None) -> tuple[CounterPlan, NCUProfileRegionReport | None]:
        """Plan, unless that was done before, and take what is missing; the plan, and the report of the timeline."""
        ncu, state = run.tools.ncu, run.resume
        assert ncu is not None
        numbers = attrs.evolve(known_patterns(run.request), verdicts=False)
        if timeline is not None:
            run.read_timeline(timeline)
        seen = None if timeline is None else make_report([str(timeline)], numbers, quiet=True, known=run.timelines)
        if state.captures is not None:
            plan = CounterPlan(state.captures)
        else:
            plan = _make_plan(run, timeline, seen)
            run.directory.manifest.captures = [to_spec(capture) for capture in plan.captures]
            run.directory.save()
        _explain(run, plan, seen)
        planned = {report: name for name, reports in state.reports.items() for report in reports}
        for report in state.lacks_table:
            write_raw(run.directory, ncu, report, planned[report])
        for number, capture in enumerate(plan.captures):
            if not run.stopped and capture.name not in state.reports:
                later_s = sum(c.seconds or 0.0 for c in plan.captures[number + 1 :])
                self._capture(run, Attempt.as_planned(capture), seen, later_s)
        run.drop_head_start()
        run.planned = plan.captures
        return plan, seen

    def _capture(self, run: RunContext, attempt: Attempt, seen: NCUProfileRegionReport | None, later_s: float) -> bool:
        """One planned capture, or an alternative of one; whether it gave results."""
        if attempt.capture.windows is None:
            return _in_some_mode(run, attempt, seen, later_s)
        captured = run_attempt(run, attempt, later_s=later_s)
        gave = _too_little(run, attempt, captured)
        if run.stopped or not gave:
            run.outcomes.append(captured.outcome)
            return attempt.capture.name in run.results
        for diagnosis in captured.outcome.diagnoses:
            diagnosis.severity = "info"  # it explains the other way; nothing is missing
        # From here on it does not count as taken: who is killed now takes it again.
        next(step for step in reversed(run.directory.manifest.steps) if is_attempt(step)).status = "failed"
        run.results.pop(attempt.capture.name, None)
        troubles = read_log(attempt.windows_log(run.directory)).unwatched
        why = f" ({troubles[0].rstrip('.')})" if troubles else ""
        run.note(diagnose("WINDOWS_DID_NOT_OPEN", outcome=gave + why))
        taken = [not run.stopped and self._capture(run, other, seen, later_s) for other in attempt.alternatives()]
        if captured.file is not None and all(taken):
            discard(run, captured.file)
        return all(taken)


def _explain(run: RunContext, plan: CounterPlan, seen: NCUProfileRegionReport | None) -> None:
    """Report why there are no captures, or why a budget has no effect on them."""
    if plan.skipped:
        if not plan.nothing_matched:
            run.note(diagnose("COUNTERS_SKIPPED", why=plan.skipped))
        elif seen is not None and seen.main_scope is not None and seen.main_scope.regions:
            run.note(diagnose("NO_MATCHING_KERNELS.counters", why=plan.skipped))
        else:  # the report says so, first thing
            run.report_progress(f"counters: not collected. {plan.skipped}.")
    if run.request.counters.budget_s is not None and plan.captures and plan.table is None:
        run.note(diagnose("BUDGET_NOT_USED"))


def _in_some_mode(run: RunContext, attempt: Attempt, seen: NCUProfileRegionReport | None, later_s: float) -> bool:
    """One capture by ncu's own filters; where its replay mode gives nothing, in the next mode."""
    asked, failed = attempt.mode, None
    while True:
        attempt = without_refused_metrics(run, attempt)
        captured = run_attempt(run, attempt, later_s=later_s)
        following = next_mode(attempt.mode, captured.outcome, enabled=run.request.counters.fallback)
        if following is None:
            run.outcomes.append(captured.outcome)
            if failed is not None and captured.file is not None:
                why = fell_back(asked, attempt.mode, failed)
                for diagnosis in failed.diagnoses:
                    diagnosis.severity = "info"  # it explains the other mode; nothing is missing
                run.note(why)
            return attempt.capture.name in run.results
        failed = failed or captured.outcome
        run.report_progress(f"  {attempt.mode} replay is not possible here; trying {following} …")
        attempt = attrs.evolve(attempt, capture=in_replay_mode(attempt.capture, following, seen, run.request))


def _too_little(run: RunContext, attempt: Attempt, captured: Captured) -> str:
    """What a capture with windows gave, in words, where that is so little that another way is worth it; else nothing."""
    outcome, capture = captured.outcome, attempt.capture
    if outcome.status == "nothing" and outcome.exit_code == ExitCode.NOTHING_CAPTURED:
        return "nothing"
    results = run.results.get(capture.name, [])
    enough = len(results) >= _FEW_RESULTS * (capture.expected or 0)
    if outcome.status != "captured" or capture.windows is None or enough:
        return ""
    opened = read_log(attempt.windows_log(run.directory)).windows
    some_never_came = bool(unseen(capture.windows, results)) or opened < capture.windows.count
    return f"{len(results)} of {capture.expected} results" if some_never_came else ""


def _make_plan(run: RunContext, file: Path | None, seen: NCUProfileRegionReport | None) -> CounterPlan:
    """`file`, `seen`: the timeline and its report; None where none was taken."""
    facts = planning.facts_of(attrs.asdict(run.directory.manifest))
    timeline = None if file is None else run.timelines.get(file)
    plan = planning.decide(run.request, seen, timeline, facts, run.ranges_seen)
    if file is not None and timeline is not None:
        run.timelines[file] = without_marker_ranges(timeline)  # they are for the plan alone
    if not plan.captures:
        return plan
    for diagnosis in plan.diagnostics:
        run.note(diagnosis)
    if plan.table is None:
        return plan
    run.directory.write_json("plan.json", planning.as_json(plan, run.directory.manifest.workload))
    run.report_progress.plan(plan, plan.table)
    for capture in plan.captures:
        if capture.windows is not None:
            ranges = counted(capture.windows.count, "range")
            run.report_progress(f"  ncu is switched on from inside the program, in {ranges}")
        elif run.request.counters.windows:
            run.report_progress(f"  ncu looks at every launch of the program, which takes longer: {capture.no_windows}")
    return plan


# -- planned captures as the manifest keeps them, signed: what a resumed run starts again -------------


def to_spec(capture: PlannedCapture) -> dict[str, Any]:
    options = attrs.asdict(capture.options, value_serializer=lambda _, __, v: list(v) if isinstance(v, tuple) else v)
    return {
        "name": capture.name,
        "options": options,
        "expressions": list(capture.expressions),
        "expected": capture.expected,
        "windows": capture.windows and capture.windows.as_json(),
        "alternatives": [to_spec(other) for other in capture.alternatives],
    }


def from_spec(spec: Mapping[str, Any]) -> PlannedCapture:
    """Raises KeyError, TypeError or ValueError where it is not what this version writes."""
    windows, name = spec["windows"], str(spec["name"])
    if not re.fullmatch(r"[^./\0][^/\0]*", name):  # it names files in the run, and must not lead out of it
        raise ValueError(f"{name!r} is no name of a capture")
    return PlannedCapture(
        name,
        NcuOptions(**spec["options"]),
        tuple(map(str, spec["expressions"])),
        spec["expected"],
        windows=windows and CaptureWindows.from_json(windows),
        alternatives=tuple(from_spec(other) for other in spec["alternatives"]),
    )


COUNTERS = Counters()
