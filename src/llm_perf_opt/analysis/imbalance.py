"""Work that is not the same on all ranks: experts with more tokens than others, and stages of a pipeline that wait.

Experts are computed between two all-to-alls: tokens are dispatched to the ranks that hold them, and combined again. A
sequence that is split between ranks has all-to-alls, too: they are those of experts where a kernel or a range says so. A
pipeline sends from rank to rank; what a stage does not compute of a step is bubble, part of which is there because its
stages take unequally long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from llm_perf_opt.analysis.ranks import RankCalls
from llm_perf_opt.analysis.verdicts.communication_costs import UnevenStages
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.collective_kinds import ALL_TO_ALL, EXCHANGE, kind_of
from llm_perf_opt.metrics.quantity import nanoseconds, percent, shown
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.rank_skew import Imbalance, RankLoad, RankSkew, RankSteps
from llm_perf_opt.regions.table import ROOT, RegionTable

EXPERTS, STAGES = "experts", "stages"
_FEWEST = 4  # all-to-alls from which pairs can be told
_UNEVEN = 0.1  # of the time, from which on it is worth a word
_TOLD = 0.01  # the same, from which on a rank is named
_NAMED = re.compile(r"all_?to_?all|a2a", re.IGNORECASE)
_EXPERTS = re.compile(r"moe|expert|dispatch|combine|deep_?ep", re.IGNORECASE)
_Floats = np.typing.NDArray[np.float64]


def kinds_of_calls(ranks: Sequence[RankCalls], table: RegionTable) -> list[list[str]]:
    """Of each rank, what each of its calls is."""
    return [_kinds(calls, table) for calls in ranks]


def send_to_one_another(kinds: Sequence[list[str]]) -> bool:
    """Do all ranks send messages to others, as the stages of a pipeline do?"""
    return len(kinds) > 1 and all(EXCHANGE in own for own in kinds)


def imbalances(
    ranks: Sequence[RankCalls], kinds: Sequence[list[str]], steps: RankSteps | None, table: RegionTable
) -> list[Imbalance]:
    """Of the experts and of the stages, where there are any."""
    if len(ranks) < 2:
        return []
    return [one for one in (_experts(ranks, kinds, table), _stages(ranks, kinds, steps)) if one is not None]


def _kinds(calls: RankCalls, table: RegionTable) -> list[str]:
    """What each call is. An all-to-all of NCCL is made of messages between two ranks: its range says what they are for."""
    kinds = {name: kind_of(name) for name in set(calls.what)}
    found = [kinds[name] for name in calls.what]
    for regions in calls.regions:
        for at in np.flatnonzero(regions != ROOT).tolist():
            if found[at] == EXCHANGE and _NAMED.search(table.key(int(regions[at]))):
                found[at] = ALL_TO_ALL
    return found


def _experts(ranks: Sequence[RankCalls], kinds: Sequence[list[str]], table: RegionTable) -> Imbalance | None:
    """Between dispatch and combine. Clocks need not agree: each rank's time is its own."""
    of_rank = [np.flatnonzero(np.array(own) == ALL_TO_ALL) for own in kinds]
    count = len(of_rank[0])
    if count < _FEWEST or any(len(which) != count for which in of_rank) or not _of_experts(ranks[0], of_rank[0], table):
        return None
    between = np.stack(
        [calls.start[which[1:]] - calls.end[which[:-1]] for calls, which in zip(ranks, of_rank, strict=True)]
    ).astype(np.float64)
    between = np.maximum(between, 0)
    first = 0 if _spread(between[:, 0::2]) >= _spread(between[:, 1::2]) else 1  # the others are the same work for all
    inside = between[:, first::2]
    common = float(inside.max(axis=0).mean())
    each = inside.mean(axis=1)
    return _imbalance(EXPERTS, inside.shape[1], common, each, [calls.label for calls in ranks])


