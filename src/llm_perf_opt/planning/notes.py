"""What the user must know about a plan: what was given up, what is assumed, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.planning.candidates import Fit, Search
from llm_perf_opt.planning.description import spoken_seconds
from llm_perf_opt.planning.samples import GOOD_ENOUGH, least_budget, with_more_captures


def notes(search: Search, fit: Fit | None, final: Fit | None = None) -> list[Diagnosis]:
    """Diagnoses of a plan. `fit`: its captures, None where nothing fits; `final`: the same with windows."""
    return list(_notes(search, fit, final or fit))


def _notes(search: Search, fit: Fit | None, final: Fit | None) -> Iterator[Diagnosis]:
    if len(search.launches) == 0:
        yield Diagnosis(
            "NOTHING_TO_PROFILE",
            "warning",
            "No launch lies in a region that ncu can select: there is nothing to count.",
            "See what exists with: llm-perf ranges TIMELINE",
        )
        return
    if not search.launches.has_configs:
        yield Diagnosis(
            "NO_LAUNCH_CONFIGS",
            "warning",
            "The timeline has no launch configurations, so the number of results is only the least to expect.",
            "Plan from an nsys recording: llm-perf profile makes one.",
        )
    if fit is None or final is None:
        budget, least = spoken_seconds(search.budget_s or 0), spoken_seconds(least_budget(search))
        yield Diagnosis(
            "BUDGET_TOO_SMALL",
            "error",
            f"Nothing fits into {budget}: the cheapest capture takes about {least}.",
            f"Every kernel once takes {_budget_for_all(search)}.",
        )
        return
    if fit.ask.level not in (None, "time"):
        yield from _types(search)
    if search.budget_s is not None:
        yield from _given_up(search, fit, spoken_seconds(search.budget_s))
    yield from _variation(search, fit, final)


def _budget_for_all(search: Search, fit: Fit | None = None) -> str:
    """The budget that samples every kernel once, at the level asked for or at that of `fit`."""
    ask = fit.ask if fit else search.asks()[0]
    return f"--budget {math.ceil(search.of_names(ask, search.names, 1).seconds)}s"


def _types(search: Search) -> Iterator[Diagnosis]:
    types = search.types
    missing = [t for t in types.types if t not in search.groups.data_types]
    if missing:
        yield Diagnosis(
            "TYPES_NOT_COUNTABLE",
            "warning",
            f"{search.groups.name} has no counter for operations in {', '.join(missing)}: those FLOPs will be missing.",
            "Byte counts and times are not affected.",
        )
    if types.left_out:
        shares = [f"{left} ({types.share.get(left, 0.0):.1%} of the GPU time)" for left in types.left_out]
        yield Diagnosis(
            "TYPES_LEFT_OUT",
            "info",
            f"Operations in {' and '.join(shares)} are not counted: each type takes further passes of every launch.",
            "Add their metrics with --metrics to count them.",
        )
    yield from (Diagnosis("TYPES_ASSUMED", "info", f"Data types: {reason}.") for reason in types.reasons)


def _given_up(search: Search, fit: Fit, budget: str) -> Iterator[Diagnosis]:
    if fit.ask.level != search.asked_level:
        yield Diagnosis(
            "LEVEL_LOWERED",
            "warning",
            f"Level {search.asked_level} does not fit into {budget}: {fit.ask.level} is taken instead.",
            f"Give it {_budget_for_all(search)}, or fewer regions.",
        )
    signatures = search.launches.signatures
    among_top = np.array([s.name not in search.beyond_top for s in signatures], dtype=np.bool_)
    ended = among_top & ~search.sampled(fit.taken)
    if ended.any():
        yield Diagnosis(
            "SIGNATURES_LEFT_OUT",
            "warning",
            f"{int(ended.sum())} of {len(signatures)} kernel signatures, {search.coverage(ended):.1%} of the GPU time, "
            f"do not fit into {budget}.",
            f"All of them take {_budget_for_all(search, fit)}.",
        )


def _variation(search: Search, fit: Fit, final: Fit) -> Iterator[Diagnosis]:
    error, left_over = search.error(fit.taken), search.error(final.taken)
    in_windows = any(capture.windows is not None for capture in final.captures)
    if error <= search.target_error or (in_windows and left_over <= GOOD_ENOUGH):
        return
    fix = "More launches of each kernel (--launches) make it smaller."
    better = with_more_captures(search, fit, math.inf)
    if (left := search.error(better.taken)) < error:
        fix = f"--budget {math.ceil(better.seconds)}s lets other launches be sampled too: about {left:.0%} then."
    yield Diagnosis(
        "KERNELS_VARY",
        "info",
        f"The planned launches differ from others of their kernel: totals may be off by about {left_over:.0%}, "
        "estimated from how long they take in the timeline.",
        fix,
    )
