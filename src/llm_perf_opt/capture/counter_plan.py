"""The plan of a run's counters: decided by `planning`, noted in the run directory, and printed."""

from __future__ import annotations

from pathlib import Path

import attrs

from llm_perf_opt import planning
from llm_perf_opt.capture.context import RunContext
from llm_perf_opt.planning import CounterPlan
from llm_perf_opt.readers.marker_ranges import without_marker_ranges
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.report.text import counted


def make_counter_plan(run: RunContext, file: Path | None, seen: NCUProfileRegionReport | None) -> CounterPlan:
    """`file`, `seen`: the timeline and its report; None where none was taken."""
    facts = planning.facts_of(attrs.asdict(run.directory.manifest))
    timeline = None if file is None else run.timelines.get(file)
    plan = planning.decide(run.request, seen, timeline, facts, run.ranges_seen)
    if file is not None and timeline is not None:
        run.timelines[file] = without_marker_ranges(timeline)  # they are for the plan alone
    if plan.table is None or not plan.captures:
        return plan
    for diagnosis in plan.diagnostics:
        run.note(diagnosis)
    run.directory.write_json("plan.json", planning.as_json(plan, run.request.command))
    run.report_progress.plan(plan, plan.table)
    for capture in plan.captures:
        if capture.windows is not None:
            ranges = counted(capture.windows.count, "range")
            run.report_progress(f"  ncu is switched on from inside the program, in {ranges}")
        elif run.request.counters.windows:
            run.report_progress(f"  ncu looks at every launch of the program, which takes longer: {capture.no_windows}")
    return plan
