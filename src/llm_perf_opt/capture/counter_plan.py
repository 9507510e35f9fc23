"""The plan of a run's counters: the captures of the timeline's plan, with capture windows where the program can have them."""

from __future__ import annotations

from pathlib import Path

import attrs

from llm_perf_opt import planning
from llm_perf_opt.capture.context import RunContext
from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.planning.automatic import captures_of, make_plan, plans, with_gates
from llm_perf_opt.planning.by_choice import CounterPlan, PlannedCapture, plan_counters
from llm_perf_opt.planning.windows import gated, sampled_gate, together
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.text import counted


def make_counter_plan(run: RunContext, timeline: Path | None, seen: NCUProfileRegionReport | None) -> CounterPlan:
    plan = plan_counters(seen, run.request)
    if timeline is not None and seen is not None and not plan.skipped and plans(run.request):
        return _from_timeline(run, timeline, seen)
    return _in_windows(run, plan) if plan.captures else plan


def _from_timeline(run: RunContext, timeline: Path, seen: NCUProfileRegionReport) -> CounterPlan:
    """The captures that tell the most for their time; the whole plan is kept in the run directory."""
    request = run.request
    plan = make_plan(timeline, seen, request, attrs.asdict(run.directory.manifest))
    if plan is None or not plan.captures:
        why = plan.diagnostics[0].message if plan and plan.diagnostics else "no launch lies in a chosen region"
        return CounterPlan(skipped=f"the plan has no captures: {why}")
    filtered = captures_of(plan, request)
    found: list[CaptureWindows | str] = ["capture windows are off"] * len(filtered)
    if request.counters.windows:
        result = with_gates(plan, timeline, seen, request, run.ranges_seen)
        plan, found = result.plan, result.gates
    for diagnosis in plan.diagnostics:
        run.note(diagnosis)
    run.directory.write_json("plan.json", planning.as_json(plan, request.command))
    run.report_progress.plan(plan)
    captures: list[PlannedCapture] = []
    parts = captures_of(plan, request)
    # Where one does for all, these are what to do where it gives nothing.
    others = [filtered] if len(parts) < len(filtered) else [[capture] for capture in filtered]
    for whole, part, windows in zip(others, parts, found, strict=True):
        if isinstance(windows, CaptureWindows):
            run.report_progress(f"  ncu is switched on from inside the program, in {counted(windows.count, 'range')}")
            captures.append(gated(part, windows, instead=whole))
        else:
            captures += whole
            if request.counters.windows:
                run.report_progress(f"  ncu looks at every launch of the program, which takes longer: {windows}")
    return CounterPlan(captures)


def _in_windows(run: RunContext, plan: CounterPlan) -> CounterPlan:
    """Chosen instances of several ranges in one run of the program, where that can tell them apart.

    ncu numbers the instances of all ranges together, so it would need one run for each.
    """
    stop = not run.request.counters.run_to_end
    windows = sampled_gate(plan.captures, run.ranges_seen, stop=stop)
    if isinstance(windows, CaptureWindows) and (stop or len(plan.captures) > 1):
        return attrs.evolve(plan, captures=[together(plan.captures, windows)])
    return plan
