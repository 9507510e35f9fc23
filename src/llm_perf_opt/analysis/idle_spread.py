"""How much the idle time of each cause differs from instance to instance: what the interval of its gain comes from."""

from __future__ import annotations

from typing import Literal

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.analysis.gap_sums import GapSums
from llm_perf_opt.analysis.gaps import CAUSES
from llm_perf_opt.regions.columns import Int64s

_EDGES: tuple[tuple[float, Literal["lower", "higher"]], ...] = ((0.1, "lower"), (0.9, "higher"))


@define(frozen=True, eq=False)
class Windows:
    """The instances of a region, in order, none in another."""

    starts: Int64s
    ends: Int64s

    @staticmethod
    def of(starts: Int64s, ends: Int64s) -> Windows | None:
        """None where they overlap."""
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        return None if (starts[1:] < ends[:-1]).any() else Windows(starts, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def overlaps(self, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Instance, interval and the time they share, for each pair that shares some. The intervals are disjoint, in order."""
        first = np.searchsorted(ends, self.starts, side="right")
        counts = np.maximum(np.searchsorted(starts, self.ends, side="left") - first, 0)
        which = np.repeat(np.arange(len(self)), counts)
        at = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        shared = np.minimum(self.ends[which], ends[at]) - np.maximum(self.starts[which], starts[at])
        return which, at, np.maximum(shared, 0)


@define(frozen=True, eq=False)
class IdleParts:
    """The idle time of gaps that have a name, divided; one element for each part."""

    gap: Int64s  # which of the gaps
    cause: Int64s
    label: Int64s  # an index into the strings of the timeline; UNKNOWN: without a name
    time: Int64s


def spread_of(sums: GapSums, instances: Windows | None, gaps: Int64s, parts: IdleParts) -> dict[str, list[float]]:
    """See `IdleTime.spread`. `gaps`: those with a name, which `parts` are of."""
    if instances is None or len(instances) < 2:
        return {}
    times = dict[int, NDArray[np.float64]]()
    for cause, _, spent in sums.short_of_each(instances.starts, instances.ends):
        times[cause] = spent.astype(np.float64)
    which, gap, shared = instances.overlaps(sums.gaps.start[gaps], sums.gaps.end[gaps])
    whole = np.bincount(parts.gap, weights=parts.time, minlength=len(gaps))
    for cause in np.unique(parts.cause).tolist():
        mine = parts.cause == cause
        part = np.bincount(parts.gap[mine], weights=parts.time[mine], minlength=len(gaps)) / np.maximum(whole, 1)
        of_each = np.bincount(which, weights=shared * part[gap], minlength=len(instances))
        times[cause] = times[cause] + of_each if cause in times else of_each.astype(np.float64)
    every = {CAUSES[cause]: spent for cause, spent in times.items()} | {"": sum(times.values(), start=np.zeros(1))}
    found = {}
    for name, of_instance in every.items():
        mean = float(of_instance.mean())
        if mean > 0:
            low, high = (float(np.quantile(of_instance, at, method=how)) / mean for at, how in _EDGES)
            found[name] = [min(low, 1.0), max(high, 1.0)]
    return found
