"""Peaks from ncu's own roofline metrics: what a unit of the chip does in a clock, at the clock it had.

The sections of ncu's roofline charts (`--set roofline`) hold both. These peaks are those of the profiled launches: with
the clocks left alone, of the clock the GPU really ran at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from llm_perf_opt.metrics.catalogue import counter_of
from llm_perf_opt.metrics.hardware.data import PEAKS
from llm_perf_opt.metrics.hardware.user_figures import Overrides
from llm_perf_opt.metrics.quantity import Quantity

_PEAK = ".peak_sustained"
_BANDWIDTHS = {"dram": "bandwidth", "l2": "l2_bandwidth"}  # by the role of a counter of bytes


def peaks_of(results: Iterable[Mapping[str, float]]) -> Overrides:
    """The highest peaks that results have, each a mapping of metrics to values: a GPU at its limit clocks lower."""
    found: dict[str, float] = {}
    for metrics in results:
        for name, per_clock in metrics.items():
            counter = counter_of(name.removesuffix(_PEAK)) if name.endswith(_PEAK) else None
            clock = metrics.get(f"{name.partition('__')[0]}__cycles_elapsed.avg.per_second")
            if counter is not None and clock is not None:
                kind = _BANDWIDTHS.get(counter.role, counter.amount)
                found[kind] = max(found.get(kind, 0.0), per_clock * counter.per_count * clock)
    good = {kind: value for kind, value in found.items() if 0 < value < math.inf}
    dram, l2 = (Quantity(good[kind], "B/s") if kind in good else None for kind in _BANDWIDTHS.values())
    peaks = {kind: Quantity(value, "FLOP/s") for kind, value in good.items() if kind in PEAKS}
    return Overrides(bandwidth=dram, l2_bandwidth=l2, peaks=peaks)
