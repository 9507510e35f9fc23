"""What timing its ranges cost a measured program: where they are many and short, its times are not those it has alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.names import visible

_TOO_MUCH = 0.03  # of a region's time
_OFTEN_NS = 20_000  # from one range to the next: what timing one needs is still in the processor's caches
_HEAVY = 0.1  # part of the time of the longest region: less is not worth a word


def range_costs(timeline: Timeline, regions: Sequence[NCUProfileRegion]) -> Iterator[Diagnosis]:
    """The longest region, of those without others around, that holds so many ranges that they show in its time."""
    known = [process.range_cost_ns for process in timeline.processes if process.range_cost_ns is not None]
    if not known:
        return
    least, most = np.median(np.array(known), axis=0).tolist()
    inside: dict[str | None, int] = {}  # ranges in all instances, by key
    for region in sorted(regions, key=lambda region: -region.depth):
        own = inside.get(region.key, 0) + (region.timing.instances if region.timing is not None else 0)
        inside[region.parent] = inside.get(region.parent, 0) + own
    heaviest = max((region.wall_ns or 0 for region in regions), default=0)
    found = []
    for region in regions:
        wall, count = region.wall_ns or 0, inside.get(region.key, 0)
        each = least if wall < count * _OFTEN_NS else most
        if count * each > _TOO_MUCH * wall and wall >= _HEAVY * heaviest and not region.is_whole_recording:
            found.append((wall, region, count, each))
    for wall, region, count, each in sorted(found, key=lambda one: (-one[0], one[1].depth))[:1]:
        part, takes = shown(Quantity(min(count * each / wall, 1.0), "ratio")), shown(nanoseconds(each))
        yield diagnose("RANGES_COST", region=visible(region.key, 120), count=count, each=takes, share=part)
