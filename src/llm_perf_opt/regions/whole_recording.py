"""A recording without ranges is one stage, `whole recording`: a range of ours around all the work of each process.

No thread opened it (`thread` is UNKNOWN), so it holds every launch of its process, also those whose host call was not
recorded. Everything downstream (roll-up, join, verdicts, planning) meets a region like any other.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.regions.columns import UNKNOWN, Ranges, Timeline
from llm_perf_opt.regions.table import WHOLE


def with_whole_recording(timeline: Timeline) -> Timeline:
    """The timeline with such a range for each process that used the GPU, where it has no ranges; and a word on it."""
    if len(timeline.ranges):
        return timeline
    process = np.unique(np.concatenate([work.process for work in timeline.work]))
    if not len(process):
        name = "NO_RANGES.no_work_in_trace" if timeline.kind == "kineto" else "NO_RANGES.no_work"
        nothing = diagnose(name, source=timeline.source)
        return evolve(timeline, diagnostics=[*timeline.diagnostics, nothing])
    start = np.full(len(process), np.iinfo(np.int64).max, dtype=np.int64)
    end = np.full(len(process), np.iinfo(np.int64).min, dtype=np.int64)
    for work in timeline.work:
        which = np.searchsorted(process, work.process)
        np.minimum.at(start, which, work.start)
        np.maximum.at(end, which, work.end)
    alike = np.zeros(len(process), dtype=np.int32)
    ranges = Ranges(
        start=start,
        end=end,
        process=process.astype(np.int32),
        thread=alike + UNKNOWN,
        domain=alike + timeline.domains.index(""),
        name=alike + len(timeline.strings),
        start_end=alike > 0,
    )
    name = "NO_RANGES.in_trace" if timeline.kind == "kineto" else "NO_RANGES"
    return evolve(
        timeline,
        strings=[*timeline.strings, WHOLE],
        ranges=ranges,
        diagnostics=[*timeline.diagnostics, diagnose(name, source=timeline.source)],
    )
