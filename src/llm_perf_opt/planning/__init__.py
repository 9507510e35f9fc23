"""The plan of the counters: from a timeline, a level of metrics and a budget to ncu's filters and what they cost.

In short (`timeline` read with its launch configurations, `report` built from it):

    expressions, chosen = selectable_regions(report.main_scope)
    launches = describe_launches(timeline, attribute(timeline), expressions, chosen)
    groups, words = groups_for("9.0")
    costs, more_words = known_costs(costs_file(), machine_of(manifest))
    plan = make_plan(launches, groups, Request(budget_s=60, program_s=20), costs)
    for capture in plan.captures: run(capture.argv(command, ncu=…, out=…))
    remember(costs_file(), machine, observe(manifest, {"ncu": results}))
"""

from llm_perf_opt.planning.accuracy import expected_error
from llm_perf_opt.planning.budget import parse_seconds, spoken_seconds
from llm_perf_opt.planning.by_hand import Forecast, forecast
from llm_perf_opt.planning.costs import (
    Costs,
    Observation,
    costs_file,
    default_costs,
    known_costs,
    machine_key,
    machine_of,
    observe,
    remember,
    seconds_under_nsys,
)
from llm_perf_opt.planning.cover import Wanted, cover
from llm_perf_opt.planning.describe import as_json, describe
from llm_perf_opt.planning.filters import LaunchFilter
from llm_perf_opt.planning.goal import Request
from llm_perf_opt.planning.launches import LaunchTable, describe_launches, selectable_regions
from llm_perf_opt.planning.model import Capture, Plan, PlannedSignature
from llm_perf_opt.planning.notes import kernels_vary
from llm_perf_opt.planning.planner import make_plan
from llm_perf_opt.planning.stand_ins import needed, stood_in_for

__all__ = [
    "Capture",
    "Costs",
    "Forecast",
    "LaunchFilter",
    "LaunchTable",
    "Observation",
    "Plan",
    "PlannedSignature",
    "Request",
    "Wanted",
    "as_json",
    "costs_file",
    "cover",
    "default_costs",
    "describe",
    "describe_launches",
    "expected_error",
    "forecast",
    "kernels_vary",
    "known_costs",
    "machine_key",
    "machine_of",
    "make_plan",
    "needed",
    "observe",
    "parse_seconds",
    "remember",
    "seconds_under_nsys",
    "selectable_regions",
    "spoken_seconds",
    "stood_in_for",
]
