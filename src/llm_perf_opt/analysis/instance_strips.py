"""All instances of each region as a strip of bars: few numbers, however often a region ran."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.regions.columns import Bools, Int64s
from llm_perf_opt.regions.detail import InstanceStrip
from llm_perf_opt.regions.instances import Instances
from llm_perf_opt.regions.warmup import quantiles

MOST_BARS = 200  # of one region
FEW_BARS = 6  # of one region, once those with more time have used up what there is for all
ALL_BARS = 3_000  # of all regions together
_MOST_ALONE = 24  # warm-up instances at the beginning that are not put together with others


def instance_strips(instances: Instances, ranges_of: dict[int, Int64s], wanted: Bools) -> dict[int, InstanceStrip]:
    """Strips of the wanted regions that ran more than once. `ranges_of`: their ranges, in order of start."""
    chosen = {region: ranges for region, ranges in ranges_of.items() if wanted[region] and len(ranges) > 1}
    left, found = ALL_BARS, {}
    for region in sorted(chosen, key=lambda region: -int(instances.duration[chosen[region]].sum())):
        ranges = chosen[region]
        bars = min(len(ranges), max(min(left, MOST_BARS), FEW_BARS))
        found[region] = _strip(instances.duration[ranges], instances.warmup[ranges], bars)
        left -= bars
    return found


def _strip(duration: Int64s, warmup: Bools, bars: int) -> InstanceStrip:
    count = len(duration)
    first = bar_edges(count, alone := _alone(warmup, bars), bars)
    bar = np.repeat(np.arange(len(first) - 1), np.diff(first))
    ordered = duration[np.lexsort((duration, bar))]  # bar by bar, each from the shortest to the longest
    return InstanceStrip(
        instances=count,
        alone=alone,
        shortest=ordered[first[:-1]],
        median=ordered[(first[:-1] + first[1:] - 1) // 2],
        longest=ordered[first[1:] - 1],
        warmup=np.bincount(bar, weights=warmup) > 0,
        steady=quantiles(duration[~warmup]) if not warmup.all() else None,
    )


def _alone(warmup: Bools, bars: int) -> int:
    """How many instances at the beginning have a bar of their own: warm-up must not hide among many."""
    if len(warmup) == bars:
        return bars
    last = np.flatnonzero(warmup[: min(_MOST_ALONE, bars // 2)])
    return int(last[-1]) + 1 if len(last) else 0


def bar_edges(count: int, alone: int, bars: int) -> Int64s:
    """The first instance of each bar, and the one after the last."""
    shared = bars - alone
    rest = alone + np.arange(shared + 1, dtype=np.int64) * (count - alone) // max(shared, 1)
    return np.concatenate([np.arange(alone, dtype=np.int64), rest])
