"""What the steps of a server take in a recording: to the end of their work, where their ranges end long before it.

An engine that schedules ahead closes the range of a step when it has launched it. Its length on the host is then the
time of no step; the GPU has the step in hand from when it opened, or from when the one before was done, until its own
work is done.
"""

from __future__ import annotations

import numpy as np

from llm_perf_opt.analysis.gaps import Gaps
from llm_perf_opt.analysis.gpu_side import GpuSteps
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.stacks import group_by


def step_times(timeline: Timeline, attribution: Attribution, numbers: Int64s | None, host: Int64s) -> Int64s:
    """`host` (of each range), with the times of steps that end on the GPU alone. `numbers`: as `step_numbers` has them."""
    steps = np.flatnonzero(numbers[:, 0] != UNKNOWN) if numbers is not None else np.zeros(0, dtype=np.int64)
    if not len(steps) or not any(len(work) for work in timeline.work):
        return host
    ranges, gpu = timeline.ranges, GpuSteps(timeline, attribution, _no_gaps)
    found, starts, ends = host.copy(), ranges.start.copy(), ranges.end.copy()
    late = np.zeros(len(host), dtype=np.bool_)
    for region, of_region in group_by(attribution.range_region[steps]):
        mine = steps[of_region]
        for process, of_process in group_by(ranges.process[mine]):
            order, first, last = gpu.bounds(process, mine[of_process], region)
            starts[order], ends[order] = np.maximum(starts[order], first), np.maximum(ends[order], last)
        after = int((ends[mine] - ranges.end[mine]).sum())
        late[mine] = after > verdict_rules().thresholds["returns_early"] * max(int(host[mine].sum()), 1)
    for _, of_process in group_by(ranges.process[steps]):
        own = steps[of_process]
        own = own[np.argsort(ranges.start[own], kind="stable")]
        # What ran before the first of them is of steps that are not in the recording.
        before = np.concatenate([starts[own[:1]], np.maximum.accumulate(ends[own])[:-1]])
        took = ends[own] - np.maximum(ranges.start[own], before)
        found[own] = np.where(late[own] & (took > 0), took, host[own])
    return found


def _no_gaps(process: int) -> Gaps:
    raise AssertionError("only bounds are asked for")
