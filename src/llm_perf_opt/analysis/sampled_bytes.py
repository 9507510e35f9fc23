"""Bytes of regions from samples of the GPU alone: of a timeline without counters, and of each rank of a job.

Where there are counters of kernels too, the two are brought in line (`fitted`). Here a region has a value only if it was
measured: work that nobody sampled, or that cannot be told from other work, leaves it without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.sampled_traffic import Moved, add_moved, moved_by_others, moved_in_regions
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.model import MetricValue
from llm_perf_opt.regions.rollup import RolledUp, Selection
from llm_perf_opt.regions.table import ROOT, RegionTable
from llm_perf_opt.regions.traffic import SOURCE

Values = dict[str, MetricValue]


@define(eq=False)
class SampledBytes:
    """What the regions of a scope moved; of several recordings together, the sum."""

    moved: dict[int, dict[str, Moved]] = Factory(dict)
    unknown: set[int] = Factory(set)  # regions with work that was not sampled

    @staticmethod
    def of(
        timeline: Timeline,
        attribution: Attribution,
        selection: Selection,
        rolled: RolledUp,
        wanted: list[bool] | None = None,
    ) -> SampledBytes:
        """`rolled`: the same selection, rolled up. `wanted`: regions to look at; None: all."""
        moved = {}
        if timeline.sampled_gpus:
            moved = moved_in_regions(timeline, attribution, selection, wanted or [True] * len(attribution.table))
        return SampledBytes(moved, set(np.flatnonzero(_works(rolled)).tolist()) - moved.keys())

    def renumbered(self, regions: Int64s) -> SampledBytes:
        """The same by the numbers of a common table, where several regions may have become one."""
        found = SampledBytes({}, {int(regions[number]) for number in self.unknown})
        for number, counters in self.moved.items():
            add_moved(found.moved.setdefault(int(regions[number]), {}), counters)
        return found

    @staticmethod
    def together(parts: Sequence[SampledBytes]) -> SampledBytes:
        found = SampledBytes({}, set().union(*(part.unknown for part in parts)))
        for part in parts:
            for number, counters in part.moved.items():
                add_moved(found.moved.setdefault(number, {}), counters)
        return found

    def dropped(self) -> SampledBytes:
        """Where the samples turn out to be of others' work, too."""
        return SampledBytes({}, self.unknown | self.moved.keys())

    def values(self, rolled: RolledUp) -> dict[int, Values]:
        """Of each region, the counters that were measured well enough."""
        launches = rolled.inclusive.kernels.count
        found = {
            number: {
                name: measured(known, int(launches[number])) for name, known in counters.items() if known.is_measured()
            }
            for number, counters in self.moved.items()
            if number not in self.unknown
        }
        return {number: values for number, values in found.items() if values}


def measured(known: Moved, launches: int) -> MetricValue:
    """The bytes of a region as a value of its counter."""
    spread = known.uncertain / known.value
    return MetricValue(known.value, "byte", "sum", SOURCE, known.samples, launches, 1.0, spread)


def own_values(values: Mapping[int, Values], table: RegionTable, rolled: RolledUp) -> dict[int, Values]:
    """What is in no region below: of regions without work below them, and where all that is below was measured, too."""
    works = _works(rolled)
    below: dict[int, list[int]] = {}
    for number, parent in enumerate(table.parent):
        if parent != ROOT and works[number]:
            below.setdefault(parent, []).append(number)
    found: dict[int, Values] = {}
    for number, own in values.items():
        for name, value in own.items():
            parts = [values.get(part, {}).get(name) for part in below.get(number, [])]
            known = [part for part in parts if part is not None]
            if not parts:
                found.setdefault(number, {})[name] = value
            elif len(known) == len(parts) and (rest := value.value - sum(part.value for part in known)) > 0:
                unsure = sum(one.value * (one.spread or 0.0) for one in (value, *known))
                launches = int(rolled.exclusive.kernels.count[number])
                found.setdefault(number, {})[name] = MetricValue(
                    rest, value.unit, value.rollup, SOURCE, value.samples, launches, 1.0, unsure / rest
                )
    return found


def _works(rolled: RolledUp) -> Int64s:
    work = rolled.inclusive
    found: Int64s = work.kernels.count + work.copies.count + work.graphs.count
    return found


def used_by_others(timeline: Timeline) -> list[Diagnosis]:
    """GPUs that move much while nothing of the recording runs: what was sampled there is not the program's alone."""
    return [
        diagnose("GPU_USED_BY_OTHERS", device=device, gigabytes=rate / 1e9)
        for device, rate in moved_by_others(timeline).items()
    ]
