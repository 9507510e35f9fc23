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

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Int64s


@define(eq=False)
class Stacks:
    """Stack nodes of one group. A node is one range instance open on top of one particular stack."""

    instance: Int64s  # node -> index of its range in the caller's columns
    parent: Int64s  # node -> node it lies on, UNKNOWN at the bottom
    _times: Int64s  # well nested: start of each node; overlapping: start of each segment
    _segment_node: Int64s | None  # overlapping only: node on top during each segment
    _ends: Int64s  # node -> end of its range

    def __len__(self) -> int:
        return len(self.instance)

    def top_at(self, moments: Int64s) -> Int64s:
        """For each moment the node on top of the stack then, UNKNOWN where nothing was open."""
        at = np.searchsorted(self._times, moments, side="right") - 1
        if self._segment_node is not None:
            return np.where(at >= 0, self._segment_node[np.maximum(at, 0)], UNKNOWN)
        # The last range to begin is on top unless it has ended: then climb until one is still open.
        climbing = np.flatnonzero(at >= 0)
        while len(climbing):
            nodes = at[climbing]
            ended = self._ends[nodes] <= moments[climbing]
            climbing = climbing[ended]
            at[climbing] = self.parent[nodes[ended]]
            climbing = climbing[at[climbing] >= 0]
        return at


def build_stacks(starts: Int64s, ends: Int64s, instances: Int64s) -> Stacks:
    """Stacks of the ranges `instances`, which index into the columns `starts` and `ends`."""
    start, end = starts[instances], ends[instances]
    order = np.lexsort((-end, start))
    ordered = instances[order].astype(np.int64)
    start, end = start[order], end[order]
    parent = _nested_parents(start.tolist(), end.tolist())
    if parent is not None:
        return Stacks(ordered, np.array(parent, dtype=np.int64), start, None, end)
    return _overlapping_stacks(ordered, start, end)


def _nested_parents(starts: list[int], ends: list[int]) -> list[int] | None:
    """Parent of every range when the ranges, sorted by start, are well nested; None when two overlap."""
    parents: list[int] = []
    stack: list[int] = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if not stack:
            parents.append(UNKNOWN)
        elif end > ends[stack[-1]]:
            return None
        else:
            parents.append(stack[-1])
        stack.append(i)
    return parents


def _overlapping_stacks(instances: Int64s, start: Int64s, end: Int64s) -> Stacks:
    """The general case: walk through all starts and ends and note the stack after each."""
    count = len(instances)
    moments = np.concatenate([start, end])
    # At one moment, ends come before starts: a range is not open at its own end.
    is_start = np.concatenate([np.ones(count, dtype=np.int8), np.zeros(count, dtype=np.int8)])
    which = np.concatenate([np.arange(count), np.arange(count)])
    order = np.lexsort((which, is_start, moments))
    nodes: dict[tuple[int, int], int] = {}
    node_range: list[int] = []
    node_parent: list[int] = []
    open_ranges: list[int] = []  # in order of start, which is the order of their numbers
    open_nodes: list[int] = []

    def push(which_range: int) -> None:
        below = open_nodes[-1] if open_nodes else UNKNOWN
        key = (below, which_range)
        node = nodes.get(key)
        if node is None:
            node = nodes[key] = len(node_range)
            node_range.append(which_range)
            node_parent.append(below)
        open_ranges.append(which_range)
        open_nodes.append(node)

    times: list[int] = []
    tops: list[int] = []
    empty = set(np.flatnonzero(start >= end).tolist())  # never open, yet instances of their region
    for moment, begins, number in zip(
        moments[order].tolist(), is_start[order].tolist(), which[order].tolist(), strict=True
    ):
        if number in empty:
            if begins:
                push(number)
                del open_ranges[-1], open_nodes[-1]
            continue
        if begins:
            push(number)
        else:
            at = open_ranges.index(number)
            above = open_ranges[at + 1 :]
            del open_ranges[at:], open_nodes[at:]
            for other in above:
                push(other)
        top = open_nodes[-1] if open_nodes else UNKNOWN
        if times and times[-1] == moment:
            tops[-1] = top
        else:
            times.append(moment)
            tops.append(top)
    ranges = np.array(node_range, dtype=np.int64)
    return Stacks(
        instance=instances[ranges],
        parent=np.array(node_parent, dtype=np.int64),
        times=np.array(times, dtype=np.int64),
        segment_node=np.array(tops, dtype=np.int64),
        ends=end[ranges],
    )


def group_by(keys: Int32s | Int64s) -> list[tuple[int, Int64s]]:
    """Indices of each distinct key, in order. One sort for all groups; none when there is one key."""
    if len(keys) == 0:
        return []
    if (keys == keys[0]).all():
        return [(int(keys[0]), np.arange(len(keys)))]
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    return [(int(keys[part[0]]), part) for part in np.split(order, cuts)]
