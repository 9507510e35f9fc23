"""The instances of a region as the GPU sees them: each from the first start to the last end of its own work.

A server or an asynchronous loop closes its ranges long before their work has begun. What a step takes, and how long
the GPU waits between steps, is then to be read from the work alone.
"""

from __future__ import annotations

import numpy as np

from llm_perf_opt.regions.attribution import Attribution, Membership
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline
from llm_perf_opt.regions.idle import GpuSide
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.rollup import host_copies
from llm_perf_opt.regions.table import ROOT

_PAUSE = 1.0  # a pause between two instances belongs to the steps where it is no longer than this many of them


class GpuSteps:
    """Answers for many regions of one timeline."""

    def __init__(self, timeline: Timeline, attribution: Attribution) -> None:
        self._timeline, self._attribution = timeline, attribution
        self._busy: dict[int, BusyTime] = {}
        self._without_copies: dict[int, BusyTime] = {}

    def of(self, process: int, instances: Int64s, region: int) -> GpuSide | None:
        """`instances`: ranges of the region, of one process."""
        start, end = self._spans(process, instances, region)
        if not len(start):
            return None
        steps, windows = BusyTime.of(start, end), _with_pauses(start, end)
        idle, inside = (self._idle(process, one) for one in (windows, steps))
        return GpuSide(
            instances=len(start),
            # Work of others between two steps is no time of theirs.
            time_ns=steps.total + idle - inside,
            idle_ns=idle,
            idle_between_ns=idle - inside,
            step_ns=int(np.median(np.diff(start))) if len(start) > 1 else None,
        )

    def windows(self, process: int, instances: Int64s, region: int) -> BusyTime:
        """The time from the first step to the last, long pauses left out."""
        return _with_pauses(*self._spans(process, instances, region))

    def exposed_copies(self, region: int, processes: set[int] | None) -> int:
        """How long copies of the region between host and device ran while nothing else did, ns. None: of all processes."""
        copies, time = self._timeline.copies, 0
        between = host_copies(self._timeline)
        mine = between[self._members(self._attribution.copies, region, len(copies))[between]]
        for process in set(np.unique(copies.process[mine]).tolist()) & (
            processes or set(copies.process[mine].tolist())
        ):
            own = mine[copies.process[mine] == process]
            ran = BusyTime.of(copies.start[own], copies.end[own])
            if process not in self._without_copies:
                self._without_copies[process] = self._union(process, between)
            time += ran.total - int(self._without_copies[process].within(ran.starts, ran.ends).sum())
        return time

    def _idle(self, process: int, windows: BusyTime) -> int:
        return windows.total - int(self._busy_of(process).within(windows.starts, windows.ends).sum())

    def _spans(self, process: int, instances: Int64s, region: int) -> tuple[Int64s, Int64s]:
        """First start and last end of the work of each instance that has some, in order of time."""
        ranges = self._timeline.ranges
        order = instances[np.argsort(ranges.start[instances], kind="stable")]
        starts, ends = (np.full(len(order), sign * np.iinfo(np.int64).max) for sign in (1, -1))
        for work, membership in zip(self._timeline.work, self._attribution.memberships, strict=True):
            mine = self._members(membership, region, len(work))
            mine &= (work.process == process) & (work.host_time != UNKNOWN)
            which = np.searchsorted(ranges.start[order], work.host_time[mine], side="right") - 1
            known = which >= 0
            np.minimum.at(starts, which[known], work.start[mine][known])
            np.maximum.at(ends, which[known], work.end[mine][known])
        used = ends > starts
        by_time = np.argsort(starts[used], kind="stable")
        return starts[used][by_time], ends[used][by_time]

    def _members(self, membership: Membership, region: int, count: int) -> Bools:
        """Which work a region holds, that of regions inside it too."""
        parents = self._attribution.table.parent
        inside = np.zeros(len(parents) + 1, dtype=np.bool_)  # the last element stands for ROOT
        for number, parent in enumerate(parents):
            inside[number] = number == region or (parent != ROOT and inside[parent])
        held = np.zeros(count, dtype=np.bool_)
        for regions in membership.by_domain:
            held |= inside[regions]
        held[membership.start_end.get(region, np.zeros(0, dtype=np.int64))] = True
        return held

    def _busy_of(self, process: int) -> BusyTime:
        if process not in self._busy:
            self._busy[process] = self._union(process, np.zeros(0, dtype=np.int64))
        return self._busy[process]

    def _union(self, process: int, left_out: Int64s) -> BusyTime:
        """All work of a process but for some copies."""
        parts = []
        for work in self._timeline.work:
            mine = work.process == process
            if work is self._timeline.copies:
                mine[left_out] = False
            parts.append((work.start[mine], work.end[mine]))
        return BusyTime.of(*(np.concatenate(side) for side in zip(*parts, strict=True)))


def _with_pauses(start: Int64s, end: Int64s) -> BusyTime:
    """The steps and the short pauses between them."""
    if not len(start):
        return BusyTime.of(start, end)
    longest = int(_PAUSE * np.median(end - start))
    joined = BusyTime.of(start, end + longest)
    # Each run of steps ends with the last of its steps, not with a pause.
    return BusyTime.of(joined.starts, joined.ends - longest)
