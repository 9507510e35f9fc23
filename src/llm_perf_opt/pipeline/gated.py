"""Which stages hold the planned launches: the annotation in the program can switch the profiler on around those alone.

Pure: a timeline, kernels of it and what the annotation counted go in, a gate or the reason why there is none comes
out. The annotation numbers a stage by its name in the process, so a stage is known in the timeline by its name and
its turn; that holds only where both have seen the same number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from llm_perf_opt.annotate import Gate
from llm_perf_opt.pipeline.choose import PlannedCapture
from llm_perf_opt.profiling.vendor.ncu import NcuOptions
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.stacks import build_stacks


def gate_around(timeline: Timeline, kernels: Int64s, stages: Mapping[str, int], *, stop: bool) -> Gate | str:
    """The innermost stages around some kernels; or why they cannot be gated.

    `stages`: how often the annotation opened each, in the run of the timeline.
    """
    if not stages:
        return "no stage was annotated"
    if len(np.unique(timeline.kernels.process[kernels])) != 1:
        return "the launches are of several processes"
    process = int(timeline.kernels.process[kernels[0]])
    ranges = timeline.ranges
    names = [timeline.strings[n] for n in ranges.name.tolist()]
    default = [i for i, domain in enumerate(timeline.domains) if domain == ""]
    candidates = np.isin(ranges.domain, default) & ~ranges.start_end & (ranges.process == process)
    marked = np.array([i for i in np.flatnonzero(candidates).tolist() if names[i] in stages], dtype=np.int64)
    number: dict[int, int] = {}
    for stage, count in stages.items():
        mine = [i for i in marked.tolist() if names[i] == stage]
        if len(mine) != count:
            return f"the timeline has {len(mine)} ranges {stage!r}, and the annotation opened {count}"
        number |= {i: turn for turn, i in enumerate(sorted(mine, key=lambda i: int(ranges.start[i])), 1)}
    stacks = build_stacks(ranges.start, ranges.end, marked)
    tops = stacks.top_at(timeline.kernels.host_time[kernels])
    if (tops == UNKNOWN).any():
        return "some launches are in no stage"
    windows: dict[str, set[int]] = {}
    for instance in np.unique(stacks.instance[tops]).tolist():
        windows.setdefault(names[instance], set()).add(number[instance])
    return Gate({name: tuple(sorted(numbers)) for name, numbers in sorted(windows.items())}, stop)


def gated(capture: PlannedCapture, gate: Gate) -> PlannedCapture:
    """A capture that profiles in the windows of a gate only, and what to do where that gives nothing."""
    return attrs.evolve(capture, options=_from_start_off(capture), gate=gate, instead=(capture,))


def together(captures: Sequence[PlannedCapture], gate: Gate) -> PlannedCapture:
    """Several captures of chosen instances as one: windows say which instances, so ncu need not count them."""
    first = captures[0]
    expected = [capture.expected for capture in captures]
    return attrs.evolve(
        first,
        name="run",
        options=attrs.evolve(_from_start_off(first), range_filter=None),
        expressions=tuple(dict.fromkeys(e for capture in captures for e in capture.expressions)),
        expected=None if None in expected else sum(count or 0 for count in expected),
        gate=gate,
        instead=tuple(captures),
    )


def sampled_gate(captures: Sequence[PlannedCapture], stages: Mapping[str, int], *, stop: bool) -> Gate | str:
    """The windows of captures that each take some instances of one annotated stage; or why there are none."""
    windows: dict[str, tuple[int, ...]] = {}
    for capture in captures:
        region, taken = capture.instances
        if region is None or region.domain or stages.get(region.name) != region.instances:
            return f"{region.key if region else capture.name} is not a stage that was annotated"
        windows[region.name] = tuple(sorted({*windows.get(region.name, ()), *taken}))
    scopes = {capture.options.nvtx_push_pop_scope for capture in captures}
    return Gate(windows, stop) if len(scopes) == 1 else "some of the stages need the ranges of the whole process"


def _from_start_off(capture: PlannedCapture) -> NcuOptions:
    options = capture.options
    return attrs.evolve(options, extra_args=(*options.extra_args, "--profile-from-start", "off"))
