"""What the user must know about a plan: what was given up, what is assumed, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.planning.candidates import Fit, Search
from llm_perf_opt.planning.description import spoken_seconds
from llm_perf_opt.planning.samples import GOOD_ENOUGH, least_budget, with_more_captures


def notes(search: Search, fit: Fit | None, final: Fit | None = None) -> list[Diagnosis]:
    """Diagnoses of a plan. `fit`: its captures, None where nothing fits; `final`: the same with windows."""
    return list(_notes(search, fit, final or fit))


def _notes(search: Search, fit: Fit | None, final: Fit | None) -> Iterator[Diagnosis]:
    if len(search.launches) == 0:
        yield diagnose("NOTHING_TO_PROFILE")
        return
    if not search.launches.has_configs:
        yield diagnose("NO_LAUNCH_CONFIGS")
    if fit is None or final is None:
        budget, least = spoken_seconds(search.budget_s or 0), spoken_seconds(least_budget(search))
        yield diagnose("BUDGET_TOO_SMALL", budget=budget, least=least, all_kernels=_budget_for_all(search))
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
        yield diagnose("TYPES_NOT_COUNTABLE", chip=search.groups.name, types=", ".join(missing))
    if types.left_out:
        shares = [f"{left} ({types.share.get(left, 0.0):.1%} of the GPU time)" for left in types.left_out]
        yield diagnose("TYPES_LEFT_OUT", types=" and ".join(shares))
    yield from (diagnose("TYPES_ASSUMED", reason=reason) for reason in types.reasons)


def _given_up(search: Search, fit: Fit, budget: str) -> Iterator[Diagnosis]:
    if fit.ask.level != search.asked_level:
        enough = _budget_for_all(search)
        yield diagnose(
            "LEVEL_LOWERED", asked=search.asked_level, budget=budget, level=fit.ask.level, all_kernels=enough
        )
    signatures = search.launches.signatures
    among_top = np.array([s.name not in search.beyond_top for s in signatures], dtype=np.bool_)
    ended = among_top & ~search.sampled(fit.taken)
    if ended.any():
        yield diagnose(
            "SIGNATURES_LEFT_OUT",
            left_out=int(ended.sum()),
            signatures=len(signatures),
            share=search.coverage(ended),
            budget=budget,
            all_kernels=_budget_for_all(search, fit),
        )


def _variation(search: Search, fit: Fit, final: Fit) -> Iterator[Diagnosis]:
    error, left_over = search.error(fit.taken), search.error(final.taken)
    in_windows = any(capture.windows is not None for capture in final.captures)
    if error <= search.target_error or (in_windows and left_over <= GOOD_ENOUGH):
        return
    better = with_more_captures(search, fit, math.inf)
    if (left := search.error(better.taken)) < error:
        yield diagnose("KERNELS_VARY.budget_helps", error=left_over, seconds=math.ceil(better.seconds), left=left)
    else:
        yield diagnose("KERNELS_VARY", error=left_over)
