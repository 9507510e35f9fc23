"""Which of the planned launches are worth a window of their own, where the program switches ncu on and off.

Not those that another can stand in for: the same kernel on a grid of nearly the same size. The cache of a decoder
grows with every token, and the kernels that go through it have another grid in every step: sampling each would need
every step. The join takes such a neighbour's counters in proportion to the blocks (`regions.signatures.stands_in`), so
one of them is enough. And of kernels that take next to no time one launch has to do, of those that always take as
long two. What lies in the windows of others is sampled all the same.
"""

from __future__ import annotations

import numpy as np

from llm_perf_opt.planning.accuracy import variation
from llm_perf_opt.planning.launch_filter import numbered
from llm_perf_opt.planning.launch_table import LaunchTable
from llm_perf_opt.regions.columns import Bools
from llm_perf_opt.regions.signatures import Axes, stands_in

_WORTH_MORE_THAN_ONE = 0.002  # share of the GPU time
_STEADY = 0.1  # standard deviation of the durations over their mean

_Kernel = tuple[str, Axes | None, int | None, int]  # name, block, shared memory, region


def needed(launches: LaunchTable, taken: Bools) -> Bools:
    """Of the taken launches, those to open windows for."""
    wanted = ~has_stand_in(launches, taken)
    light = launches.times() < _WORTH_MORE_THAN_ONE * launches.time_ns
    most = np.where(light, 1, np.where(variation(launches) <= _STEADY, 2, np.iinfo(np.int64).max))
    few: Bools = numbered(launches, taken) <= most[launches.signature]
    return taken & wanted[launches.signature] & few


def stood_in_for(launches: LaunchTable, taken: Bools) -> Bools:
    """Of each signature: has it no sample, but one with samples that stands in for it? By the rule of the join."""
    sampled = launches.counts(taken) > 0
    durations = (launches.times() / np.maximum(launches.counts(), 1)).tolist()
    standing: dict[tuple[str, Axes | None], list[int]] = {}
    for number in np.flatnonzero(sampled).tolist():
        standing.setdefault((launches.signatures[number].name, launches.signatures[number].block), []).append(number)
    found = np.zeros(len(launches.signatures), dtype=np.bool_)
    for number in np.flatnonzero(~sampled).tolist():
        signature = launches.signatures[number]
        found[number] = any(
            stands_in(launches.signatures[other], durations[other], signature, durations[number])
            for other in standing.get((signature.name, signature.block), [])
        )
    return found


def has_stand_in(launches: LaunchTable, taken: Bools) -> Bools:
    """Of each sampled signature: could another do for it? One in another region stands in for nothing."""
    _, first = np.unique(launches.signature, return_index=True)
    lowest = np.full(len(launches.signatures), np.iinfo(np.int64).max)
    highest = np.full(len(launches.signatures), -1)
    np.minimum.at(lowest, launches.signature, launches.region)
    np.maximum.at(highest, launches.signature, launches.region)
    found = np.zeros(len(launches.signatures), dtype=np.bool_)
    sampled = launches.counts(taken) > 0
    durations = (launches.times() / np.maximum(launches.counts(), 1)).tolist()
    standing: dict[_Kernel, list[int]] = {}  # signatures that are sampled
    for number in launches.signature[np.sort(first)].tolist():  # in the order in which they first run
        signature = launches.signatures[number]
        if not sampled[number] or signature.blocks is None or lowest[number] != highest[number]:
            continue
        kernel = (signature.name, signature.block, signature.shared_memory, int(lowest[number]))
        others = standing.setdefault(kernel, [])
        if any(stands_in(launches.signatures[o], durations[o], signature, durations[number]) for o in others):
            found[number] = True
        else:
            others.append(number)
    return found
