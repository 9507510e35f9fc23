"""What the user must know about a plan: what was given up, what is assumed, and what would help."""

from __future__ import annotations

import math

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.planning.budget import spoken_seconds
from llm_perf_opt.planning.model import Plan
from llm_perf_opt.planning.refine import with_more_captures
from llm_perf_opt.planning.search import Fit, Search


def notes(search: Search, plan: Plan, fit: Fit | None) -> list[Diagnosis]:
    """Diagnoses of a plan; `fit` is what it was made of, None where nothing could be planned."""
    if len(search.launches) == 0:
        return [
            Diagnosis(
                "NOTHING_TO_PROFILE",
                "warning",
                "No launch lies in a region that ncu can select: there is nothing to count.",
                "See what exists with: llm-perf ranges TIMELINE",
            )
        ]
    found = _launch_configs(search)
    if fit is None:
        return found + _too_small(search, plan)
    if not fit.captures:
        found.append(
            Diagnosis(
                "NOTHING_TO_PROFILE",
                "warning",
                f"No launch lies in the chosen instances (sample={search.request.sample}): there is nothing to count.",
                "Choose others, or sample=all.",
            )
        )
        return found
    return found + _types(search, plan) + _given_up(search, plan, fit) + _variation(search, plan, fit)


def _budget_for_all(search: Search, fit: Fit | None = None) -> str:
    """The budget that samples every kernel once, at the level asked for or at that of `fit`."""
    ask = fit.ask if fit else search.asks()[0]
    return f"--budget {math.ceil(search.of_names(ask, search.names, 1).seconds)}s"


def _launch_configs(search: Search) -> list[Diagnosis]:
    if search.launches.has_configs:
        return []
    return [
        Diagnosis(
            "NO_LAUNCH_CONFIGS",
            "warning",
            "The timeline has no launch configurations, so the number of results is only the least to expect.",
            "Plan from an nsys recording: llm-perf profile makes one.",
        )
    ]


def _too_small(search: Search, plan: Plan) -> list[Diagnosis]:
    budget, least = spoken_seconds(plan.budget_s or 0), spoken_seconds(plan.least_budget_s or 0)
    return [
        Diagnosis(
            "BUDGET_TOO_SMALL",
            "error",
            f"Nothing fits into {budget}: the cheapest capture takes about {least}.",
            f"Every kernel once takes {_budget_for_all(search)}.",
        )
    ]


def _types(search: Search, plan: Plan) -> list[Diagnosis]:
    if plan.level in (None, "time"):
        return []
    found = []
    missing = [t for t in search.types.types if t not in search.groups.data_types]
    if missing:
        found.append(
            Diagnosis(
                "TYPES_NOT_COUNTABLE",
                "warning",
                f"{search.groups.name} has no counter for operations in {', '.join(missing)}: those FLOPs will be missing.",
                "Byte counts and times are not affected.",
            )
        )
    if search.types.left_out:
        found.append(
            Diagnosis(
                "TYPES_LEFT_OUT",
                "info",
                f"Operations in {' and '.join(_with_share(t, search) for t in search.types.left_out)} are not counted: "
                "each type takes further passes of every launch.",
                "Add their metrics with --metrics to count them.",
            )
        )
    return found + [Diagnosis("TYPES_ASSUMED", "info", f"Data types: {r}.") for r in search.types.reasons]


def _with_share(data_type: str, search: Search) -> str:
    return f"{data_type} ({search.types.share.get(data_type, 0.0):.1%} of the GPU time)"


def _given_up(search: Search, plan: Plan, fit: Fit) -> list[Diagnosis]:
    if plan.budget_s is None:
        return []
    budget = spoken_seconds(plan.budget_s)
    found = []
    if plan.level != plan.asked_level:
        found.append(
            Diagnosis(
                "LEVEL_LOWERED",
                "warning",
                f"Level {plan.asked_level} does not fit into {budget}: {plan.level} is taken instead.",
                f"Give it {_budget_for_all(search)}, or fewer regions.",
            )
        )
    ended = [s for s in plan.unsampled if s.signature.name not in search.beyond_top]
    if ended and search.request.sample == "all":
        found.append(
            Diagnosis(
                "SIGNATURES_LEFT_OUT",
                "warning",
                f"{len(ended)} of {len(plan.signatures)} kernel signatures, {sum(s.share for s in ended):.1%} of the GPU time, "
                f"do not fit into {budget}.",
                f"All of them take {_budget_for_all(search, fit)}.",
            )
        )
    return found


def _variation(search: Search, plan: Plan, fit: Fit) -> list[Diagnosis]:
    if plan.error is None or plan.error <= search.request.target_error:
        return []
    fix = "More launches of each kernel (--launches) make it smaller."
    if search.request.sample == "all":
        better = with_more_captures(search, fit, math.inf)
        if (left := search.error(better)) < plan.error:
            fix = f"--budget {math.ceil(better.seconds)}s lets other launches be sampled too: about {left:.0%} then."
    return [kernels_vary(plan.error, fix)]


def kernels_vary(error: float, fix: str) -> Diagnosis:
    """A word on what the sampled launches do not tell."""
    return Diagnosis(
        "KERNELS_VARY",
        "info",
        f"The planned launches differ from others of their kernel: totals may be off by about {error:.0%}, "
        "judged by how long they take in the timeline.",
        fix,
    )
