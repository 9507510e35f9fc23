"""What captures cost whose launches the user chose: nothing is chosen there, but the price can be told."""

from __future__ import annotations

import attrs

from llm_perf_opt.metrics.groups import MetricGroups, PassCount, groups_for
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning.costs import TIME_ONLY, RunFacts, passes_of_sets
from llm_perf_opt.planning.plan import CounterPlan, PlannedCapture
from llm_perf_opt.regions.model import NCUProfileRegionReport

_ONE_LAUNCH_A_PASS = ("application", "app-range")  # of the whole program


def add_prices(plan: CounterPlan, report: NCUProfileRegionReport, facts: RunFacts) -> CounterPlan:
    """The same captures with their passes and seconds, as far as those are known."""
    groups, _ = groups_for(facts.capability(report))
    priced = [_with_price(capture, groups, facts, facts.seconds(report)) for capture in plan.captures]
    return attrs.evolve(plan, captures=priced)


def _with_price(capture: PlannedCapture, groups: MetricGroups, facts: RunFacts, program_s: float) -> PlannedCapture:
    options, launches = capture.options, capture.expected
    passes = passes_of(options, groups)
    if passes is None or launches is None:
        return attrs.evolve(capture, passes=passes)
    only_time = {m.partition(".")[0] for m in options.metrics} <= set(TIME_ONLY)
    time_only = only_time and not (options.set or options.sections)
    runs, each = (passes.passes, 1) if options.replay_mode in _ONE_LAUNCH_A_PASS else (1, passes.passes)
    seconds = runs * facts.costs.capture_s(program_s, launches, each, time_only=time_only)
    return attrs.evolve(capture, passes=passes, seconds=seconds)


def passes_of(options: NcuOptions, groups: MetricGroups) -> PassCount | None:
    """Passes of each launch; None where sections are asked for whose passes nobody has counted."""
    if options.sections:
        return None
    of_set = passes_of_sets().get(options.set or "", 0)
    if options.set and not of_set:
        return None
    if not options.metrics:
        return PassCount(of_set, "measured") if of_set else None
    of_metrics = groups.passes_of(options.metrics)
    return PassCount(of_set + of_metrics.passes, "estimated") if of_set else of_metrics
