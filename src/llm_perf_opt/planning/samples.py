"""Which launches are sampled: as much of the GPU time as the budget allows, where it tells most.

The order in which it gives way to a budget: fewer launches of each signature, then (down to nine tenths of the GPU
time) the kernels with the least time for their price, then a lower level of metrics, then more kernels. It never plans
above the budget.

ncu takes the first launches of each signature, which are those of the first region. Where the timeline shows that
others take another time, further captures sample the same kernel in a later region. Where the program can switch ncu
on and off, `choose_windows` then finds places that tell as much in one capture.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from attrs import evolve

from llm_perf_opt.planning.accuracy import Accuracy
from llm_perf_opt.planning.candidates import Ask, Candidate, Fit, Search
from llm_perf_opt.planning.cluster_cover import WantedSamples, cover, needed
from llm_perf_opt.planning.windows import KnownRanges, windows_around
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s

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


# -- where the program switches ncu on and off ------------------------------------------------------
# Windows reach launches wherever they are, so one capture may do for several, and every duration cluster can be sampled.

# Share of the GPU time whose cluster has no sample: so little is nothing, and so much is worth another way.
_MISSED = 0.002
_MISSED_TOO_MUCH = 0.03
_MOST_OF_A_SIGNATURE = 32
# Results of one way over those of another: from where on it is cheaper, and up to where it may be dearer.
_CHEAPER, _DEARER = 0.8, 1.6


def choose_windows(search: Search, fit: Fit, known: KnownRanges | str, *, stop: bool) -> Fit:
    """Windows for the captures of a fit, or one capture that does for all of them; each says why it has none.

    `known`: the ranges that the program can act on, or why there are none.
    """
    if isinstance(known, str):
        return evolve(fit, captures=tuple(evolve(c, no_windows=known) for c in fit.captures))
    return _Windows(search, fit, known, stop).choose()


class _Windows:
    """The ways to get at the launches of a fit from inside the program."""

    def __init__(self, search: Search, fit: Fit, known: KnownRanges, stop: bool) -> None:
        assert search.launches.kernels is not None
        self.search, self.fit, self.known, self.stop = search, fit, known, stop
        self.launches, self.kernels = search.launches, search.launches.kernels
        self.wanted = WantedSamples.of(search.launches)

    def choose(self) -> Fit:
        captures = self.fit.captures
        alone = self._in_one()
        if alone is not None:
            found = [alone]
        elif len(captures) == 1 and captures[0].filter.names is None:
            inside = self._every_cluster(captures[0])
            found = self._with_what_is_outside(captures[0], inside) or [
                self._better(self._first_launches(captures[0]), inside)
            ]
        else:
            found = [self._first_launches(capture) for capture in captures]
        taken = np.zeros(len(self.launches), dtype=np.bool_)
        for capture in found:
            taken |= capture.taken
        return Fit(self.fit.ask, tuple(found), taken)

    def _in_one(self) -> Candidate | None:
        """The first capture, where windows let that tell as much as all of them."""
        first, *others = self.fit.captures
        if not others or first.filter.names is not None:
            return None
        way = self._every_cluster(first)
        if way.windows is None or not self._affordable(way):
            return None
        as_much = self.wanted.missed(way.taken) <= self.wanted.missed(self.fit.taken) + _MISSED
        good = self.search.error(way.taken) <= max(GOOD_ENOUGH, self.search.error(self.fit.taken))
        return way if as_much and good else None

    def _with_what_is_outside(self, capture: Candidate, inside: Candidate) -> list[Candidate]:
        """Windows, and without them a capture of the kernels that run in no range; none where that tells no more.

        A program without ranges of its own has those that we put around its modules, and other launches between them.
        """
        sampled = self.search.sampled(inside.taken)
        lacking = frozenset(s.name for s, has in zip(self.launches.signatures, sampled, strict=True) if not has)
        lacking &= frozenset(self.search.names)
        if inside.windows is None or not lacking or (self.known.tops[self.kernels] != UNKNOWN).all():
            return []
        others = evolve(self.search.named(lacking, capture.filter.regions), launch_count=capture.filter.launch_count)
        rest = self.search.fit(self.fit.ask, [others], "kernels that run outside of the ranges around modules")
        taken = inside.taken | rest.taken
        affordable = self.search.budget_s is None or inside.seconds + rest.seconds <= self.search.budget_s
        better = self.search.error(taken) < _WORTH_IT * self.search.error(capture.taken)
        return [inside, *rest.captures] if affordable and better else []

    def _first_launches(self, capture: Candidate) -> Candidate:
        """Windows around the launches that the filter alone would take, as far as they are needed."""
        steady = self._steady(self.launches.signature, len(self.launches.signatures))
        taken = capture.taken if steady is None else capture.filter.taken(self.launches, steady)
        wanted = needed(self.launches, taken)
        around = windows_around(self.known, self.kernels[wanted], stop=self.stop)
        if isinstance(around, str):
            return evolve(capture, no_windows=around)
        windows, held = around
        taken = capture.filter.taken(self.launches, held[self.kernels])
        way = evolve(capture, windows=windows, taken=taken, windows_suffice=self._suffice(held))
        return self._priced(way, capture)

    def _steady(self, group: Int64s, groups: int) -> Bools | None:
        """Launches to sample, by their group: none of a warm-up instance, where there are others; None: any."""
        warmup = self.launches.warmup
        if warmup is None:
            return None
        others = ~warmup & (self.known.tops[self.kernels] != UNKNOWN)
        known = np.bincount(group[others], minlength=groups) > 0
        return ~(warmup & known[group])

    def _every_cluster(self, capture: Candidate) -> Candidate:
        """Windows around launches of every cluster, wherever they are, and as many of a signature as that takes."""
        tops = self.known.tops[self.kernels]
        steady = self._steady(self.wanted.clusters.of_launch, len(self.wanted.clusters))
        chosen = cover(self.wanted, tops if steady is None else np.where(steady, tops, UNKNOWN), early=self.stop)
        around = windows_around(self.known, self.kernels[chosen], stop=self.stop, exact=True)
        if isinstance(around, str):
            return evolve(capture, no_windows=around)
        windows, held = around
        seen = held[self.kernels]
        some = capture.filter
        taken = some.taken(self.launches, seen)
        if some.launch_count is not None:
            everything = evolve(some, launch_count=None).taken(self.launches, seen)
            least, short = self.wanted.missed(everything) + _MISSED, self.wanted.short(everything)
            for count in range(some.launch_count + 1, _MOST_OF_A_SIGNATURE + 1):
                if self.wanted.missed(taken) <= least and self.wanted.short(taken) <= short:
                    break
                some = evolve(some, launch_count=count)
                taken = some.taken(self.launches, seen)
        way = evolve(capture, filter=some, windows=windows, taken=taken, windows_suffice=self._suffice(held))
        return self._priced(way, capture)

    def _suffice(self, held: Bools) -> bool:
        """Do windows around these kernels of the timeline hold launches of the chosen regions alone?"""
        return int(held.sum()) == int(held[self.kernels].sum())

    def _better(self, one: Candidate, other: Candidate) -> Candidate:
        """The way that leaves out less, or costs less for as much."""
        if one.windows is None or other.windows is None or not self._affordable(other):
            return one
        missed, less = self.wanted.missed(one.taken), self.wanted.missed(other.taken)
        price = int(other.taken.sum()) / max(int(one.taken.sum()), 1)
        if missed > _MISSED_TOO_MUCH and less < missed / 2:
            return other if price <= _DEARER else one
        return other if price < _CHEAPER and less <= missed + _MISSED else one

    def _affordable(self, way: Candidate) -> bool:
        budget = self.search.asked.budget_s
        return budget is None or way.seconds <= budget

    def _priced(self, way: Candidate, before: Candidate) -> Candidate:
        saved = int(before.taken.sum()) - int(way.taken.sum())
        seconds = before.seconds - saved * self.search.costs.launch_s(self.fit.ask.passes.passes)
        return evolve(way, seconds=max(seconds, 0.0))
