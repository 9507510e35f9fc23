"""From a timeline to a plan: as much of the GPU time as the budget allows, sampled where it tells most.

Pure: everything it knows comes in as arguments, and the same arguments give the same plan. The order in which
it gives way to a budget: fewer launches of each signature, then (down to `least_coverage`) the kernels with the
least time for their price, then a lower level of metrics, then more kernels. It never plans above the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from llm_perf_opt.metrics import MetricGroups
from llm_perf_opt.planning.accuracy import allocate, variation
from llm_perf_opt.planning.costs import Costs
from llm_perf_opt.planning.goal import Request
from llm_perf_opt.planning.launches import LaunchTable
from llm_perf_opt.planning.model import Capture, Plan, PlannedSignature
from llm_perf_opt.planning.notes import notes
from llm_perf_opt.planning.refine import WORTH_IT, refined
from llm_perf_opt.planning.search import Ask, Fit, Search
from llm_perf_opt.regions.columns import Bools

_NAMED_TURNS = 4


def make_plan(launches: LaunchTable, groups: MetricGroups, request: Request, costs: Costs) -> Plan:
    """The plan for the launches of a timeline on a GPU."""
    search = Search(launches, groups, request, costs)
    fit = _choose(search) if len(launches) else None
    plan = _plan(search, fit)
    if fit is None and len(launches):
        cheapest = search.asks()[-1]
        plan.least_budget_s = min(search.of_names(cheapest, [n], 1).seconds or math.inf for n in search.names)
    plan.diagnostics = notes(search, plan, fit)
    return plan


def _choose(search: Search) -> Fit | None:
    """The highest level that covers enough; else the lowest, with what fits; None where nothing does."""
    enough = search.reachable() * search.request.least_coverage
    fit = None
    for ask in search.asks():
        fit = _most_of(search, ask)
        if fit is not None and search.coverage(fit.taken) >= enough:
            return fit
    return fit


def _most_of(search: Search, ask: Ask) -> Fit | None:
    """As many launches of as many kernels as the budget allows at this level."""
    best: Fit | None = None
    for count in _counts(search):
        fit = search.of_names(ask, search.names, count)
        if not search.possible(fit):
            continue
        fit = refined(search, fit)
        # Three launches of the first layer may tell less than one there and one at the end.
        if best is None or _off_by(search, fit) < _off_by(search, best) * WORTH_IT:
            best = fit
        if search.request.budget_s is None:
            break
    if best is not None:
        return best
    kept = _largest(len(search.names), lambda k: search.possible(search.of_names(ask, search.names[:k], 1)))
    return search.of_names(ask, search.names[:kept], 1) if kept else None


def _counts(search: Search) -> Iterator[int]:
    """Launches of each kernel to try, most first: no more than there are, and of many not every number."""
    everything = np.ones(len(search.launches), dtype=np.bool_)
    count = min(search.request.launches, int(search.launches.counts(everything).max()))
    while count > 0:
        yield count
        count -= max(1, count // 8)


def _off_by(search: Search, fit: Fit) -> float:
    return max(search.error(fit), search.request.target_error)


def _largest(size: int, fits: Callable[[int], bool]) -> int:
    """The largest k up to `size` that fits, where fewer always fit too; 0 where none does."""
    low, high = 0, size
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


# -- the result ------------------------------------------------------------------------------------


def _plan(search: Search, fit: Fit | None) -> Plan:
    launches, request = search.launches, search.request
    taken = fit.taken if fit else np.zeros(len(launches), dtype=np.bool_)
    filters = [c.filter for c in fit.captures] if fit else []
    return Plan(
        level=fit.ask.level if fit else None,
        asked_level=None if request.metrics else request.level,
        captures=_captures(fit) if fit else [],
        signatures=_signatures(search, taken, fit),
        launches=len(launches),
        time_ns=launches.time_ns,
        program_s=request.program_s,
        budget_s=request.budget_s,
        costs=search.costs,
        coverage=search.coverage(taken),
        error=search.error(fit) if fit and fit.captures else None,
        data_types=search.countable_types,
        assumptions=list(dict.fromkeys(str(a) for f in filters for a in f.assumptions(launches))),
    )


def _captures(fit: Fit) -> list[Capture]:
    many = len(fit.captures) > 1
    return [
        Capture(
            name=f"run-{number}" if many else "run",
            why=candidate.why,
            filter=candidate.filter,
            metrics=fit.ask.metrics,
            passes=fit.ask.passes,
            launches=int(candidate.taken.sum()),
            seconds=candidate.seconds,
        )
        for number, candidate in enumerate(fit.captures, 1)
    ]


def _signatures(search: Search, taken: Bools, fit: Fit | None) -> list[PlannedSignature]:
    launches = search.launches
    counts, times, sampled = launches.counts(), launches.times(), launches.counts(taken)
    varies = variation(launches)
    wanted = allocate(counts, times * varies, int(sampled.sum()))
    turns = _sampled_turns(launches, taken)
    whole = max(launches.time_ns, 1)
    return [
        PlannedSignature(
            signature=launches.signatures[s],
            launches=int(counts[s]),
            time_ns=int(times[s]),
            share=int(times[s]) / whole,
            variation=float(varies[s]),
            planned=int(sampled[s]),
            wanted=int(wanted[s]),
            turns=turns.get(s, ()),
            reason="" if sampled[s] else _reason(search, launches.signatures[s].name, fit),
        )
        for s in np.argsort(-times, kind="stable").tolist()
    ]


def _reason(search: Search, name: str, fit: Fit | None) -> str:
    """Why a kernel is not sampled."""
    if fit is None:
        return "nothing fits into the budget"
    if name in search.beyond_top:
        return f"not among the {search.request.top_n} kernels with the most time"
    if fit.captures and all(c.filter.names is not None and name not in c.filter.names for c in fit.captures):
        return "the budget ends before it"
    return f"it does not run in the chosen instances (sample={search.request.sample})"


def _sampled_turns(launches: LaunchTable, taken: Bools) -> dict[int, tuple[str, ...]]:
    """Of each signature, from which instances of which repeated range its samples come."""
    found: dict[int, dict[str, None]] = {}
    outermost = np.full(len(launches), -1, dtype=np.int64)
    for index, turns in reversed(list(enumerate(launches.turns))):
        outermost[turns.number > 0] = index
    for launch in np.flatnonzero(taken & (outermost >= 0)).tolist():
        turns = launches.turns[int(outermost[launch])]
        text = f"{turns.region.key} {int(turns.number[launch])} of {turns.count}"
        found.setdefault(int(launches.signature[launch]), {})[text] = None
    return {s: _few(list(texts)) for s, texts in found.items()}


def _few(texts: Sequence[str]) -> tuple[str, ...]:
    return (*texts[:_NAMED_TURNS], *(["…"] if len(texts) > _NAMED_TURNS else []))
