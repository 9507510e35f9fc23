"""What lies between and outside the steps of a server: the scheduler's time, and work of the GPU that is in no step.

From its first step to its last: the start of a server is no part of it. A pause in which it had no requests is none of
the engine's: gaps far longer than most are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.quantity import nanoseconds, percent, shown
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.names import short_kernel_name, visible
from llm_perf_opt.regions.stacks import group_by

_ENGINE = ("schedule", "update", "sample")  # ranges of the annotation between steps
_PAUSE = 10.0  # times the median gap
_LEAST = 0.01  # of the GPU's time: less outside the steps is not worth a word
_IDLE = 0.5  # of the time between steps, from which on it is worth a word
_NAMED = 3


def engine_diagnoses(timeline: Timeline, numbers: Int64s | None) -> Iterator[Diagnosis]:
    """`numbers`: of each range, as `step_numbers` has them."""
    steps = np.flatnonzero(numbers[:, 0] != UNKNOWN) if numbers is not None else np.zeros(0, dtype=np.int64)
    if len(steps) < 2 or not any(len(work) for work in timeline.work):
        return
    yield from _between(timeline, steps)
    yield from _outside(timeline, steps)


def _between(timeline: Timeline, steps: Int64s) -> Iterator[Diagnosis]:
    ranges = timeline.ranges
    gaps, idle, parts = [], 0, dict.fromkeys(_ENGINE, 0)
    for process, mine in group_by(ranges.process[steps]):
        own = steps[mine]
        own = own[np.argsort(ranges.start[own], kind="stable")]
        start, end = ranges.start[own][1:], np.maximum.accumulate(ranges.end[own])[:-1]
        length = start - end
        kept = (length > 0) & (length <= _PAUSE * max(float(np.median(length)) if len(length) else 0.0, 1.0))
        start, end = start[kept], end[kept]
        gaps.append(length[kept])
        busy = _busy(timeline, int(process))
        idle += int((length[kept] - busy.within(end, start)).sum())
        for name in _ENGINE:
            number = timeline.strings.index(name) if name in timeline.strings else UNKNOWN
            which = np.flatnonzero((ranges.name == number) & (ranges.process == process))
            parts[name] += int(BusyTime.of(ranges.start[which], ranges.end[which]).within(end, start).sum())
    all_gaps = np.concatenate(gaps)
    total, count = int(all_gaps.sum()), len(all_gaps)
    if idle < _IDLE * max(total, 1):  # the GPU goes on with what was launched: nothing waits for the engine
        return
    named = [f"{name} {shown(nanoseconds(time / count))}" for name, time in parts.items() if time]
    other = shown(nanoseconds(max(total - sum(parts.values()), 0) / count))
    average = f", on average {', '.join(named)}, other work {other}" if named else ""
    yield diagnose(
        "BETWEEN_STEPS",
        median=shown(nanoseconds(float(np.median(all_gaps)))),
        parts=average,
        idle=percent(idle / total, ".0"),
    )


def _busy(timeline: Timeline, process: int) -> BusyTime:
    own = [(work.start[mine], work.end[mine]) for work in timeline.work if (mine := work.process == process).any()]
    nothing = np.zeros(0, dtype=np.int64)
    return BusyTime.of(
        np.concatenate([nothing, *(start for start, _ in own)]), np.concatenate([nothing, *(end for _, end in own)])
    )


def _outside(timeline: Timeline, steps: Int64s) -> Iterator[Diagnosis]:
    ranges = timeline.ranges
    times: dict[str, int] = {}
    whole = 0
    for process, mine in group_by(ranges.process[steps]):
        start, end = ranges.start[steps[mine]], ranges.end[steps[mine]]
        inside = BusyTime.of(start, end)
        for work in timeline.work:
            since = np.where(work.host_time == UNKNOWN, work.start, work.host_time)
            own = np.flatnonzero((work.process == process) & (since >= start.min()) & (since < end.max()))
            length = work.end[own] - work.start[own]
            whole += int(length.sum())
            out = inside.within(since[own], since[own] + 1) == 0
            for name, part in group_by(work.name[own[out]]):
                label = visible(short_kernel_name(timeline.strings[name]), 60)
                times[label] = times.get(label, 0) + int(length[out][part].sum())
    total = sum(times.values())
    if not whole or total < _LEAST * whole:
        return
    longest = sorted(times.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {percent(time / whole)}" for name, time in longest[:_NAMED])
    more = f", and {len(longest) - _NAMED} more" if len(longest) > _NAMED else ""
    yield diagnose("OUTSIDE_STEPS", share=percent(total / whole), named=named + more)