def _of_experts(calls: RankCalls, which: Int64s, table: RegionTable) -> bool:
    names = {calls.name[at] for at in which.tolist()} | {calls.what[at] for at in which.tolist()}
    around = {int(number) for regions in calls.regions for number in np.unique(regions[which])} - {ROOT}
    return any(_EXPERTS.search(name) for name in (*names, *(table.key(number) for number in around)))


def _spread(times: _Floats) -> float:
    """How unequal the ranks are, of their time."""
    return float((times.max(axis=0) - times.mean(axis=0)).sum() / max(times.max(axis=0).sum(), 1.0))


def _stages(ranks: Sequence[RankCalls], kinds: Sequence[list[str]], steps: RankSteps | None) -> Imbalance | None:
    """Ranks that send to one another, and of which no step is the same work."""
    if steps is None or not send_to_one_another(kinds):
        return None
    known = {calls.rank for calls in ranks}
    rows = [row for row in steps.ranks if row.rank in known and row.computing_ns is not None]
    if len(rows) < 2:
        return None
    each = np.array([float(row.computing_ns or 0) for row in rows])
    common = float(max(steps.common_median_ns, each.max(), 1.0))
    return _imbalance(STAGES, steps.all_steps, common, each, [row.label for row in rows])


def _imbalance(kind: str, sections: int, common: float, each: _Floats, labels: list[str]) -> Imbalance:
    return Imbalance(
        kind=kind,
        sections=sections,
        common_ns=round(common),
        lost_share=float(1 - each.mean() / max(common, 1.0)),
        uneven_share=float((each.max() - each.mean()) / max(common, 1.0)),
        most=labels[int(each.argmax())],
        ranks=[
            RankLoad(label, round(float(own)), float(1 - own / max(common, 1.0)))
            for label, own in zip(labels, each.tolist(), strict=True)
        ],
    )


def uneven_stages(found: Sequence[Imbalance], steps: RankSteps | None) -> UnevenStages | None:
    """The stage that the others wait for; None where there is no pipeline, or its stages take about equally long."""
    one = next((one for one in found if one.kind == STAGES and one.uneven_share >= _UNEVEN), None)
    if one is None or steps is None:
        return None
    times = [load.time_ns for load in one.ranks]
    return UnevenStages(steps.region, one.most, max(times), float(np.mean(times)))


def busier_rank(ranks: RankSkew | None, steps: RankSteps | None) -> UnevenStages | None:
    """The rank that the others wait for, where it computes longer than they do. Stages of a pipeline have no such skew."""
    if ranks is None or steps is None:
        return None
    times = {row.label: float(row.computing_ns) for row in steps.ranks if row.computing_ns is not None}
    late = next((row for row in steps.ranks if row.label == ranks.late and row.why), None)
    others = [time for label, time in times.items() if label != ranks.late]
    if late is None or late.label not in times or not others:
        return None
    most, usual = times[late.label], float(np.median(others))
    return UnevenStages(steps.region, late.label, most, usual, late.why) if most - usual > _UNEVEN * most else None


def uneven(found: Sequence[Imbalance], region: str) -> list[Diagnosis]:
    """What is lost, and to whom."""
    said: list[Diagnosis] = []
    for one in found:
        if one.lost_share < _UNEVEN:
            continue
        common, lost = shown(nanoseconds(one.common_ns)), percent(one.lost_share, ".0")
        if one.kind == EXPERTS:
            said.append(diagnose("EXPERTS_UNEVEN", sections=one.sections, common=common, lost=lost, most=one.most))
        else:
            where = visible(region, 120)
            if one.uneven_share < _TOLD:
                said.append(diagnose("PIPELINE_BUBBLES.even", region=where, common=common, lost=lost))
                continue
            extra = percent(one.uneven_share, ".0")
            said.append(
                diagnose("PIPELINE_BUBBLES", region=where, common=common, lost=lost, uneven=extra, most=one.most)
            )
    return said
