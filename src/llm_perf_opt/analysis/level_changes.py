"""Regions whose instances take another time from one of them on: no warm-up, and one median for both would mislead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.names import visible

_HEAVY = 0.1  # part of the time of the longest region: less is not worth a word


def level_changes(regions: Sequence[NCUProfileRegion]) -> Iterator[Diagnosis]:
    """The longest such region: what is inside it, or around, mostly changes with it."""
    timings = [(region, region.timing) for region in regions if region.timing is not None]
    longest = max((timing.steady.total_ns for _, timing in timings), default=0)
    changed = [(r, t) for r, t in timings if t.level_change and t.steady.total_ns >= _HEAVY * longest]
    if not changed:
        return
    region, timing = max(changed, key=lambda found: found[1].steady.total_ns)
    low, high = (shown(nanoseconds(value or 0)) for value in (timing.steady.p10_ns, timing.steady.p90_ns))
    first = (timing.level_change or 0) + 1
    yield diagnose("LEVEL_CHANGE", region=visible(region.key, 120), first=first, low=low, high=high)
