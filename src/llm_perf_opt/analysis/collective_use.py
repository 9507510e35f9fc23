"""Collectives by region and kind: how much is sent, how long that takes once all ranks are there, and how fast that is.

Bytes are known where the recording has them. One rank alone cannot tell waiting from transfer: its times are of both,
and its bandwidth is the least that it can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.analysis.ranks import RankCalls, Skew
from llm_perf_opt.metrics.collective_kinds import bus_factor, kind_of
from llm_perf_opt.regions.columns import UNKNOWN, Int64s
from llm_perf_opt.regions.rank_skew import CollectiveUse
from llm_perf_opt.regions.table import ROOT, RegionTable

_MOST = 60  # rows
NCCL = "NCCL"  # domain of its own ranges, which say no more than the kind


def collective_use(ranks: Sequence[RankCalls], skew: Skew | None, table: RegionTable) -> list[CollectiveUse]:
    """Of the first rank, whose collectives are those of all; the most time first."""
    calls = next((rank for rank in ranks if (rank.bytes != UNKNOWN).any()), None)
    if calls is None:
        return []
    took = calls.end - calls.start
    waiting, least = np.full(len(took), UNKNOWN), took.copy()
    number = next((n for n, of in enumerate(skew.ranks) if of is calls), None) if skew is not None else None
    if skew is not None and number is not None:
        matched = skew.matched[number]
        waiting[matched] = skew.waiting[number]
        least[matched] = np.min(
            [of.end[own] - of.start[own] for of, own in zip(skew.ranks, skew.matched, strict=True)], axis=0
        )
    region = _regions(calls, table)
    kinds = [kind_of(name) for name in calls.what]
    groups: dict[tuple[int, str, int], list[int]] = {}
    for at in np.flatnonzero(calls.bytes != UNKNOWN).tolist():
        groups.setdefault((int(region[at]), kinds[at], int(calls.group[at])), []).append(at)
    found = [
        _use(
            table.key(where) if where != ROOT else "",
            kind,
            size,
            calls.bytes[which],
            took[which],
            waiting[which],
            least[which],
        )
        for (where, kind, size), which in ((key, np.array(members)) for key, members in groups.items())
    ]
    return sorted(found, key=lambda use: -use.time_ns)[:_MOST]


def _use(
    region: str, kind: str, size: int, sent: Int64s, took: Int64s, waiting: Int64s, least: Int64s
) -> CollectiveUse:
    known = bool((waiting != UNKNOWN).all())
    time = int(least.sum())
    rate = float(sent.sum()) / time * 1e9 if time else None
    return CollectiveUse(
        region=region,
        kind=kind,
        ranks=size if size != UNKNOWN else None,
        calls=len(sent),
        bytes=int(sent.sum()),
        median_bytes=int(np.median(sent)),
        time_ns=int(took.sum()),
        waiting_ns=int(waiting.sum()) if known else None,
        transfer_ns=time if known else None,
        bandwidth=rate,
        bus_bandwidth=rate * bus_factor(kind, size) if rate is not None and size > 1 else None,
    )


def _regions(calls: RankCalls, table: RegionTable) -> Int64s:
    """The innermost region around each call, of the first domain that has one; NCCL's own say only the kind."""
    found = np.full(len(calls.start), ROOT, dtype=np.int64)
    for regions in calls.regions:
        for at in np.flatnonzero((found == ROOT) & (regions != ROOT)).tolist():
            number = int(regions[at])
            found[at] = number if table.domain[number] != NCCL else ROOT
    return found
