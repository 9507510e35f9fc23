"""Ranges that were made for a gate to be set at, and are no part of the program: reports leave them out.

See `inject/payload/_llm_perf_annotate/waymarks.py`, which makes them.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve, fields

from llm_perf_opt.regions.columns import Ranges, Timeline

PREFIX = "llm-perf:"


def without_waymarks(timeline: Timeline) -> Timeline:
    """The timeline with the ranges of the program alone."""
    # The last stands for UNKNOWN: a name that the recording does not have.
    ours = np.array([*(name.startswith(PREFIX) for name in timeline.strings), False], dtype=np.bool_)
    if not ours.any():
        return timeline
    kept = ~ours[timeline.ranges.name]
    columns = {column.name: getattr(timeline.ranges, column.name)[kept] for column in fields(Ranges)}
    return evolve(timeline, ranges=Ranges(**columns))
