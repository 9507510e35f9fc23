"""PyTorch's operators as ranges: `emit_nvtx` pushes one for each, and inside it one for each that it is made of.

An operator that the program calls is a region like any other; those inside it say how PyTorch made it, and their work
belongs to it. A range that a pattern of the user names stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import evolve

from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline
from llm_perf_opt.regions.distinct import distinct, is_one_of
from llm_perf_opt.regions.operator_names import is_backward, is_operator, without_arguments
from llm_perf_opt.regions.stacks import build_stacks, group_by


def engine_threads(timeline: Timeline) -> list[int]:
    """Threads of PyTorch's autograd engine, which work for the thread that called backward.

    Most of their outermost ranges are the engine's own. The thread that called runs a part, too.
    """
    names = [n for n, name in enumerate(timeline.strings) if is_backward(name)]
    ranges, found = timeline.ranges, set(timeline.engine_threads)
    of_engine = is_one_of(ranges.name, names)
    for thread in distinct(ranges.thread[of_engine]).tolist():
        mine = np.flatnonzero((ranges.thread == thread) & ~ranges.start_end)
        mine = mine[np.lexsort((-ranges.end[mine], ranges.start[mine]))]
        reach = np.concatenate([[-1], np.maximum.accumulate(ranges.end[mine])[:-1]])
        outermost = mine[ranges.start[mine] >= reach]
        if 2 * int(of_engine[outermost].sum()) > len(outermost):
            found.add(thread)
    return sorted(found - {UNKNOWN})


def without_inner_operators(timeline: Timeline, keep: Callable[[str], bool]) -> Timeline:
    """The timeline without operators directly inside others. `keep`: names that stay."""
    ranges, strings = timeline.ranges, timeline.strings
    operator, dropped = (np.zeros(len(strings) + 1, dtype=np.bool_) for _ in range(2))  # the last: UNKNOWN
    for number in distinct(ranges.name).tolist():
        if number >= 0 and is_operator(strings[number]):
            operator[number], dropped[number] = True, not keep(without_arguments(strings[number]))
    candidates = dropped[ranges.name] & ~ranges.start_end
    if not candidates.any():
        return timeline
    inner = np.zeros(len(ranges), dtype=np.bool_)
    owner = ranges.thread.astype(np.int64) * len(timeline.domains) + ranges.domain
    for _, part in group_by(np.where(ranges.start_end, -1, owner)):
        if ranges.start_end[part[0]] or not candidates[part].any():
            continue
        inner[part] = _inside(operator[ranges.name], timeline, part)
    return evolve(timeline, ranges=ranges.chosen(~(inner & candidates)))


def _inside(operator: Bools, timeline: Timeline, part: Int64s) -> Bools:
    """Which ranges of one thread and domain lie directly in an operator."""
    ranges = timeline.ranges
    stacks = build_stacks(ranges.start, ranges.end, part)
    nodes = stacks.nodes_of_ranges()
    parent, instance = stacks.parent[nodes], stacks.instance
    around = np.where(parent >= 0, operator[instance[np.maximum(parent, 0)]], False)
    place = np.full(len(ranges), -1, dtype=np.int64)
    place[part] = np.arange(len(part))
    found = np.zeros(len(part), dtype=np.bool_)
    found[place[instance[nodes]]] = around
    return found


def outer_names(names: Sequence[str], keep: Callable[[str], bool]) -> list[str]:
    """A stack without operators directly inside others."""
    return [
        name
        for at, name in enumerate(names)
        if at == 0 or not is_operator(names[at - 1]) or not is_operator(name) or keep(without_arguments(name))
    ]
