"""Which ranges hold the planned launches: the code inside the program can switch the profiler on around those alone.

A timeline, kernels of it and what was counted inside the program go in, capture windows or the reason why there are
none come out. The program numbers its ranges by domain and name, so a range of the timeline is known there by these and
its turn; that holds only for names of which both have seen the same number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import define

from llm_perf_opt.inject import CaptureWindows, Named, RangesSeen
from llm_perf_opt.readers.marker_ranges import PREFIX as MARKER
from llm_perf_opt.regions.columns import UNKNOWN, Action, Bools, Int64s, Timeline
from llm_perf_opt.regions.signatures import distinct_rows
from llm_perf_opt.regions.stacks import Stacks, build_stacks

# What a window costs, in seconds: switching, and every launch in it that is not profiled. Seen on an H200: a launch that
# ncu looks at and lets pass takes 0.5 ms, one while it is switched off 0.1 to 0.2 ms; switching 0.01 ms. A little more
# for it, so that nobody switches for a single launch.
_SWITCH_S = 0.001
_LAUNCH_S = 0.0004

_THREADS_TRIED = 8

FROM_START_OFF = ("--profile-from-start", "off")  # for ncu, where the program switches it on


@define(eq=False)
class KnownRanges:
    """The ranges of a timeline as the program itself knows them."""

    timeline: Timeline
    stacks: Stacks
    number: dict[int, int]  # of each range: its turn among those of its name
    tops: Int64s  # of each kernel of the process: the innermost of these ranges; UNKNOWN of those in none
    mine: Int64s  # the kernels of the process


def known_ranges(timeline: Timeline, kernels: Int64s, ranges_seen: RangesSeen) -> KnownRanges | str:
    """The ranges around some kernels that can be acted on inside the program; or why there are none.

    `ranges_seen`: what the processes of the timeline's run counted.
    """
    if not len(kernels):
        return "no launch is wanted"
    if len(np.unique(timeline.kernels.process[kernels])) != 1:
        return "the launches are of several processes"
    process = int(timeline.kernels.process[kernels[0]])
    counted = _counted_by(timeline, process, ranges_seen)
    if not counted:
        return "the program was not seen to open any range"
    usable, number = _numbered(timeline, process, counted)
    if not len(usable):
        return "the program opens ranges in a way that cannot be seen from inside"
    stacks = _of_one_thread(timeline, usable, timeline.kernels.host_time[kernels])
    mine = np.flatnonzero(timeline.kernels.process == process)
    tops = np.full(len(timeline.kernels), UNKNOWN, dtype=np.int64)
    tops[mine] = stacks.top_at(timeline.kernels.host_time[mine])
    return KnownRanges(timeline, stacks, number, tops, mine)


def _of_one_thread(timeline: Timeline, usable: Int64s, launched: Int64s) -> Stacks:
    """The ranges of the thread that has most of some launches in them; of several, of that with most ranges.

    The profiler is switched for the whole process, so one thread tells when.
    """
    ranges = timeline.ranges
    threads, counts = np.unique(ranges.thread[usable], return_counts=True)
    busiest = threads[np.argsort(-counts, kind="stable")][:_THREADS_TRIED].tolist()
    tried = [build_stacks(ranges.start, ranges.end, usable[ranges.thread[usable] == thread]) for thread in busiest]
    return max(tried, key=lambda stacks: int((stacks.top_at(launched) != UNKNOWN).sum()))


def windows_around(
    known: KnownRanges, kernels: Int64s, *, stop: bool, exact: bool = False
) -> tuple[CaptureWindows, Bools] | str:
    """The ranges around some kernels that are cheapest to profile in, and which kernels of the timeline lie in them.

    Or why there are none. `exact`: every launch in them is profiled, so that none should be in them that is not wanted.
    """
    timeline, stacks, tops = known.timeline, known.stacks, known.tops
    if not len(kernels):
        return "no launch is wanted"
    if (tops[kernels] == UNKNOWN).any():
        return "some launches are in no range that the program was seen to open"
    find = _exactly if exact else _cheapest
    nodes, pauses = find(stacks, tops[known.mine], tops[kernels])
    instance = stacks.instance

    def named(chosen: Sequence[int]) -> dict[Named, tuple[int, ...]]:
        found: dict[Named, set[int]] = {}
        for one in np.unique(instance[list(chosen)]).tolist():
            found.setdefault(_name(timeline, one), set()).add(known.number[one])
        return {name: tuple(sorted(numbers)) for name, numbers in sorted(found.items())}

    windows = CaptureWindows(named(nodes), stop, named(pauses))
    return windows, _profiled(stacks, nodes, pauses, tops)


def _counted_by(timeline: Timeline, process: int, ranges_seen: RangesSeen) -> Mapping[Named, int]:
    """What a process of the timeline counted; where there is but one, it need not have the same number (containers)."""
    found = ranges_seen.get(timeline.processes[process].pid)
    if found is None and len(ranges_seen) == 1 and len(np.unique(timeline.ranges.process)) == 1:
        return next(iter(ranges_seen.values()))
    return found or {}


def _name(timeline: Timeline, instance: int) -> Named:
    ranges = timeline.ranges
    return timeline.domains[int(ranges.domain[instance])], timeline.strings[int(ranges.name[instance])]


def _numbered(timeline: Timeline, process: int, counted: Mapping[Named, int]) -> tuple[Int64s, dict[int, int]]:
    """Push/pop ranges of a process that are known inside the program, and the number of each there."""
    ranges = timeline.ranges
    mine = np.flatnonzero((ranges.process == process) & ~ranges.start_end)
    if not len(mine):
        return mine, {}
    label, first = distinct_rows([ranges.domain[mine].astype(np.int64), ranges.name[mine].astype(np.int64)])
    seen = np.bincount(label)
    known = np.array([counted.get(_name(timeline, int(mine[f]))) == seen[n] for n, f in enumerate(first.tolist())])
    order = np.lexsort((ranges.start[mine], label))
    turn = np.arange(len(mine)) - np.repeat(np.cumsum(seen) - seen, seen) + 1
    number = {int(mine[i]): int(t) for i, t in zip(order.tolist(), turn.tolist(), strict=True) if known[label[i]]}
    return mine[known[label]], number


def _exactly(stacks: Stacks, launches: Int64s, wanted: Int64s) -> tuple[list[int], list[int]]:
    """Nodes to profile in, and nodes inside them not to, so that of each node all launches of its own are or none is."""
    parent, count = stacks.parent, len(stacks.parent)
    own = np.bincount(launches[launches != UNKNOWN], minlength=count) > 0
    on = np.bincount(wanted, minlength=count) > 0
    chosen, pauses = [], []
    for node, above in enumerate(parent.tolist()):  # parents have lower numbers
        outside = above != UNKNOWN and bool(on[above])
        if not own[node]:
            on[node] = outside  # nothing is launched there, so nothing need be switched
        elif on[node] and not outside:
            chosen.append(node)
        elif outside and not on[node]:
            pauses.append(node)
    return chosen, pauses


def _cheapest(stacks: Stacks, launches: Int64s, wanted: Int64s) -> tuple[list[int], list[int]]:
    """Nodes to profile in, so that every wanted launch is in one, and those inside them to leave out again.

    A range as a whole, but for ranges inside it with many launches and none that is wanted; or ranges inside it.
    """
    parent = stacks.parent
    count = len(parent)
    total = np.bincount(launches[launches != UNKNOWN], minlength=count).astype(np.float64)  # with all below
    remaining = total.copy()  # with what is below, but for pauses
    direct = np.bincount(wanted, minlength=count) > 0
    holds = direct.copy()  # something wanted is in it or below
    below = np.zeros(count)  # what windows inside a range cost together
    turns = np.zeros(count)  # pauses of a range
    whole = np.zeros(count, dtype=np.bool_)
    for node in range(count - 1, -1, -1):  # parents have lower numbers
        alone = remaining[node] * _LAUNCH_S + (1 + turns[node]) * _SWITCH_S
        inner = math.inf if direct[node] else below[node]
        whole[node] = alone <= inner
        above = int(parent[node])
        if above == UNKNOWN:
            continue
        total[above] += total[node]
        if holds[node]:
            holds[above] = True
            below[above] += min(alone, inner)
            remaining[above] += remaining[node]
            turns[above] += turns[node]
        elif _is_worth_a_pause(total[node]):
            turns[above] += 1
        else:
            remaining[above] += total[node]
    chosen, pauses = [], []
    covered = np.zeros(count, dtype=np.bool_)
    for node in range(count):
        above = int(parent[node])
        inside = above != UNKNOWN and bool(covered[above])
        if holds[node]:
            covered[node] = inside or whole[node]
            if whole[node] and not inside:
                chosen.append(node)
        elif inside and _is_worth_a_pause(total[node]):
            pauses.append(node)  # what is below it is not looked at: it is not covered
    return chosen, pauses


def _is_worth_a_pause(launches: float) -> bool:
    return bool(launches * _LAUNCH_S > _SWITCH_S)


def _profiled(stacks: Stacks, nodes: Sequence[int], pauses: Sequence[int], tops: Int64s) -> Bools:
    """Which kernels are profiled: of the windows and pauses around a kernel the innermost decides."""
    switched = dict.fromkeys(nodes, True) | dict.fromkeys(pauses, False)
    on = np.zeros(len(stacks.parent) + 1, dtype=np.bool_)  # the last stands for UNKNOWN
    for node, above in enumerate(stacks.parent.tolist()):
        on[node] = switched.get(node, above != UNKNOWN and on[above])
    return on[tops]


def unseen(windows: CaptureWindows, results: Sequence[Action]) -> list[str]:
    """Names of windows in which nothing was profiled. Results do not tell of marker ranges."""
    seen = {name for action in results for stack in action.push_pop.values() for name in stack}
    return [name for _, name in windows.windows if name not in seen and not name.startswith(MARKER)]
