"""Which launches are sampled: as much of the GPU time as the budget allows, where it tells most.

The order in which it gives way to a budget: fewer launches of each signature, then (down to nine tenths of the GPU
time) the kernels with the least time for their price, then a lower level of metrics, then more kernels. It never plans
above the budget.

ncu takes the first launches of each signature, which are those of the first region. Where the timeline shows that
others take another time, further captures sample the same kernel in a later region. Where the program can switch ncu
on and off, `window_samples.py` then finds places that tell as much in one capture.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from attrs import evolve

from llm_perf_opt.planning.accuracy import Accuracy
from llm_perf_opt.planning.candidates import Ask, Fit, Search
from llm_perf_opt.regions.columns import Bools

# Without a budget of the user's, a further capture (a whole run of the program) is worth it where the first leaves
# more than this error, and as long as the whole stays within this time.
GOOD_ENOUGH = 0.05
_LEAST_BUDGET_S = 90.0
_TIMES_ONE_CAPTURE = 2.5
_LEAST_COVERAGE = 0.9  # of the GPU time: before going below, a lower level is taken
_WORTH_IT = 0.8  # a further capture must bring the expected error below this part of what it was
_MORE_CAPTURES = 4


def choose_samples(search: Search) -> tuple[Search, Fit | None]:
    """The captures, None where nothing fits; and the search with the budget they were chosen for."""
    fit = _choose(search) if len(search.launches) else None
    if search.asked.budget_s is None and fit is not None:
        roomy = max(_LEAST_BUDGET_S, _TIMES_ONE_CAPTURE * fit.seconds)
        search = evolve(search, budget_s=roomy, target_error=GOOD_ENOUGH)
        fit = _choose(search)
    return search, fit


def least_budget(search: Search) -> float:
    """The cheapest capture that takes anything."""
    cheapest = search.asks()[-1]
    return min(search.of_names(cheapest, [n], 1).seconds or math.inf for n in search.names)


def _choose(search: Search) -> Fit | None:
    """The highest level that covers enough; else the lowest, with what fits; None where nothing does."""
    reachable = np.array([s.name not in search.beyond_top for s in search.launches.signatures], dtype=np.bool_)
    enough = search.coverage(reachable) * _LEAST_COVERAGE
    fit = None
    for ask in search.asks():
        fit = _most_of(search, ask)
        if fit is not None and search.coverage(search.sampled(fit.taken)) >= enough:
            return fit
    return fit


def _most_of(search: Search, ask: Ask) -> Fit | None:
    """As many launches of as many kernels as the budget allows at this level."""
    best: Fit | None = None
    for count in _counts(search):
        fit = search.of_names(ask, search.names, count)
        if not search.possible(fit):
            continue
        if search.budget_s is None:  # one run of the program has to do
            return fit
        fit = with_more_captures(search, fit, search.budget_s)
        # Three launches of the first layer may tell less than one there and one at the end.
        if best is None or _off_by(search, fit) < _off_by(search, best) * _WORTH_IT:
            best = fit
    if best is not None:
        return best
    # The most kernels that fit: where some do, fewer do too.
    some = range(1, len(search.names) + 1)
    kept = bisect_left(some, True, key=lambda k: not search.possible(search.of_names(ask, search.names[:k], 1)))
    return search.of_names(ask, search.names[:kept], 1) if kept else None


def _counts(search: Search) -> Iterator[int]:
    """Launches of each kernel to try, most first: no more than there are, and of many not every number."""
    count = min(search.asked.launches, int(search.launches.counts().max()))
    while count > 0:
        yield count
        count -= max(1, count // 8)


def _off_by(search: Search, fit: Fit) -> float:
    return max(search.error(fit.taken), search.target_error)


def with_more_captures(search: Search, fit: Fit, budget_s: float) -> Fit:
    """Captures added one by one, each the cheapest of those that help most."""
    for _ in range(_MORE_CAPTURES):
        accuracy = search.accuracy(fit.taken)
        if accuracy.total <= search.target_error:
            break
        more = [both for e in _regions_apart(search, fit, accuracy) if search.possible(both := fit + e, budget_s)]
        errors = {i: search.error(f.taken) for i, f in enumerate(more)}
        errors = {i: error for i, error in errors.items() if error < accuracy.total * _WORTH_IT}
        if not errors:
            break
        enough = max(1.1 * min(errors.values()), search.target_error)
        fit = more[min((i for i in errors if errors[i] <= enough), key=lambda i: more[i].seconds)]
    return fit


def _regions_apart(search: Search, fit: Fit, accuracy: Accuracy) -> list[Fit]:
    """For each region, a capture of its own for the kernels that were only sampled in an earlier one."""
    found = []
    for index, region in enumerate(search.launches.regions):
        here = (search.strata.region == index) & accuracy.elsewhere
        if names := _heaviest(search, accuracy, here):
            apart = evolve(search.named(names, [region]), launch_count=search.asked.launches)
            found.append(search.fit(fit.ask, [apart], f"{region.key}: kernels that were sampled elsewhere only"))
    return [f for f in found if f.captures]


def _heaviest(search: Search, accuracy: Accuracy, strata: Bools) -> frozenset[str]:
    """Names of the sampled kernels that make nine tenths of what some strata may be off by."""
    which = np.flatnonzero(strata & (accuracy.weight > 0))
    which = which[np.argsort(-accuracy.weight[which], kind="stable")]
    if len(which) == 0:
        return frozenset()
    reached = np.cumsum(accuracy.weight[which])
    kept = which[: int(np.searchsorted(reached, 0.9 * reached[-1])) + 1]
    return frozenset(search.launches.signatures[s].name for s in search.strata.signature[kept].tolist())
