"""Steps of the program's loop, from one call of a stage to the next: what is between stages belongs to a step, too.

Ranges time calls of models. A loop that waits for its data, or chooses tokens by itself, does so between them; a lever
that helps there would seem to do nothing. So each repeated stage that begins a step gets a range around all of it.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve, fields

from llm_perf_opt.regions.columns import UNKNOWN_HERE, Bools, Int64s, Ranges, Timeline
from llm_perf_opt.regions.stacks import group_by

STEP = "step"
_LEAST = 6  # steps: fewer are no loop
_NEAR = 4  # steps before and behind, with which the time of one is averaged
_OFTEN = 0.5  # as often as the stage that comes most often, or it is not of every step


def with_steps(timeline: Timeline) -> Timeline:
    """The same with a range around each step; as it is where nothing repeats."""
    ranges = timeline.ranges
    found = [mine[_outermost(ranges, mine)] for _, mine in group_by(ranges.thread.astype(np.int64))]
    parts = [part for outer in found if (part := _steps(timeline, outer)) is not None]
    if not parts:
        return timeline
    names = [f.name for f in fields(Ranges) if f.name != "recorded" and getattr(ranges, f.name) is not None]
    columns = {name: np.concatenate([getattr(ranges, name), *(part[name] for part in parts)]) for name in names}
    return evolve(timeline, strings=[*timeline.strings, STEP], ranges=Ranges(**columns))


def _outermost(ranges: Ranges, mine: Int64s) -> Bools:
    """Of one thread: those inside no other."""
    order = np.lexsort((-ranges.end[mine], ranges.start[mine]))
    ends = np.maximum.accumulate(ranges.end[mine[order]])
    before = np.concatenate([[np.iinfo(np.int64).min], ends[:-1]])
    outer = np.zeros(len(mine), dtype=np.bool_)
    outer[order] = ranges.start[mine[order]] >= before
    return outer


def _steps(timeline: Timeline, outer: Int64s) -> dict[str, Int64s] | None:
    """Columns of the steps of one thread."""
    ranges = timeline.ranges
    outer = outer[np.argsort(ranges.start[outer])]
    names = ranges.name[outer].astype(np.int64)
    counts = dict(zip(*(part.tolist() for part in np.unique(names, return_counts=True)), strict=True))
    if not counts or max(counts.values()) < _LEAST:
        return None
    often = [name for name, count in counts.items() if count >= _OFTEN * max(counts.values())]
    first = next(name for name in names.tolist() if name in often)
    where = np.flatnonzero(names == first)
    this = outer[where]
    # The last one ends with the last of as many ranges as a step has: nothing of the loop stays outside.
    last = outer[min(int(where[-1] + np.median(np.diff(where))), len(outer)) - 1]
    start = ranges.start[this] - 1
    end = np.append(start[1:] - 1, ranges.end[last] + 1)
    took = end - start
    if ranges.gpu_start is not None and ranges.took is not None:
        # The GPU's own clock, where both ends are known by it: the host may run ahead.
        begins = ranges.gpu_start[this]
        last_known = ranges.gpu_start[last] != UNKNOWN_HERE
        ends = np.append(begins[1:], ranges.gpu_start[last] + ranges.took[last] if last_known else UNKNOWN_HERE)
        both = (begins != UNKNOWN_HERE) & (ends != UNKNOWN_HERE)
        took = np.where(both, np.maximum(ends - begins, 1), took)
    unknown = np.full(len(this), UNKNOWN_HERE, dtype=np.int64)
    return {
        "start": start,
        "end": end,
        "process": ranges.process[this],
        "thread": ranges.thread[this],
        "domain": ranges.domain[this],
        "name": np.full(len(this), len(timeline.strings), dtype=ranges.name.dtype),
        "start_end": np.zeros(len(this), dtype=np.bool_),
        "took": _evened_out(took),
        "gpu_start": unknown if ranges.gpu_start is None else ranges.gpu_start[this],
        "memory_peak": unknown,
        "memory_growth": unknown,
    }


def _evened_out(took: Int64s) -> Int64s:
    """Each step as long as those around it on average: workers of a data loader hand over several batches at a time.

    Then one step waits for all of them and the others for nothing, and the median of such steps says nothing. Left as
    they are: the first, in which workers start and code is loaded, and the last, which ends with its stages.
    """
    inner = took[1:-1]
    sums = np.append(0, np.cumsum(inner))
    at = np.arange(len(inner))
    first, last = np.maximum(at - _NEAR, 0), np.minimum(at + _NEAR, len(inner))
    evened = (sums[last] - sums[first]) // np.maximum(last - first, 1)
    return np.concatenate([took[:1], evened, took[-1:]])
