"""What is weighed when samples are chosen: sets of captures, each with the launches it takes and its price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.metrics.data_types import TypesInUse, types_in_use
from llm_perf_opt.metrics.groups import MetricGroups, PassCount, lower_levels
from llm_perf_opt.planning.accuracy import Accuracy, Strata, expected
from llm_perf_opt.planning.costs import Costs, take_time_only
from llm_perf_opt.planning.launch_filter import LONGEST_EXPRESSION, LaunchFilter, select_names
from llm_perf_opt.planning.launch_table import LaunchTable, RegionChoice
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.request import CounterRequest

TARGET_ERROR = 0.02  # above it, further captures are made where the budget allows


@define(frozen=True)
class Ask:
    """Metrics of a level, or those chosen by hand."""

    level: str | None
    metrics: tuple[str, ...]
    passes: PassCount


@define(frozen=True, eq=False)
class Candidate:
    """A capture: its filter, what it takes, and what for."""

    filter: LaunchFilter
    taken: Bools
    seconds: float
    why: str
    windows: CaptureWindows | None = None
    no_windows: str = ""  # why it has none
    windows_suffice: bool = False  # nothing but launches of the chosen regions is in them


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
    """The facts that samples are chosen from, and how candidates compare."""

    launches: LaunchTable
    groups: MetricGroups
    asked: CounterRequest
    costs: Costs
    program_s: float = 0.0  # how long the program runs; under nsys is near enough
    # For all captures together; the timeline has been paid for already. None: one capture, however long.
    budget_s: float | None = None
    target_error: float = TARGET_ERROR
    names: list[str] = field(init=False)  # kernels worth sampling, most time for their price first
    beyond_top: frozenset[str] = field(default=frozenset(), init=False)

    def __attrs_post_init__(self) -> None:
        # Kernel names by GPU time for the launches they cost (one of each signature); only the top N by time.
        price = Counter(signature.name for signature in self.launches.signatures)
        time: Counter[str] = Counter()
        for signature, spent in zip(self.launches.signatures, self.launches.times().tolist(), strict=True):
            time[signature.name] += spent
        by_time = sorted(time, key=lambda n: (-time[n], n))
        if self.asked.top_n_kernels is not None:
            self.beyond_top = frozenset(by_time[self.asked.top_n_kernels :])
            by_time = by_time[: self.asked.top_n_kernels]
        self.names = sorted(by_time, key=lambda n: (-time[n] / price[n], n))

    @cached_property
    def strata(self) -> Strata:
        return Strata.of(self.launches)

    @cached_property
    def types(self) -> TypesInUse:
        times = self.launches.times().tolist()
        return types_in_use((s.shown or s.name, t) for s, t in zip(self.launches.signatures, times, strict=True))

    @cached_property
    def all_names(self) -> frozenset[str]:
        return frozenset(signature.name for signature in self.launches.signatures)

    # -- metrics --------------------------------------------------------------------------------

    @property
    def asked_level(self) -> str | None:
        return None if self.asked.options.metrics else self.asked.level

    def asks(self) -> list[Ask]:
        """The metrics wanted, then what to fall back to."""
        if metrics := self.asked.options.metrics:
            return [Ask(None, metrics, self.groups.passes_of(metrics))]
        types = self.countable_types
        return [
            Ask(level, tuple(m.name for m in self.groups.of_level(level, types)), self.groups.passes(level, types))
            for level in (self.asked.level, *lower_levels(self.asked.level))
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
        return self.fit(ask, [evolve(self.named(frozenset(names), self.launches.regions), launch_count=count)])

    def named(self, names: frozenset[str], regions: Sequence[RegionChoice]) -> LaunchFilter:
        """A filter for some kernels: no condition on names where they are all there are."""
        every = names == self.all_names
        return LaunchFilter(
            tuple(regions),
            names=None if every else names,
            name_expression=None if every else select_names(names, self.all_names),
            process_scope=self.launches.process_scope,
        )

    # -- comparing ------------------------------------------------------------------------------

    def seconds(self, ask: Ask, launches: int) -> float:
        time_only = take_time_only(ask.metrics)
        return self.costs.capture_s(self.program_s, launches, ask.passes.passes, time_only=time_only)

    def possible(self, fit: Fit, budget_s: float | None = None) -> bool:
        """Within the budget, and short enough for a command line."""
        limit = self.budget_s if budget_s is None else budget_s
        short = all(len(c.filter.name_expression or "") <= LONGEST_EXPRESSION for c in fit.captures)
        return short and (limit is None or fit.seconds <= limit)

    def accuracy(self, taken: Bools) -> Accuracy:
        return expected(self.strata, self.launches, taken)

    def error(self, taken: Bools) -> float:
        """Expected relative error of totals."""
        return self.accuracy(taken).total

    def coverage(self, sampled: Bools) -> float:
        """Share of the GPU time of some signatures."""
        times = self.launches.times()
        total = int(times.sum())
        return int(times[sampled].sum()) / total if total else 0.0

    def sampled(self, taken: Bools) -> Bools:
        """Of each signature: has it a sample?"""
        return self.launches.counts(taken) > 0
