"""What a planner weighs: sets of captures, each with the launches it takes, its price, and what it lets expect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.metrics import MetricGroups, PassCount, TypesInUse, lower_levels, types_in_use
from llm_perf_opt.planning.accuracy import Accuracy, Strata, expected
from llm_perf_opt.planning.costs import TIME_ONLY, Costs
from llm_perf_opt.planning.filters import LONGEST_EXPRESSION, LaunchFilter, select_names
from llm_perf_opt.planning.goal import Request, chosen_instances
from llm_perf_opt.planning.launches import LaunchTable, RegionChoice, Turns
from llm_perf_opt.regions.columns import Bools, Int64s


@define(frozen=True)
class Ask:
    """Metrics of a level, or those chosen by hand."""

    level: str | None
    metrics: tuple[str, ...]
    passes: PassCount

    @property
    def time_only(self) -> bool:
        return {m.partition(".")[0] for m in self.metrics} <= set(TIME_ONLY)


@define(frozen=True, eq=False)
class Candidate:
    """A filter, what it takes, and what for."""

    filter: LaunchFilter
    taken: Bools
    seconds: float
    why: str


@define(frozen=True, eq=False)
class Fit:
    """Captures that could be made together."""

    ask: Ask
    captures: tuple[Candidate, ...]
    taken: Bools  # by any of them

    @property
    def seconds(self) -> float:
        return sum(capture.seconds for capture in self.captures)

    def __add__(self, other: Fit) -> Fit:
        return Fit(self.ask, self.captures + other.captures, self.taken | other.taken)


@define(eq=False)
class Search:
    """The facts a plan is made from, and the judgement of candidates."""

    launches: LaunchTable
    groups: MetricGroups
    request: Request
    costs: Costs
    strata: Strata = field(init=False)
    types: TypesInUse = field(init=False)
    names: list[str] = field(init=False)  # kernels worth sampling, most time for their price first
    all_names: frozenset[str] = field(init=False)
    beyond_top: frozenset[str] = field(default=frozenset(), init=False)

    def __attrs_post_init__(self) -> None:
        launches = self.launches
        self.strata = Strata.of(launches)
        self.all_names = frozenset(s.name for s in launches.signatures)
        times = launches.times().tolist()
        self.types = types_in_use(
            ((s.shown or s.name, t) for s, t in zip(launches.signatures, times, strict=True)), self.request.model_type
        )
        self.names = self._ordered_names(times)

    def _ordered_names(self, times: Sequence[int]) -> list[str]:
        """Kernel names by GPU time for the launches they cost (one of each signature); only the top N by time."""
        time: dict[str, int] = {}
        price: dict[str, int] = {}
        for signature, spent in zip(self.launches.signatures, times, strict=True):
            time[signature.name] = time.get(signature.name, 0) + spent
            price[signature.name] = price.get(signature.name, 0) + 1
        by_time = sorted(time, key=lambda n: (-time[n], n))
        if self.request.top_n is not None:
            self.beyond_top = frozenset(by_time[self.request.top_n :])
            by_time = by_time[: self.request.top_n]
        return sorted(by_time, key=lambda n: (-time[n] / price[n], n))

    # -- metrics --------------------------------------------------------------------------------

    def asks(self) -> list[Ask]:
        """The metrics wanted, then what to fall back to."""
        if self.request.metrics:
            return [Ask(None, self.request.metrics, self.groups.passes_of(self.request.metrics))]
        types = self.countable_types
        return [
            Ask(level, tuple(m.name for m in self.groups.of_level(level, types)), self.groups.passes(level, types))
            for level in (self.request.level, *lower_levels(self.request.level))
        ]

    @property
    def countable_types(self) -> tuple[str, ...]:
        """Types in use that the chip has counters for."""
        return tuple(t for t in self.types.types if t in self.groups.data_types)

    # -- candidates -----------------------------------------------------------------------------

    def fit(self, ask: Ask, filters: Sequence[LaunchFilter], why: str = "") -> Fit:
        """Price some filters; one that takes nothing is not a capture."""
        together = np.zeros(len(self.launches), dtype=np.bool_)
        captures = []
        for candidate in filters:
            taken = candidate.taken(self.launches)
            if taken.any():
                seconds = self.seconds(ask, int(taken.sum()))
                captures.append(Candidate(candidate, taken, seconds, why or candidate.purpose))
                together |= taken
        return Fit(ask, tuple(captures), together)

    def of_names(self, ask: Ask, names: Sequence[str], count: int) -> Fit:
        """The first launches of some kernels, in all chosen regions."""
        kept = frozenset(names)
        chosen = self.named(kept)
        return self.fit(
            ask,
            [
                evolve(f, launch_count=count, names=chosen.names, name_expression=chosen.name_expression)
                for f in self.scaffold()
            ],
        )

    def named(self, names: frozenset[str], regions: Sequence[RegionChoice] = ()) -> LaunchFilter:
        """A filter for some kernels: no condition on names where they are all there are."""
        every = names == self.all_names
        return LaunchFilter(
            tuple(regions),
            names=None if every else names,
            name_expression=None if every else select_names(names, self.all_names),
            process_scope=self.launches.process_scope,
        )

    def scaffold(self) -> list[LaunchFilter]:
        """Filters for the regions alone, one a capture: repeated ranges of which some instances are wanted stand alone."""
        scope = self.launches.process_scope
        if self.request.sample == "all":
            return [LaunchFilter(tuple(self.launches.regions), process_scope=scope)]
        plain: list[RegionChoice] = []
        filters = []
        for index, region in enumerate(self.launches.regions):
            turns = self._turns_in(index)
            if turns is None:
                plain.append(region)
            else:
                wanted = chosen_instances(self.request.sample, turns.count)
                filters.append(LaunchFilter((turns.region,), instances=wanted, process_scope=scope))
        return ([LaunchFilter(tuple(plain), process_scope=scope)] if plain else []) + filters

    def _turns_in(self, index: int) -> Turns | None:
        """The repeated range that holds most of a chosen region's time, if it holds half of it at all."""
        inside = self.launches.region == index
        time = int(self.launches.duration[inside].sum())
        for turns in self.launches.turns:
            if 2 * int(self.launches.duration[inside & (turns.number > 0)].sum()) > time:
                return turns
        return None

    # -- judging --------------------------------------------------------------------------------

    def seconds(self, ask: Ask, launches: int) -> float:
        return self.costs.capture_s(self.request.program_s, launches, ask.passes.passes, time_only=ask.time_only)

    def possible(self, fit: Fit, budget_s: float | None = None) -> bool:
        """Within the budget, and short enough for a command line."""
        limit = self.request.budget_s if budget_s is None else budget_s
        short = all(len(c.filter.name_expression or "") <= LONGEST_EXPRESSION for c in fit.captures)
        return short and (limit is None or fit.seconds <= limit)

    def accuracy(self, taken: Bools) -> Accuracy:
        return expected(self.strata, self.launches, taken)

    def error(self, fit: Fit) -> float:
        return self.accuracy(fit.taken).total

    def coverage(self, taken: Bools) -> float:
        """Share of the GPU time whose signatures have a sample."""
        return share(self.launches.times(), self.launches.counts(taken) > 0)

    def reachable(self) -> float:
        """Share of the time that the chosen kernels and instances could cover at all."""
        everything = [evolve(f, names=frozenset(self.names)) for f in self.scaffold()]
        return self.coverage(self.fit(Ask(None, (), PassCount(1, "estimated")), everything).taken)


def share(times: Int64s, chosen: Bools) -> float:
    total = int(times.sum())
    return int(times[chosen].sum()) / total if total else 0.0
