"""Collectives of one rank alone that take far longer than others with messages of their size: it may wait for another rank.

A message that is twice as large may take twice as long; where nobody recorded sizes, only few of many may be odd.
"""

from __future__ import annotations

import numpy as np

from llm_perf_opt.analysis.ranks import RankCalls
from llm_perf_opt.analysis.verdicts.communication_costs import OddCollective, odd_collectives
from llm_perf_opt.regions.columns import UNKNOWN, Int64s
from llm_perf_opt.regions.table import ROOT, RegionTable, levels_up

_ODD = 10.0  # times as long as is usual
_FEWEST = 3  # calls of a kernel, of which one can be said to be odd
_SIZES = 16  # that are told apart, from one to twice as much
_USUAL = 0.25  # of the calls are faster than what is usual, where sizes are known; else half of them


def odd_in(calls: RankCalls, table: RegionTable) -> dict[str, OddCollective]:
    """By region: of the kernel with most time beyond what is usual, the calls that stand out."""
    took = (calls.end - calls.start).astype(np.float64)
    usual = _usual(calls, took)
    odd = took > _ODD * usual
    if not odd.any():
        return {}
    parent, depth = table.arrays()
    beyond: dict[int, dict[str, list[int]]] = {}
    for regions in calls.regions:
        which = np.flatnonzero(odd & (regions != ROOT))
        for current, here in levels_up(regions[which], parent, depth):
            for region, at in zip(current[here].tolist(), which[here].tolist(), strict=True):
                beyond.setdefault(region, {}).setdefault(calls.name[at], []).append(at)
    found = {}
    for region, kernels in beyond.items():
        name, members = max(kernels.items(), key=lambda kernel: (took[kernel[1]] - usual[kernel[1]]).sum())
        each = float(usual[members].mean())
        found[table.key(region)] = odd_collectives(name, took[members].tolist(), each)
    return found


def _usual(calls: RankCalls, took: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    """Of each call, what others of its kernel take, for a message of its size; endless where too few tell."""
    found = np.full(len(took), np.inf)
    names = np.array(calls.name)
    for name in np.unique(names):
        which = np.flatnonzero(names == name)
        if len(which) < _FEWEST:
            continue
        sizes: Int64s = calls.bytes[which]
        known = len(sizes) == len(which) and bool((sizes != UNKNOWN).all()) and bool((sizes > 0).all())
        # Sizes that are about the same are one: messages between experts may all differ.
        about = np.round(np.log2(sizes) * _SIZES).astype(np.int64) if known else np.zeros(len(which), dtype=np.int64)
        for size in np.unique(about):
            mine = which[about == size]
            scaled = took[which] * np.exp2(np.maximum(size - about, 0) / _SIZES)
            found[mine] = np.quantile(scaled, _USUAL if known else 0.5)
    return found
