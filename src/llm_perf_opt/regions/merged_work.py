"""All GPU work of a process in the order it began, whatever its kind: found once for everybody who asks."""

from __future__ import annotations

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.intervals import BusyTime, running


@define(eq=False)
class MergedWork:
    """Kernels, copies and whole graphs of a process."""

    start: Int64s
    end: Int64s
    order: Int64s | None  # which of all its work, one kind behind the other; None: they are in order
    firsts: Int64s  # those that begin when nothing runs
    busy: BusyTime  # when something runs


def merged_work(timeline: Timeline, process: int) -> MergedWork:
    """The same object each time."""
    if process not in timeline.merged:
        timeline.merged[process] = _merge(timeline, process)
    found: MergedWork = timeline.merged[process]
    return found


def merge_all(timeline: Timeline) -> None:
    """That of all processes, before anybody asks."""
    for process in range(len(timeline.processes)):
        merged_work(timeline, process)


def _merge(timeline: Timeline, process: int) -> MergedWork:
    parts = [(work.start, work.end) for work in timeline.work]
    if len(timeline.processes) > 1:
        own = [work.process == process for work in timeline.work]
        parts = [(start[mine], end[mine]) for (start, end), mine in zip(parts, own, strict=True)]
    some = [part for part in parts if len(part[0])] or parts[:1]
    start, end = some[0] if len(some) == 1 else (np.concatenate(side) for side in zip(*some, strict=True))
    order = None
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if not len(start):
        return MergedWork(start, end, None, np.zeros(0, dtype=np.int64), BusyTime.of(start, end))
    reach = np.maximum.accumulate(end)
    firsts = np.concatenate([[0], np.flatnonzero(start[1:] > reach[:-1]) + 1])
    starts, ends = start[firsts], reach[np.append(firsts[1:] - 1, len(end) - 1)]
    return MergedWork(start, end, order, firsts, BusyTime(starts, ends, running(ends - starts)))
