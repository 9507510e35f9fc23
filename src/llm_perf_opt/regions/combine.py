"""Roll-ups of several recordings as one: everything in them adds up, so only one recording need be in memory.

Each recording has its own table of regions and its own names; the numbers of both are translated into those of
one common table as the recordings come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
from attrs import Factory, define, evolve, fields

from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.kernel_rows import KernelRows, merged_rows
from llm_perf_opt.regions.rollup import GpuWork, RolledUp, Sums
from llm_perf_opt.regions.table import ROOT, RegionTable

_ADDED = (
    "instances",
    "range_instances",
    "wall",
    "idle",
    "busy",
    "collective",
    "exposed",
    "adopted",
    "graph_kernels",
    "graph_replays",
)


@define(eq=False)
class CommonNames:
    """One table of regions and one list of kernel names for all recordings."""

    table: RegionTable = Factory(RegionTable)
    strings: list[str] = Factory(list)
    _labels: dict[str, int] = Factory(dict)

    def regions_of(self, other: RegionTable) -> Int64s:
        """The common number of each region of another table."""
        numbers: list[int] = []
        self.table.pools |= other.pools
        self.table.operators |= other.operators
        self.table.held = min(self.table.held, other.held)
        for number in range(len(other)):
            parent = other.parent[number]  # parents come first
            above = ROOT if parent == ROOT else numbers[parent]
            if number in other.whole:
                numbers.append(self.table.intern_whole())
                continue
            numbers.append(self.table.intern(other.domain[number], other.start_end[number], above, other.name[number]))
        return np.array(numbers, dtype=np.int64)

    def labels_of(self, strings: list[str], used: Int64s) -> Int64s:
        """The common number of each name that is used; others have none."""
        numbers = np.full(len(strings), -1, dtype=np.int64)
        for old in used.tolist():
            new = self._labels.setdefault(strings[old], len(self.strings))
            if new == len(self.strings):
                self.strings.append(strings[old])
            numbers[old] = new
        return numbers


@define(eq=False)
class Translated:
    """A roll-up with the common numbers of its regions; its kernel rows speak of them already."""

    rolled: RolledUp
    regions: Int64s

    @staticmethod
    def of(rolled: RolledUp, regions: Int64s, labels: Int64s) -> Translated:
        def renamed(rows: KernelRows) -> KernelRows:
            region = regions[rows.region] if len(rows.region) else rows.region
            return evolve(rows, region=region, label=labels[rows.label])

        levels = [renamed(rows) for rows in rolled.kernel_rows]
        whole = evolve(rolled.all_kernels, label=labels[rolled.all_kernels.label])
        return Translated(evolve(rolled, kernel_rows=levels, all_kernels=whole), regions)


def combined(parts: Sequence[Translated], size: int) -> RolledUp:
    """The sum of roll-ups, over the `size` regions of the common table."""

    def added(pick: Callable[[RolledUp], Int64s]) -> Int64s:
        total = np.zeros(size, dtype=np.int64)
        for part in parts:
            np.add.at(total, part.regions, pick(part.rolled))  # pooled regions may fall together
        return total

    def work(side: str) -> GpuWork:
        return GpuWork(
            *(
                Sums(*(added(attrgetter(f"{side}.{kind.name}.{column.name}")) for column in fields(Sums)))
                for kind in fields(GpuWork)
            )
        )

    depth = max((len(part.rolled.kernel_rows) for part in parts), default=0)
    levels = [
        merged_rows([part.rolled.kernel_rows[level] for part in parts if level < len(part.rolled.kernel_rows)])
        for level in range(depth)
    ]
    present = np.zeros(size, dtype=np.bool_)
    for part in parts:
        np.logical_or.at(present, part.regions, part.rolled.present)
    return RolledUp(
        exclusive=work("exclusive"),
        inclusive=work("inclusive"),
        **{name: added(attrgetter(name)) for name in _ADDED},
        kernel_rows=levels,
        all_kernels=merged_rows([part.rolled.all_kernels for part in parts]),
        # Devices of different recordings are not compared: their clocks need not agree.
        scope_busy=sum(part.rolled.scope_busy for part in parts),
        present=present,
    )
