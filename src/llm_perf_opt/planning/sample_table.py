"""What the chosen samples will tell of the timeline, signature by signature: the table of a plan."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.planning.accuracy import allocate, variation
from llm_perf_opt.planning.candidates import Fit, Search
from llm_perf_opt.planning.cluster_cover import stood_in_for
from llm_perf_opt.planning.launch_filter import assumptions
from llm_perf_opt.planning.launch_table import LaunchTable
from llm_perf_opt.planning.plan import PlannedSignature, SampleTable
from llm_perf_opt.planning.samples import least_budget
from llm_perf_opt.regions.columns import Bools

_NAMED_TURNS = 4


def sample_table(search: Search, fit: Fit | None, final: Fit | None = None) -> SampleTable:
    """`fit`: None where nothing fits into the budget. `final`: the same captures with windows, as far as they have any."""
    launches = search.launches
    final = final or fit
    taken = final.taken if final else np.zeros(len(launches), dtype=np.bool_)
    in_windows = final is not None and any(capture.windows is not None for capture in final.captures)
    nobody = np.zeros(len(launches.signatures), dtype=np.bool_)
    stands_in = stood_in_for(launches, taken) if in_windows else nobody
    return SampleTable(
        level=final.ask.level if final else None,
        asked_level=search.asked_level,
        signatures=_signatures(search, fit, taken, stands_in),
        launches=len(launches),
        time_ns=launches.time_ns,
        program_s=search.program_s,
        budget_s=search.asked.budget_s,
        costs=search.costs,
        coverage=search.coverage(search.sampled(taken) | stands_in),
        error=search.error(taken) if final and final.captures else None,
        data_types=search.countable_types,
        least_budget_s=least_budget(search) if fit is None and len(launches) else None,
        assumptions=assumptions(launches) if fit else [],
    )


def _signatures(search: Search, fit: Fit | None, taken: Bools, stands_in: Bools) -> list[PlannedSignature]:
    launches = search.launches
    counts, times, sampled = launches.counts(), launches.times(), launches.counts(taken)
    before = search.sampled(fit.taken) if fit else stands_in
    varies = variation(launches)
    wanted = allocate(counts, times * varies, int(sampled.sum()))
    turns = _sampled_turns(launches, taken)
    whole = max(launches.time_ns, 1)

    def reason(number: int) -> str:
        """Why a signature is not sampled."""
        if sampled[number]:
            return ""
        if fit is None:
            return "nothing fits into the budget"
        if before[number] and stands_in[number]:
            return "another stands in for it: the same kernel on a grid of nearly the same size"
        if before[number]:
            return "no window holds any of its launches"
        if launches.signatures[number].name in search.beyond_top:
            return f"not among the {search.asked.top_n_kernels} kernels with the most time"
        return "the budget ends before it"

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
            reason=reason(s),
        )
        for s in np.argsort(-times, kind="stable").tolist()
    ]


def _sampled_turns(launches: LaunchTable, taken: Bools) -> dict[int, tuple[str, ...]]:
    """Of each signature, from which instances of which repeated range its samples come."""
    found: dict[int, dict[str, None]] = {}
    outermost = np.full(len(launches), -1, dtype=np.int64)
    for index, turns in reversed(list(enumerate(launches.turns))):
        outermost[turns.number > 0] = index
    for launch in np.flatnonzero(taken & (outermost >= 0)).tolist():
        turns = launches.turns[int(outermost[launch])]
        text = f"{turns.region} {int(turns.number[launch])} of {turns.count}"
        found.setdefault(int(launches.signature[launch]), {})[text] = None
    more = {s: ("…",) if len(texts) > _NAMED_TURNS else () for s, texts in found.items()}
    return {s: (*list(texts)[:_NAMED_TURNS], *more[s]) for s, texts in found.items()}
