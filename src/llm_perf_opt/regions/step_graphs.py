"""Which steps of a server replay CUDA graphs: by the launches inside each, of the thread that runs it.

Engines capture graphs for some sizes of a batch and run the others kernel by kernel: the two are not one group.
"""

from __future__ import annotations

import numpy as np

from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.stacks import group_by


def step_graphs(timeline: Timeline, steps: Int64s) -> Int64s:
    """Of some ranges: 1 where most of their kernels come from graphs, else 0; and the first node of the graph.

    UNKNOWN where the recording has no GPU work, and for graphs that it does not tell apart.
    """
    found = np.full((len(steps), 2), UNKNOWN, dtype=np.int64)
    ranges, kernels, whole = timeline.ranges, timeline.kernels, timeline.graphs
    if not len(kernels) and not len(whole):
        return found
    replayed, single = np.zeros(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    for thread, mine in group_by(ranges.thread[steps]):
        mine = mine[np.argsort(ranges.start[steps[mine]], kind="stable")]
        starts, ends = ranges.start[steps[mine]], ranges.end[steps[mine]]
        for work, is_whole in ((kernels, False), (whole, True)):
            launched = np.flatnonzero((work.thread == thread) & (work.host_time != UNKNOWN))
            at = np.searchsorted(starts, work.host_time[launched], side="right") - 1
            inside = (at >= 0) & (work.host_time[launched] < ends[np.maximum(at, 0)])
            step, node = mine[at[inside]], work.graph_node[launched[inside]].astype(np.int64)
            in_graph = np.ones(len(step), dtype=np.bool_) if is_whole else node != UNKNOWN
            replayed += np.bincount(step[in_graph], minlength=len(steps))
            single += np.bincount(step[~in_graph], minlength=len(steps))
            np.minimum.at(first, step[node != UNKNOWN], node[node != UNKNOWN])
            if is_whole and in_graph.any():  # of how many kernels is not said: of nearly all
                single[np.unique(step)] = 0
    found[:, 0] = (replayed > 0) & (replayed >= single)
    if len(timeline.graph_nodes.host_time) > 1:
        found[:, 1] = np.where((found[:, 0] == 1) & (first < np.iinfo(np.int64).max), first, UNKNOWN)
    return found
