"""What an instance of a region uses besides time: energy and memory, where the program was measured by itself."""

from __future__ import annotations

import numpy as np
from attrs import define

from llm_perf_opt.analysis.energy import Energy
from llm_perf_opt.regions.columns import UNKNOWN_HERE, Int64s, Ranges


@define(frozen=True)
class Use:
    """Per steady instance; None where it is not known."""

    energy_j: float | None = None
    energy_interval: list[float] | None = None
    memory_peak: int | None = None  # of the instance that needed most
    memory_growth: int | None = None  # on average: caches may grow in blocks


def use_of(ranges: Ranges, region: int, steady: Int64s, energy: Energy | None) -> Use:
    """Of the steady instances of a region."""
    joules, width = energy.of(region, steady) if energy is not None else (None, None)
    peak, growth = _known(ranges.memory_peak, steady), _known(ranges.memory_growth, steady)
    return Use(
        energy_j=joules,
        energy_interval=None if joules is None or width is None else [joules - width, joules + width],
        memory_peak=int(peak.max()) if len(peak) else None,
        memory_growth=round(float(growth.mean())) if len(growth) else None,
    )


def _known(column: Int64s | None, chosen: Int64s) -> Int64s:
    if column is None:
        return np.zeros(0, dtype=np.int64)
    values: Int64s = column[chosen]
    known: Int64s = values[values != UNKNOWN_HERE]
    return known
