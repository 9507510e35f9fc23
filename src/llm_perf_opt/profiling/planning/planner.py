"""From a timeline to a plan: as much of the GPU time as the budget allows, sampled where it tells most.

Pure: everything it knows comes in as arguments, and the same arguments give the same plan. The order in which
it gives way to a budget: fewer launches of each signature, then (down to `least_coverage`) the kernels with the
least time for their price, then a lower level of metrics, then more kernels. It never plans above the budget.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.errors import UserError
from llm_perf_opt.profiling.metric_groups import (
    DEFAULT_LEVEL,
    MetricGroups,
    PassCount,
    TypesInUse,
    checked_level,
    lower_levels,
    types_in_use,
)
from llm_perf_opt.profiling.planning.accuracy import Accuracy, Strata, allocate, expected, variation
from llm_perf_opt.profiling.planning.budget import spoken_seconds
from llm_perf_opt.profiling.planning.costs import TIME_ONLY, Costs
from llm_perf_opt.profiling.planning.filters import LONGEST_EXPRESSION, LaunchFilter, numbered, select_names
from llm_perf_opt.profiling.planning.launches import LaunchTable, RegionChoice, Turns
from llm_perf_opt.profiling.planning.model import Capture, Plan, PlannedSignature
from llm_perf_opt.regions.columns import Bools, Int64s
from llm_perf_opt.regions.model import Diagnosis

_EVERY = re.compile(r"every:(\d+)")
_WORTH_IT = 0.8  # a further capture must bring the expected error below this part of what it was
_MORE_CAPTURES = 4
_REPEATED_TRIED = 4  # repeated ranges looked at, those with the most time first
_STRATA_TRIED = 12
_NAMED_TURNS = 4


@define(frozen=True, kw_only=True)
class Request:
    """What the user wants of the counters."""

    level: str = DEFAULT_LEVEL
    metrics: tuple[str, ...] = ()  # chosen by hand, in place of a level
    budget_s: float | None = None  # for all captures together; the timeline has been paid for already
    program_s: float = 0.0  # how long the program runs; under nsys is near enough
    launches: int = 3  # of each signature, at the most
    top_n: int | None = None  # kernels, by time; None: all
    sample: str = "all"  # all | first | middle | last | every:N, over the instances of a repeated range
    model_type: str | None = None  # what the model computes in, where told
    least_coverage: float = 0.9  # of the GPU time: before going below, a lower level is taken
    target_error: float = 0.02  # from which on middle and last instances are sampled too, where the budget allows
    use_untried: bool = False  # filters of ncu whose effect has not been seen yet

    def __attrs_post_init__(self) -> None:
        checked_level(self.level)
        chosen_instances(self.sample, 1)
        for name in ("launches", "top_n"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be 1 or more, not {value}.", "Leave it out for the default.")


def make_plan(launches: LaunchTable, groups: MetricGroups, request: Request, costs: Costs) -> Plan:
    """The plan for the launches of a timeline on a GPU."""
    return _Planner(launches, groups, request, costs).plan()


def chosen_instances(sample: str, count: int) -> tuple[int, ...]:
    """Numbers of the instances that a `sample` setting means, of `count`; empty for all of them."""
    if sample == "all":
        return ()
    simple = {"first": 1, "middle": (count + 1) // 2, "last": count}
    if sample in simple:
        return (simple[sample],)
    every = _EVERY.fullmatch(sample)
    if every is None or int(every[1]) < 1:
        raise UserError(
            f"sample={sample} is not known.", "Choose all, first, middle, last, or every:N as in every:4 (1, 5, 9 …)."
        )
    return tuple(range(1, count + 1, int(every[1])))


@define(frozen=True)
class _Ask:
    """Metrics of a level, or those chosen by hand."""

    level: str | None
    metrics: tuple[str, ...]
    passes: PassCount

    @property
    def time_only(self) -> bool:
        return {m.partition(".")[0] for m in self.metrics} <= set(TIME_ONLY)


@define(eq=False)
class _Fit:
    """Captures that could be made: their filters, and what each takes."""

    ask: _Ask
    filters: list[LaunchFilter]
    taken: list[Bools]
    seconds: float
    why: list[str]

    def union(self, size: int) -> Bools:
        together = np.zeros(size, dtype=np.bool_)
        for mask in self.taken:
            together |= mask
        return together


@define(eq=False)
class _Planner:
    launches: LaunchTable
    groups: MetricGroups
    request: Request
    costs: Costs
    diagnostics: list[Diagnosis] = field(factory=list)
    _strata: Strata = field(init=False)
    _types: TypesInUse = field(init=False)
    _names: list[str] = field(init=False)  # kernels worth sampling, most time for their price first
    _all_names: frozenset[str] = field(init=False)
    _beyond_top: frozenset[str] = field(default=frozenset(), init=False)

    def __attrs_post_init__(self) -> None:
        launches = self.launches
        self._strata = Strata.of(launches)
        self._all_names = frozenset(s.name for s in launches.signatures)
        times = launches.times().tolist()
        self._types = types_in_use(
            ((s.shown or s.name, t) for s, t in zip(launches.signatures, times, strict=True)), self.request.model_type
        )
        self._names = self._ordered_names(times)

    def plan(self) -> Plan:
        if len(self.launches) == 0:
            self.diagnostics.append(
                Diagnosis(
                    "NOTHING_TO_PROFILE",
                    "warning",
                    "No launch lies in a region that ncu can select: there is nothing to count.",
                    "See what exists with: llm-perf ranges TIMELINE",
                )
            )
            return self._finished(None, None)
        asked = self._asks()
        self._note_launch_configs()
        fit = self._choose(asked)
        if fit is None:
            return self._finished(None, self._least_budget(asked[-1]))
        if not fit.filters:
            self.diagnostics.append(
                Diagnosis(
                    "NOTHING_TO_PROFILE",
                    "warning",
                    f"No launch lies in the chosen instances (sample={self.request.sample}): there is nothing to count.",
                    "Choose others, or sample=all.",
                )
            )
            return self._finished(fit, None)
        self._note_types(fit.ask)
        fit = self._refined(fit)
        return self._finished(fit, None)

    # -- metrics --------------------------------------------------------------------------------

    def _asks(self) -> list[_Ask]:
        """The metrics wanted, then what to fall back to."""
        if self.request.metrics:
            return [_Ask(None, self.request.metrics, self.groups.passes_of(self.request.metrics))]
        return [self._ask(level) for level in (self.request.level, *lower_levels(self.request.level))]

    def _ask(self, level: str) -> _Ask:
        types = self._countable()
        metrics = tuple(m.name for m in self.groups.of_level(level, types))
        return _Ask(level, metrics, self.groups.passes(level, types))

    def _countable(self) -> tuple[str, ...]:
        return tuple(t for t in self._types.types if t in self.groups.data_types)

    # -- which kernels, how many launches -------------------------------------------------------

    def _ordered_names(self, times: Sequence[int]) -> list[str]:
        """Kernel names by GPU time for the launches they cost (one of each signature); only the top N by time."""
        time: dict[str, int] = {}
        price: dict[str, int] = {}
        for signature, spent in zip(self.launches.signatures, times, strict=True):
            time[signature.name] = time.get(signature.name, 0) + spent
            price[signature.name] = price.get(signature.name, 0) + 1
        by_time = sorted(time, key=lambda n: (-time[n], n))
        if self.request.top_n is not None:
            self._beyond_top = frozenset(by_time[self.request.top_n :])
            by_time = by_time[: self.request.top_n]
        return sorted(by_time, key=lambda n: (-time[n] / price[n], n))

    def _choose(self, asked: Sequence[_Ask]) -> _Fit | None:
        """The highest level that covers enough; else the lowest, with what fits."""
        fit = None
        for ask in asked:
            fit = self._fit(ask)
            if fit is not None and self._coverage(fit) >= self._reachable() * self.request.least_coverage:
                return fit
        return fit

    def _fit(self, ask: _Ask) -> _Fit | None:
        """As many launches of as many kernels as the budget allows at this level."""
        names = self._names
        for count in range(self.request.launches, 0, -1):
            fit = self._priced(ask, names, count)
            if self._possible(fit):
                return fit
        kept = _most(len(names), lambda k: self._possible(self._priced(ask, names[:k], 1)))
        return self._priced(ask, names[:kept], 1) if kept else None

    def _priced(self, ask: _Ask, names: Sequence[str], count: int) -> _Fit:
        kept = frozenset(names)
        if kept == self._all_names:
            return self._captures(ask, [evolve(f, launch_count=count) for f in self._scaffold()])
        expression = select_names(kept, self._all_names)
        return self._captures(
            ask,
            [evolve(f, launch_count=count, names=kept, name_expression=expression) for f in self._scaffold()],
        )

    def _captures(self, ask: _Ask, filters: Sequence[LaunchFilter], why: str = "") -> _Fit:
        """Price some filters; one that takes nothing is not a capture."""
        fit = _Fit(ask, [], [], 0.0, [])
        for candidate in filters:
            taken = candidate.taken(self.launches)
            if taken.any():
                fit.filters.append(candidate)
                fit.taken.append(taken)
                fit.seconds += self._seconds(ask, int(taken.sum()))
                fit.why.append(why or _purpose(candidate))
        return fit

    def _scaffold(self) -> list[LaunchFilter]:
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

    # -- sampling where the first launches do not tell --------------------------------------------

    def _refined(self, fit: _Fit) -> _Fit:
        """Samples from other regions, the middle and the end too, where they differ and the budget allows it."""
        if self.request.sample != "all":
            return fit
        if self.request.use_untried and self._accuracy(fit).total > self.request.target_error:
            fit = self._by_invocation(fit)
        # Without a budget one run of the program has to do; what more would bring is told.
        return fit if self.request.budget_s is None else self._with_more_captures(fit, self.request.budget_s)

    def _with_more_captures(self, fit: _Fit, budget_s: float) -> _Fit:
        for _ in range(_MORE_CAPTURES):
            accuracy = self._accuracy(fit)
            if accuracy.total <= self.request.target_error:
                break
            tried = [
                self._joined(fit, extra)
                for extra in (*self._regions_apart(fit, accuracy), *self._later_turns(fit, accuracy))
            ]
            worth = [
                t for t in tried if self._possible(t, budget_s) and self._accuracy(t).total < accuracy.total * _WORTH_IT
            ]
            if not worth:
                break
            # The cheapest of those that are about as good as the best, or good enough.
            enough = max(1.1 * min(self._accuracy(t).total for t in worth), self.request.target_error)
            fit = min((t for t in worth if self._accuracy(t).total <= enough), key=lambda t: t.seconds)
        return fit

    def _joined(self, fit: _Fit, extra: _Fit) -> _Fit:
        return _Fit(
            fit.ask,
            [*fit.filters, *extra.filters],
            [*fit.taken, *extra.taken],
            fit.seconds + extra.seconds,
            [*fit.why, *extra.why],
        )

    def _regions_apart(self, fit: _Fit, accuracy: Accuracy) -> list[_Fit]:
        """For each region, a capture of its own for the kernels that were only sampled in an earlier one."""
        found = []
        for index, region in enumerate(self.launches.regions):
            here = (self._strata.region == index) & ~accuracy.own & ~np.isnan(accuracy.offset)
            if names := self._heaviest(accuracy, here):
                apart = evolve(self._narrowed(region, names), launch_count=self.request.launches)
                found.append(self._captures(fit.ask, [apart], f"{region.key}: kernels that its samples lack"))
        return [f for f in found if f.filters]

    def _later_turns(self, fit: _Fit, accuracy: Accuracy) -> list[_Fit]:
        """For each repeated range, its middle and last instance: in one capture, or in one each."""
        return [
            way
            for turns in self.launches.turns[:_REPEATED_TRIED]
            for way in self._ways_to_later(fit, turns, accuracy)
            if way.filters
        ]

    def _ways_to_later(self, fit: _Fit, turns: Turns, accuracy: Accuracy) -> list[_Fit]:
        later = sorted({(turns.count + 1) // 2, turns.count} - {1})
        inside = np.isin(turns.number, later)
        here = np.zeros(len(self._strata), dtype=np.bool_)
        here[self._strata.of_launch[inside]] = True
        names = self._heaviest(accuracy, here & ~np.isnan(accuracy.offset))
        if not names:
            return []
        one = self._narrowed(turns.region, names)
        count = max(1, self.request.launches - 1)
        why = f"{turns.region.key}: what its first instances do not tell"
        ways = [self._captures(fit.ask, [evolve(one, instances=(i,), launch_count=count) for i in later], why)]
        if len(later) > 1:
            # To reach the second instance in the same capture, all launches of the first have to be taken.
            wanted = np.array([s.name in names for s in self.launches.signatures], dtype=np.bool_)
            first = int((self.launches.counts(turns.number == later[0]) * wanted).max())
            together = evolve(one, instances=tuple(later), launch_count=first + count)
            ways.append(self._captures(fit.ask, [together], why))
        return ways

    def _heaviest(self, accuracy: Accuracy, strata: Bools) -> frozenset[str]:
        """Names of the kernels that make nine tenths of what some strata may be off by."""
        which = np.flatnonzero(strata & (accuracy.weight > 0))
        which = which[np.argsort(-accuracy.weight[which], kind="stable")]
        if len(which) == 0:
            return frozenset()
        reached = np.cumsum(accuracy.weight[which])
        kept = which[: int(np.searchsorted(reached, 0.9 * reached[-1])) + 1]
        return frozenset(self.launches.signatures[s].name for s in self._strata.signature[kept].tolist())

    def _narrowed(self, region: RegionChoice, names: frozenset[str]) -> LaunchFilter:
        every = names == self._all_names
        return LaunchFilter(
            (region,),
            names=None if every else names,
            name_expression=None if every else select_names(names, self._all_names),
            process_scope=self.launches.process_scope,
        )

    def _by_invocation(self, fit: _Fit) -> _Fit:
        """As many results at the most, but as one list of invocations for all kernels, chosen to make the error smallest."""
        size = len(self.launches)
        limit = int(fit.union(size).sum())
        turn = numbered(self.launches, evolve(fit.filters[0], launch_count=None).taken(self.launches))
        chosen: set[int] = set()
        taken = np.zeros(size, dtype=np.bool_)
        error = math.inf
        candidates = {1}
        while True:
            tried = []
            for number in candidates - chosen:
                attempt = taken | (turn == number)
                if int(attempt.sum()) <= limit:
                    tried.append((self._expected(attempt).total, number, attempt))
            if not tried or (best := min(tried, key=lambda t: t[:2]))[0] >= error:
                break
            error, number, taken = best
            chosen.add(number)
            candidates = self._telling(self._expected(taken), turn)
        if error >= self._accuracy(fit).total * _WORTH_IT or len(fit.filters) > 1:
            return fit
        by_number = evolve(fit.filters[0], launch_count=None, invocations=tuple(sorted(chosen)))
        return self._captures(fit.ask, [by_number], "the launches that tell the most of each kernel")

    def _telling(self, accuracy: Accuracy, turn: Int64s) -> set[int]:
        """Numbers of the first, middle and last launches of the strata that may be off the most."""
        numbers: set[int] = set()
        for stratum in np.argsort(-accuracy.weight, kind="stable")[:_STRATA_TRIED].tolist():
            inside = np.sort(turn[self._strata.of_launch == stratum])
            if inside[-1] > 0:
                numbers |= {max(int(inside[0]), 1), max(int(inside[len(inside) // 2]), 1), int(inside[-1])}
        return numbers

    # -- judging --------------------------------------------------------------------------------

    def _seconds(self, ask: _Ask, launches: int) -> float:
        return self.costs.capture_s(self.request.program_s, launches, ask.passes.passes, time_only=ask.time_only)

    def _possible(self, fit: _Fit, budget_s: float | None = None) -> bool:
        """Within the budget, and short enough for a command line."""
        limit = self.request.budget_s if budget_s is None else budget_s
        return (limit is None or fit.seconds <= limit) and all(
            len(f.name_expression or "") <= LONGEST_EXPRESSION for f in fit.filters
        )

    def _accuracy(self, fit: _Fit) -> Accuracy:
        return self._expected(fit.union(len(self.launches)))

    def _expected(self, taken: Bools) -> Accuracy:
        return expected(self._strata, self.launches, taken)

    def _coverage(self, fit: _Fit) -> float:
        return _share(self.launches.times(), self.launches.counts(fit.union(len(self.launches))) > 0)

    def _reachable(self) -> float:
        """Share of the time that the chosen kernels and instances could cover at all."""
        everything = self._captures(
            _Ask(None, (), PassCount(1, "estimated")),
            [evolve(f, names=frozenset(self._names)) for f in self._scaffold()],
        )
        return self._coverage(everything)

    def _least_budget(self, ask: _Ask) -> float:
        """What the cheapest capture costs: one launch of every configuration of one kernel."""
        return min(self._priced(ask, [name], 1).seconds or math.inf for name in self._names)

    # -- the result -----------------------------------------------------------------------------

    def _finished(self, fit: _Fit | None, least_budget: float | None) -> Plan:
        size = len(self.launches)
        taken = fit.union(size) if fit else np.zeros(size, dtype=np.bool_)
        accuracy = expected(self._strata, self.launches, taken)
        captures = self._named_captures(fit) if fit else []
        plan = Plan(
            level=fit.ask.level if fit else None,
            asked_level=None if self.request.metrics else self.request.level,
            captures=captures,
            signatures=self._planned(taken, fit),
            launches=size,
            time_ns=self.launches.time_ns,
            program_s=self.request.program_s,
            budget_s=self.request.budget_s,
            costs=self.costs,
            coverage=_share(self.launches.times(), self.launches.counts(taken) > 0),
            error=accuracy.total if fit else None,
            data_types=self._countable(),
            least_budget_s=least_budget,
            assumptions=list(
                dict.fromkeys(str(a) for f in (fit.filters if fit else ()) for a in f.untried(self.launches))
            ),
            diagnostics=self.diagnostics,
        )
        self._note_shortfalls(plan, fit)
        return plan

    def _named_captures(self, fit: _Fit) -> list[Capture]:
        many = len(fit.filters) > 1
        return [
            Capture(
                name=f"run-{i}" if many else "run",
                why=why,
                filter=f,
                metrics=fit.ask.metrics,
                passes=fit.ask.passes,
                launches=int(taken.sum()),
                seconds=self._seconds(fit.ask, int(taken.sum())),
            )
            for i, (f, taken, why) in enumerate(zip(fit.filters, fit.taken, fit.why, strict=True), 1)
        ]

    def _planned(self, taken: Bools, fit: _Fit | None) -> list[PlannedSignature]:
        counts, times = self.launches.counts(), self.launches.times()
        sampled = self.launches.counts(taken)
        varies = variation(self.launches)
        wanted = allocate(counts, times * varies, int(sampled.sum()))
        whole = max(self.launches.time_ns, 1)
        turns = self._sampled_turns(taken)
        order = np.argsort(-times, kind="stable").tolist()
        return [
            PlannedSignature(
                signature=self.launches.signatures[s],
                launches=int(counts[s]),
                time_ns=int(times[s]),
                share=int(times[s]) / whole,
                variation=float(varies[s]),
                planned=int(sampled[s]),
                wanted=int(wanted[s]),
                turns=turns.get(s, ()),
                reason="" if sampled[s] else self._reason(s, fit),
            )
            for s in order
        ]

    def _reason(self, signature: int, fit: _Fit | None) -> str:
        name = self.launches.signatures[signature].name
        if fit is None:
            return "nothing fits into the budget"
        if name in self._beyond_top:
            return f"not among the {self.request.top_n} kernels with the most time"
        if all(f.names is not None and name not in f.names for f in fit.filters):
            return "the budget ends before it"
        return f"it does not run in the chosen instances (sample={self.request.sample})"

    def _sampled_turns(self, taken: Bools) -> dict[int, tuple[str, ...]]:
        """Of each signature, from which instances of which repeated range its samples come."""
        found: dict[int, dict[str, None]] = {}
        which = np.flatnonzero(taken)
        named: Int64s = np.full(len(self.launches), -1, dtype=np.int64)
        for index, turns in reversed(list(enumerate(self.launches.turns))):
            named[turns.number > 0] = index
        for place in which.tolist():
            if named[place] >= 0:
                turns = self.launches.turns[int(named[place])]
                text = f"{turns.region.key} {int(turns.number[place])} of {turns.count}"
                found.setdefault(int(self.launches.signature[place]), {})[text] = None
        return {
            s: (*list(texts)[:_NAMED_TURNS], *(["…"] if len(texts) > _NAMED_TURNS else []))
            for s, texts in found.items()
        }

    # -- what the user must know ----------------------------------------------------------------

    def _note_launch_configs(self) -> None:
        if not self.launches.has_configs:
            self.diagnostics.append(
                Diagnosis(
                    "NO_LAUNCH_CONFIGS",
                    "warning",
                    "The timeline has no launch configurations, so the number of results is only the least to expect.",
                    "Plan from an nsys recording: llm-perf profile makes one.",
                )
            )

    def _note_types(self, ask: _Ask) -> None:
        if ask.level in (None, "time"):
            return
        missing = [t for t in self._types.types if t not in self.groups.data_types]
        if missing:
            self.diagnostics.append(
                Diagnosis(
                    "TYPES_NOT_COUNTABLE",
                    "warning",
                    f"{self.groups.name} has no counter for operations in {', '.join(missing)}: those FLOPs will be missing.",
                    "Byte counts and times are not affected.",
                )
            )
        if self._types.left_out:
            self.diagnostics.append(
                Diagnosis(
                    "TYPES_LEFT_OUT",
                    "info",
                    f"Operations in {', '.join(self._types.left_out)} are not counted: their kernels take less than 1 % of the GPU time.",
                    "Add their metrics with --metrics to count them.",
                )
            )
        self.diagnostics += [Diagnosis("TYPES_ASSUMED", "info", f"Data types: {r}.") for r in self._types.reasons]

    def _note_shortfalls(self, plan: Plan, fit: _Fit | None) -> None:
        budget = spoken_seconds(plan.budget_s) if plan.budget_s is not None else ""
        if plan.least_budget_s is not None:
            everything = self._priced(self._asks()[0], self._names, 1).seconds
            self.diagnostics.append(
                Diagnosis(
                    "BUDGET_TOO_SMALL",
                    "error",
                    f"Nothing fits into {budget}: the cheapest capture takes about {spoken_seconds(plan.least_budget_s)}.",
                    f"Every kernel once takes --budget {math.ceil(everything)}s.",
                )
            )
        if fit is None:
            return
        if plan.level != plan.asked_level:
            self.diagnostics.append(
                Diagnosis(
                    "LEVEL_LOWERED",
                    "warning",
                    f"Level {plan.asked_level} does not fit into {budget}: {plan.level} is taken instead.",
                    f"Give it --budget {math.ceil(self._priced(self._asks()[0], self._names, 1).seconds)}s, or fewer regions.",
                )
            )
        ended = [s for s in plan.unsampled if s.signature.name not in self._beyond_top]
        if ended and plan.budget_s is not None and self.request.sample == "all":
            self.diagnostics.append(
                Diagnosis(
                    "SIGNATURES_LEFT_OUT",
                    "warning",
                    f"{len(ended)} of {len(plan.signatures)} kernel signatures, {sum(s.share for s in ended):.1%} of the GPU time, "
                    f"do not fit into {budget}.",
                    f"All of them take --budget {math.ceil(self._priced(fit.ask, self._names, 1).seconds)}s.",
                )
            )
        if plan.error is not None and plan.error > self.request.target_error:
            self.diagnostics.append(
                Diagnosis(
                    "KERNELS_VARY",
                    "info",
                    f"The planned launches differ from others of their kind: totals may be off by about {plan.error:.0%}, "
                    "judged by how long they take in the timeline.",
                    self._what_would_help(fit, plan.error),
                )
            )

    def _what_would_help(self, fit: _Fit, error: float) -> str:
        if self.request.sample == "all":
            better = self._with_more_captures(fit, math.inf)
            if (left := self._accuracy(better).total) < error:
                return (
                    f"--budget {math.ceil(better.seconds)}s lets other launches be sampled too: about {left:.0%} then."
                )
        return "More launches of each kernel (--launches) make it smaller."


def _purpose(launch_filter: LaunchFilter) -> str:
    where = ", ".join(region.key for region in launch_filter.regions[:4])
    more = f" and {len(launch_filter.regions) - 4} more regions" if len(launch_filter.regions) > 4 else ""
    some = f", instances {', '.join(map(str, launch_filter.instances))}" if launch_filter.instances else ""
    return f"{where}{more}{some}"


def _most(size: int, fits: Callable[[int], bool]) -> int:
    """The largest k up to `size` that fits, where fewer always fit too; 0 where none does."""
    low, high = 0, size
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _share(times: Int64s, chosen: Bools) -> float:
    total = int(times.sum())
    return int(times[chosen].sum()) / total if total else 0.0
