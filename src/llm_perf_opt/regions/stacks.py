"""From range instances to stacks: which ranges were open at a given moment, outermost first.

The one rule, for every kind of nesting: *the stack at a moment is the list of ranges open at that
moment, in the order in which they began* (of two that began together, the longer one is outside).
A range is open from its start up to, not including, its end. Well nested ranges give the obvious
tree; overlapping ones (threads merged into one process, badly paired ranges) follow the same rule,
and a range then has one stack node for every stack it was found in.

`Stacks` is built for one group of ranges (a thread or a process, one domain) and answers for many
moments at once.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from attrs import define

from llm_perf_opt.regions.blocks import blocks
from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Int64s

# Ranges open at one moment that are told apart, outermost first; fewer once that has taken many steps. Real
# programs have a hundred open at the most; ten thousand that overlap would take all memory.
_MOST_OPEN, _FEW_OPEN = 1024, 16
_MOST_STEPS = 4_000_000


def build_stacks(starts: Int64s, ends: Int64s, instances: Int64s) -> Stacks:
    """Stacks of the ranges `instances`, which index into the columns `starts` and `ends`."""
    start, end = starts[instances], ends[instances]
    order = np.lexsort((-end, start))
    ordered = instances[order].astype(np.int64)
    start, end = start[order], end[order]
    parent = _nested_parents(start, end)
    if parent is not None:
        return NestedStacks(ordered, parent, start, end)
    return OverlappingStacks(ordered, start, end)


def _nested_parents(start: Int64s, end: Int64s) -> Int64s | None:
    """Parent of every range when the ranges, sorted by start, are well nested; None when two overlap.

    The depth of a range is how many began before it, less those that have ended by then. What it lies in is the last
    one before it that is one level higher: if anything overlaps, the first to do so ends after that one.
    """
    number = np.arange(len(start))
    empty = (
        start >= end
    )  # never open; of those that begin together they come last, and have not ended before they began
    seen: Int64s = np.cumsum(empty) - empty
    ended = np.searchsorted(np.sort(end), start, side="right")
    ended -= np.searchsorted(start[empty], start, side="right") - seen
    depth = number - ended
    place = depth * len(start) + number  # by level, and in order within one
    by_level = np.argsort(place)
    inside = np.flatnonzero(depth > 0)
    parent = np.full(len(start), UNKNOWN, dtype=np.int64)
    parent[inside] = by_level[np.searchsorted(place[by_level], place[inside] - len(start)) - 1]
    return None if (end[inside] > end[parent[inside]]).any() else parent


@define(eq=False)
class NestedStacks:
    """Well nested ranges: one node each. A node is one range instance open on top of one particular stack."""

    instance: Int64s  # of each node: the index of its range in the caller's columns
    parent: Int64s  # of each node: the node it lies on, UNKNOWN at the bottom; always a lower number
    _starts: Int64s
    _ends: Int64s
    simplified: bool = False  # the innermost of very many open ranges were left out

    def nodes_of_ranges(self) -> Int64s:
        """One node for every range: the one of the stack it was found in when it began."""
        return np.arange(len(self.instance))

    def top_at(self, moments: Int64s) -> Int64s:
        """For each moment the node on top of the stack then, UNKNOWN where nothing was open."""
        top = np.empty(len(moments), dtype=np.int64)
        for part in blocks(len(moments)):
            top[part] = self._top_at(moments[part])
        return top

    def _top_at(self, moments: Int64s) -> Int64s:
        at = np.searchsorted(self._starts, moments, side="right") - 1
        # The last range to begin is on top unless it has ended: then climb until one is still open.
        climbing = np.flatnonzero(at >= 0)
        while len(climbing):
            nodes = at[climbing]
            ended = self._ends[nodes] <= moments[climbing]
            climbing = climbing[ended]
            at[climbing] = self.parent[nodes[ended]]
            climbing = climbing[at[climbing] >= 0]
        return at


class OverlappingStacks:
    """The general case. Nodes are made for the stacks somebody asks for, not for all there ever were:
    the ranges of many threads, merged, have more different stacks than anybody could use."""

    def __init__(self, instances: Int64s, start: Int64s, end: Int64s) -> None:
        self._instances = instances
        self._starts, self._ends = start, end
        self._nodes: dict[tuple[int, int], int] = {}
        self._range_of_node: list[int] = []
        self._parents: list[int] = []
        self._steps = 0
        self.simplified = False
        moments = np.concatenate([start, end])
        # At one moment, ends come before starts: a range is not open at its own end.
        begins = np.concatenate([np.ones(len(start), dtype=np.int8), np.zeros(len(end), dtype=np.int8)])
        which = np.concatenate([np.arange(len(start)), np.arange(len(end))])
        never_open = (start >= end)[which]
        order = np.lexsort((which, begins, moments))
        order = order[~never_open[order]]
        self._event_time = moments[order]
        self._event_begins = begins[order].tolist()
        self._event_range = which[order].tolist()

    @property
    def instance(self) -> Int64s:
        return self._instances[np.array(self._range_of_node, dtype=np.int64)]

    @property
    def parent(self) -> Int64s:
        return np.array(self._parents, dtype=np.int64)

    def nodes_of_ranges(self) -> Int64s:
        tops = self.top_at(self._starts).tolist()
        nodes = []
        for number, top in enumerate(tops):
            node = top
            while node != UNKNOWN and self._range_of_node[node] != number:
                node = self._parents[node]
            # A range of no duration was never open, yet it is an instance of its region.
            nodes.append(self._node(top, number) if node == UNKNOWN else node)
        return np.array(nodes, dtype=np.int64)

    def top_at(self, moments: Int64s) -> Int64s:
        result = np.full(len(moments), UNKNOWN, dtype=np.int64)
        order = np.argsort(moments, kind="stable")
        # How many events have happened by each moment; equal numbers share one stack.
        seen = np.searchsorted(self._event_time, moments[order], side="right")
        open_ranges: list[int] = []  # in order of start, which is the order of their numbers
        done, top = 0, UNKNOWN
        last = -1
        for place, count in zip(order.tolist(), seen.tolist(), strict=True):
            if count != last:
                for event in range(done, count):
                    number = self._event_range[event]
                    if self._event_begins[event]:
                        open_ranges.append(number)
                    else:
                        del open_ranges[bisect_left(open_ranges, number)]
                done = last = count
                top = UNKNOWN
                kept = open_ranges[:_MOST_OPEN] if self._steps < _MOST_STEPS else open_ranges[:_FEW_OPEN]
                self._steps += len(kept)
                self.simplified = self.simplified or len(kept) < len(open_ranges)
                for number in kept:
                    top = self._node(top, number)
            result[place] = top
        return result

    def _node(self, below: int, number: int) -> int:
        key = (below, number)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = len(self._range_of_node)
            self._range_of_node.append(number)
            self._parents.append(below)
        return node


Stacks = NestedStacks | OverlappingStacks  # which answer the same questions


def group_by(keys: Int32s | Int64s) -> list[tuple[int, Int64s]]:
    """Indices of each distinct key, in order. One sort for all groups; none when there is one key."""
    if len(keys) == 0:
        return []
    low, high = int(keys.min()), int(keys.max())
    if low == high:
        return [(low, np.arange(len(keys)))]
    # NumPy sorts numbers of 16 bits in linear time.
    order = np.argsort((keys - low).astype(np.uint16) if high - low < 2**16 else keys, kind="stable")
    ordered = keys[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    return [(int(keys[part[0]]), part) for part in np.split(order, cuts)]
