"""Calls in which code was compiled or a graph captured: once paid, they say nothing of how fast a lever is.

A prefill that runs once in a program is compiled in that one run. Its half minute would decide whether a lever is
faster, though it is stated as warm-up, and the decode steps after it are what counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import evolve

from llm_perf_opt.regions.columns import COMPILATION, GRAPH_CAPTURE, ONCE, Bools, Int64s, OnlyOnce, Ranges, Timeline
from llm_perf_opt.regions.stacks import group_by

_COMPILES = (ONCE.index(COMPILATION), ONCE.index(GRAPH_CAPTURE))
_MOSTLY = 0.5  # of its time: such a call is for compiling
_OFTEN = 0.5  # of the calls of a name, more than one: what is compiled in so many, is compiled again and again


def spent_ns(once: OnlyOnce) -> int:
    """How long code was compiled and graphs captured; what overlaps counts once."""
    return sum(end - start for start, end in _spans(once, np.isin(once.what, _COMPILES)))


def without_compiling(timeline: Timeline) -> Timeline:
    """The same without compiling, and calls that were mostly for it; as it is where none else are left."""
    ranges, once = timeline.ranges, timeline.only_once
    length = ranges.end - ranges.start
    compiles: Bools = _spent_in(ranges, once, np.zeros(len(ranges), dtype=np.bool_)) >= np.maximum(_MOSTLY * length, 1)
    again = np.zeros(len(ranges), dtype=np.bool_)
    for _, mine in group_by(ranges.name.astype(np.int64)):
        if len(mine) > 1 and compiles[mine].sum() > _OFTEN * len(mine):
            again[mine] = compiles[mine]
    compiles &= ~again
    # What holds others keeps its place around them, and is as much shorter.
    for at in np.flatnonzero(compiles).tolist():
        inside = (ranges.start >= ranges.start[at]) & (ranges.end <= ranges.end[at]) & ~compiles
        compiles[at] = not (inside & (ranges.process == ranges.process[at])).any()
    if not compiles.any() or compiles.all():
        return timeline
    took = np.maximum(ranges.duration - _spent_in(ranges, once, again), 1)
    return evolve(timeline, ranges=evolve(ranges, took=took).chosen(~compiles))


def _spent_in(ranges: Ranges, once: OnlyOnce, again: Bools) -> Int64s:
    """How long code was compiled in each range; what is compiled in ranges of `again` does not count."""
    spent = np.zeros(len(ranges), dtype=np.int64)
    for process in np.unique(once.process).tolist():
        mine = np.flatnonzero(ranges.process == process)
        begin, finish, kept = ranges.start[mine], ranges.end[mine], again[mine]
        for start, end in _spans(once, np.isin(once.what, _COMPILES) & (once.process == process)):
            if not ((begin <= start) & (finish >= end) & kept).any():
                spent[mine] += np.maximum(np.minimum(finish, end) - np.maximum(begin, start), 0)
    return spent


def _spans(once: OnlyOnce, wanted: Bools) -> Iterator[tuple[int, int]]:
    """In order, none of them twice."""
    last = -1
    for start, end in sorted(zip(once.start[wanted].tolist(), once.end[wanted].tolist(), strict=True)):
        if end > last:
            yield max(start, last), end
            last = end
