"""Samples where the first launches of a kernel do not tell about the others.

ncu takes the first launches of each signature, which are those of the first region, the first layers, the
first steps. Where the timeline shows that others take another time, further captures sample them too: the
same kernel in a later region, and the middle and last instance of a repeated range.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import evolve

from llm_perf_opt.planning.accuracy import Accuracy
from llm_perf_opt.planning.filters import SEEN_TO_HOLD, Assumption, numbered
from llm_perf_opt.planning.launches import Turns
from llm_perf_opt.planning.search import Fit, Search
from llm_perf_opt.regions.columns import Bools, Int64s

WORTH_IT = 0.8  # a further capture must bring the expected error below this part of what it was
_MORE_CAPTURES = 4
_REPEATED_TRIED = 4  # repeated ranges looked at, those with the most time first
_STRATA_TRIED = 12


def refined(search: Search, fit: Fit) -> Fit:
    """The same captures, and further ones where they are worth their time."""
    request = search.request
    if request.sample != "all" or not fit.captures:
        return fit
    if _may_assume(search, Assumption.KERNEL_ID_PER_CONFIG) and search.error(fit) > request.target_error:
        fit = by_invocation(search, fit)
    # Without a budget one run of the program has to do; what more would bring is told.
    return fit if request.budget_s is None else with_more_captures(search, fit, request.budget_s)


def with_more_captures(search: Search, fit: Fit, budget_s: float) -> Fit:
    """Captures added one by one, each the cheapest of those that help most."""
    target = search.request.target_error
    for _ in range(_MORE_CAPTURES):
        accuracy = search.accuracy(fit.taken)
        if accuracy.total <= target:
            break
        extra = _regions_apart(search, fit, accuracy)
        if _may_assume(search, Assumption.COUNT_IN_INSTANCES):
            extra += _later_turns(search, fit, accuracy)
        more = [together for e in extra if search.possible(together := fit + e, budget_s)]
        errors = {i: search.error(f) for i, f in enumerate(more)}
        errors = {i: error for i, error in errors.items() if error < accuracy.total * WORTH_IT}
        if not errors:
            break
        enough = max(1.1 * min(errors.values()), target)
        fit = more[min((i for i in errors if errors[i] <= enough), key=lambda i: more[i].seconds)]
    return fit


def _may_assume(search: Search, assumption: Assumption) -> bool:
    return search.request.use_untried or assumption in SEEN_TO_HOLD


def _regions_apart(search: Search, fit: Fit, accuracy: Accuracy) -> list[Fit]:
    """For each region, a capture of its own for the kernels that were only sampled in an earlier one."""
    found = []
    for index, region in enumerate(search.launches.regions):
        here = (search.strata.region == index) & accuracy.elsewhere
        if names := _heaviest(search, accuracy, here):
            apart = evolve(search.named(names, [region]), launch_count=search.request.launches)
            found.append(search.fit(fit.ask, [apart], f"{region.key}: kernels that were sampled elsewhere only"))
    return [f for f in found if f.captures]


def _later_turns(search: Search, fit: Fit, accuracy: Accuracy) -> list[Fit]:
    """For each repeated range, its middle and last instance."""
    repeated = search.launches.turns[:_REPEATED_TRIED]
    return [way for turns in repeated for way in _ways_to_later(search, fit, turns, accuracy) if way.captures]


def _ways_to_later(search: Search, fit: Fit, turns: Turns, accuracy: Accuracy) -> list[Fit]:
    """Both instances in one capture, or in one each."""
    later = sorted({(turns.count + 1) // 2, turns.count} - {1})
    here = np.zeros(len(search.strata), dtype=np.bool_)
    here[search.strata.of_launch[np.isin(turns.number, later)]] = True
    names = _heaviest(search, accuracy, here)
    if not names:
        return []
    one = search.named(names, [turns.region])
    count = max(1, search.request.launches - 1)
    why = f"{turns.region.key}: what its first instances do not tell"
    ways = [search.fit(fit.ask, [evolve(one, instances=(i,), launch_count=count) for i in later], why)]
    if len(later) > 1:
        # To reach the second instance in the same capture, all launches of the first have to be taken.
        wanted = np.array([s.name in names for s in search.launches.signatures], dtype=np.bool_)
        first = int((search.launches.counts(turns.number == later[0]) * wanted).max())
        together = evolve(one, instances=tuple(later), launch_count=first + count)
        ways.append(search.fit(fit.ask, [together], why))
    return ways


def _heaviest(search: Search, accuracy: Accuracy, strata: Bools) -> frozenset[str]:
    """Names of the sampled kernels that make nine tenths of what some strata may be off by."""
    which = np.flatnonzero(strata & (accuracy.weight > 0))
    which = which[np.argsort(-accuracy.weight[which], kind="stable")]
    if len(which) == 0:
        return frozenset()
    reached = np.cumsum(accuracy.weight[which])
    kept = which[: int(np.searchsorted(reached, 0.9 * reached[-1])) + 1]
    return frozenset(search.launches.signatures[s].name for s in search.strata.signature[kept].tolist())


def by_invocation(search: Search, fit: Fit) -> Fit:
    """As many results at the most, but as one list of invocations for all kernels, chosen to make the error smallest."""
    if len(fit.captures) != 1:
        return fit
    only = fit.captures[0].filter
    limit = int(fit.taken.sum())
    turn = numbered(search.launches, evolve(only, launch_count=None).taken(search.launches))
    chosen: set[int] = set()
    taken = np.zeros(len(search.launches), dtype=np.bool_)
    error, candidates = math.inf, {1}
    while True:
        tried = []
        for number in candidates - chosen:
            attempt = taken | (turn == number)
            if int(attempt.sum()) <= limit:
                tried.append((search.accuracy(attempt).total, number, attempt))
        if not tried or (best := min(tried, key=lambda t: t[:2]))[0] >= error:
            break
        error, number, taken = best
        chosen.add(number)
        candidates = _telling(search, search.accuracy(taken), turn)
    if error >= search.error(fit) * WORTH_IT:
        return fit
    numbers = evolve(only, launch_count=None, invocations=tuple(sorted(chosen)))
    return search.fit(fit.ask, [numbers], "the launches that tell the most of each kernel")


def _telling(search: Search, accuracy: Accuracy, turn: Int64s) -> set[int]:
    """Numbers of the first, middle and last launches of the strata that may be off the most."""
    numbers: set[int] = set()
    for stratum in np.argsort(-accuracy.weight, kind="stable")[:_STRATA_TRIED].tolist():
        inside = np.sort(turn[search.strata.of_launch == stratum])
        numbers |= {int(inside[0]), int(inside[len(inside) // 2]), int(inside[-1])}
    return numbers - {0}
