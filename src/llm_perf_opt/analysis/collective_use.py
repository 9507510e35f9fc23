"""Collectives by region and kind: how long they take, what of that is waiting, transfer and exposed, and how fast they are.

Bytes are known where the recording has them. One rank alone cannot tell waiting from transfer: its times are of both,
and its bandwidth is the least that it can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.analysis.ranks import RankCalls, Skew
from llm_perf_opt.metrics.collective_kinds import bus_factor
from llm_perf_opt.regions.columns import UNKNOWN, Int64s
from llm_perf_opt.regions.rank_skew import CollectiveUse
from llm_perf_opt.regions.table import ROOT, RegionTable

_MOST = 60  # rows
NCCL = "NCCL"  # domain of its own ranges, which say no more than the kind


def collective_use(
    ranks: Sequence[RankCalls], kinds: Sequence[Sequence[str]], skew: Skew | None, table: RegionTable
) -> list[CollectiveUse]:
    """Of the rank whose messages are known, or the first: its collectives are those of all; the most time first.

    `kinds`: of the calls of each.
    """
    if not ranks:
        return []
    chosen = max(range(len(ranks)), key=lambda rank: int((ranks[rank].bytes != UNKNOWN).sum()))
    calls = ranks[chosen]
    took = calls.end - calls.start
    waiting, least = np.full(len(took), UNKNOWN), took.copy()
    number = next((n for n, of in enumerate(skew.ranks) if of is calls), None) if skew is not None else None
    if skew is not None and number is not None:
        matched = skew.matched[number]
        waiting[matched] = skew.waiting[number]
        least[matched] = skew.transfer[skew.instance[number]]
    region = _regions(calls, table)
    told = calls.bytes != UNKNOWN
    groups: dict[tuple[int, str, int, bool], list[int]] = {}
    for at, kind in enumerate(kinds[chosen]):
        groups.setdefault((int(region[at]), kind, int(calls.group[at]), bool(told[at])), []).append(at)
    found = []
    for (where, kind, size, known), members in groups.items():
        which = np.array(members)
        aligned = bool((waiting[which] != UNKNOWN).all())
        time, sent = int(least[which].sum()), calls.bytes[which]
        rate = float(sent.sum()) / time * 1e9 if time and known else None
        found.append(
            CollectiveUse(
                region=table.key(where) if where != ROOT else "",
                kind=kind,
                ranks=size if size != UNKNOWN else None,
                calls=len(which),
                bytes=int(sent.sum()) if known else None,
                median_bytes=int(np.median(sent)) if known else None,
                time_ns=int(took[which].sum()),
                exposed_ns=int(calls.exposed[which].sum()),
                waiting_ns=int(waiting[which].sum()) if aligned else None,
                transfer_ns=time if aligned else None,
                bandwidth=rate,
                bus_bandwidth=rate * bus_factor(kind, size) if rate is not None and size > 1 else None,
            )
        )
    return sorted(found, key=lambda use: -use.time_ns)[:_MOST]


def _regions(calls: RankCalls, table: RegionTable) -> Int64s:
    """The innermost region around each call, of the first domain that has one; NCCL's own say only the kind."""
    found = np.full(len(calls.start), ROOT, dtype=np.int64)
    for regions in calls.regions:
        for at in np.flatnonzero((found == ROOT) & (regions != ROOT)).tolist():
            number = int(regions[at])
            found[at] = number if table.domain[number] != NCCL else ROOT
    return found
