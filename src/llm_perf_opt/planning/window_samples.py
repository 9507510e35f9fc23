"""Which launches are sampled where the program switches ncu on and off: the chosen ones, or others that tell as much.

Windows reach launches wherever they are, so one capture may do for several, and every duration cluster can be sampled.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from llm_perf_opt.planning.candidates import Candidate, Fit, Search
from llm_perf_opt.planning.cluster_cover import WantedSamples, cover, needed
from llm_perf_opt.planning.samples import GOOD_ENOUGH
from llm_perf_opt.planning.windows import KnownRanges, windows_around

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
            found = [self._better(self._first_launches(captures[0]), self._every_cluster(captures[0]))]
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

    def _first_launches(self, capture: Candidate) -> Candidate:
        """Windows around the launches that the filter alone would take, as far as they are needed."""
        wanted = needed(self.launches, capture.taken)
        around = windows_around(self.known, self.kernels[wanted], stop=self.stop)
        if isinstance(around, str):
            return evolve(capture, no_windows=around)
        windows, held = around
        way = evolve(capture, windows=windows, taken=capture.filter.taken(self.launches, held[self.kernels]))
        return self._priced(way, capture)

    def _every_cluster(self, capture: Candidate) -> Candidate:
        """Windows around launches of every cluster, wherever they are, and as many of a signature as that takes."""
        chosen = cover(self.wanted, self.known.tops[self.kernels], early=self.stop)
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
        return self._priced(evolve(capture, filter=some, windows=windows, taken=taken), capture)

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
