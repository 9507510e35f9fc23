"""Unions of time intervals: how long the GPU was busy, for one set of work or for many groups at once."""

from __future__ import annotations

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import Bools, Int64s


def running(values: Int64s) -> Int64s:
    """The sum of the values before each, and of all."""
    found = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=found[1:])
    return found


@define(eq=False)
class BusyTime:
    """The merged, disjoint intervals of some work; answers how much of any window they fill."""

    starts: Int64s
    ends: Int64s
    _before: Int64s  # busy time before each interval

    @staticmethod
    def of(start: Int64s, end: Int64s) -> BusyTime:
        """Merge intervals given in any order."""
        if len(start) == 0:
            empty = np.zeros(0, dtype=np.int64)
            return BusyTime(empty, empty, np.zeros(1, dtype=np.int64))
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)
        first = np.concatenate([[True], start[1:] > reach[:-1]])
        starts = start[first]
        ends = reach[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(end) - 1]])]
        return BusyTime(starts, ends, running(ends - starts))

    @property
    def total(self) -> int:
        return int(self._before[-1])

    def until(self, moments: Int64s) -> Int64s:
        """Busy time up to each moment."""
        if len(self.starts) == 0:
            return np.zeros(len(moments), dtype=np.int64)
        at = np.searchsorted(self.starts, moments, side="right") - 1
        inside = np.maximum(at, 0)
        partial = np.minimum(moments, self.ends[inside]) - self.starts[inside]
        return np.where(at >= 0, self._before[inside] + partial, 0)

    def within(self, start: Int64s, end: Int64s) -> Int64s:
        """Busy time inside each window."""
        return self.until(end) - self.until(start)


def overlapping(start: Int64s, end: Int64s) -> Bools:
    """Which intervals, given in order of start, share time with another one, directly or through a chain."""
    if len(start) == 0:
        return np.zeros(0, dtype=np.bool_)
    reach = np.maximum.accumulate(end)
    joined = start[1:] < reach[:-1]
    shared: Bools = np.concatenate([joined, [False]]) | np.concatenate([[False], joined])
    return shared


def union_by_group(group: Int64s, start: Int64s, end: Int64s, groups: int) -> Int64s:
    """Length of the union of the intervals of each group. `start` must be sorted."""
    if len(group) == 0:
        return np.zeros(groups, dtype=np.int64)
    # NumPy sorts 16-bit keys in linear time, and there are seldom more regions than that.
    keys = group.astype(np.uint16) if groups <= 2**16 else group
    order = np.argsort(keys, kind="stable")
    group, start, end = group[order], start[order], end[order]
    origin = start.min()
    span = int(end.max() - origin) + 1
    cuts = np.flatnonzero(np.diff(group)) + 1
    rank = np.zeros(len(group), dtype=np.int64)
    rank[cuts] = 1
    rank = np.cumsum(rank)
    if (int(rank[-1]) + 1) * span >= 2**62:
        # The offsets below would overflow: merge group by group instead.
        result = np.zeros(groups, dtype=np.int64)
        for part in np.split(np.arange(len(group)), cuts):
            result[group[part[0]]] = BusyTime.of(start[part], end[part]).total
        return result
    # Groups are laid end to end on one axis, so that one running maximum serves them all.
    offset = rank * span - origin
    begin, finish = start + offset, end + offset
    reach = np.maximum.accumulate(finish)
    already = np.concatenate([[begin[0]], reach[:-1]])
    fresh = np.maximum(finish - np.maximum(begin, already), 0)
    return np.bincount(group, weights=fresh, minlength=groups).astype(np.int64)
