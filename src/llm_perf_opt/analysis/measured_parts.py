"""A region whose parts were measured as wholes: ncu's range modes measure one level of nested ranges only.

Of ranges inside each other they measure the outermost, so `generate` is left without counters where its
stages were measured. What its parts did is what it did, as far as they hold its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_perf_opt.regions.model import MetricValue

# A sum over less than this part of the region's GPU time says nothing about the region.
LEAST_HELD = 0.5


def sum_of_parts(
    parts: Sequence[Mapping[str, MetricValue]], times: Sequence[int], whole_time: int
) -> dict[str, MetricValue]:
    """Sums over parts that do not overlap. `times`: GPU time of each part; `whole_time`: of the region."""
    summed: dict[str, MetricValue] = {}
    if not whole_time:
        return summed
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [(part[name], time) for part, time in zip(parts, times, strict=True) if name in part]
        held = sum(time * (1.0 if value.coverage is None else value.coverage) for value, time in values) / whole_time
        first = values[0][0]
        # Only sums add up: the occupancy of a region is not that of its parts together.
        if first.rollup == "sum" and held >= LEAST_HELD:
            sources = {value.source for value, _ in values}
            summed[name] = MetricValue(
                value=sum(value.value for value, _ in values),
                unit=first.unit,
                rollup="sum",
                source=sources.pop() if len(sources) == 1 else "extrapolated",
                samples=sum(value.samples for value, _ in values),
                launches=sum(value.launches or 0 for value, _ in values),
                coverage=min(held, 1.0),
            )
    return summed
