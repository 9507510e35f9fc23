"""Hidden ranges of ours that capture windows are set at; they are no part of the program, and reports leave them out.

See `inject/payload/_llm_perf_annotate/marker_ranges.py`, which makes them.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from llm_perf_opt.regions.columns import Timeline

PREFIX = "llm-perf:"


def without_marker_ranges(timeline: Timeline) -> Timeline:
    """The timeline with the ranges of the program alone."""
    # The last stands for UNKNOWN: a name that the recording does not have.
    ours = np.array([*(name.startswith(PREFIX) for name in timeline.strings), False], dtype=np.bool_)
    if not ours.any():
        return timeline
    return evolve(timeline, ranges=timeline.ranges.chosen(~ours[timeline.ranges.name]))


def for_report(timeline: Timeline, source: str, *, launch_config: bool) -> Timeline:
    """A timeline that was read with everything, as a report of its file reads it.

    Columns are shared, and nobody writes to those; what reports add to is copied.
    """
    return evolve(
        without_marker_ranges(timeline),
        source=source,
        kernels=timeline.kernels if launch_config else evolve(timeline.kernels, config=None),
        processes=list(timeline.processes),
        environment=dict(timeline.environment),
        diagnostics=[evolve(diagnosis) for diagnosis in timeline.diagnostics],
        gpu_facts={device: dict(facts) for device, facts in timeline.gpu_facts.items()},
    )
