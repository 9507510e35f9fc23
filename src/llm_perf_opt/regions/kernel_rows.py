"""Kernels by region, label (a name or a signature) and device: the rows that lists of kernels are made of."""

from __future__ import annotations

import numpy as np
from attrs import define, evolve

from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.blocks import blocks_of
from llm_perf_opt.regions.columns import Int32s, Int64s, Work
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT, climb


@define(eq=False)
class KernelRows:
    """Kernels grouped by region, label (name or signature) and device: one row each."""

    region: Int64s
    label: Int64s
    device: Int64s
    calls: Int64s
    total: Int64s
    shortest: Int64s
    longest: Int64s

    @property
    def columns(self) -> tuple[Int64s, ...]:
        return self.region, self.label, self.device, self.calls, self.total, self.shortest, self.longest

    def lifted(self, regions: Int64s) -> KernelRows:
        """The same rows counted to other regions, equal rows merged. ROOT rows are dropped."""
        keep = regions != ROOT
        return _merge_rows(regions[keep], *(column[keep] for column in self.columns[1:]))


def rows_of_all(kernels: Work, chosen: Int64s, labels: Int64s | Int32s) -> KernelRows:
    """The chosen kernels by label and device, whatever their region: that column is 0."""
    return _rows_by_block(kernels, None, chosen, labels)


def exclusive_rows(
    kernels: Work, attribution: Attribution, chosen: Int64s, labels: Int64s | Int32s, every: KernelRows | None = None
) -> KernelRows:
    """The chosen kernels by region, label and device, each counted to the regions it is in itself.

    `every`: their `rows_of_all`, where somebody has them.
    """
    membership = attribution.kernels
    parts = [_rows_by_block(kernels, regions, chosen, labels) for regions in membership.by_domain]
    if membership.start_end:
        region, members = membership.start_end_members(chosen)
        parts.append(_rows_of(kernels, members, region, labels))
    if membership.whole is not None:
        every = every or rows_of_all(kernels, chosen, labels)
        parts.append(evolve(every, region=np.full(len(every.region), membership.whole, dtype=np.int64)))
    return _one_behind_the_other(parts)


def lift(rows: KernelRows, attribution: Attribution) -> list[KernelRows]:
    """Inclusive rows, one table per nesting level; start/end regions are on level 0."""
    parent, depth = attribution.table.arrays()
    levels: list[KernelRows] = []
    current = rows.region
    for level in range(int(depth.max()) if len(depth) else -1, -1, -1):
        current = climb(current, parent, depth, level)
        here = np.where(depth[current] == level, current, ROOT) if len(current) else current
        levels.append(rows.lifted(here))
    levels.reverse()
    return levels


def _rows_by_block(kernels: Work, regions: Int64s | None, chosen: Int64s, labels: Int64s | Int32s) -> KernelRows:
    """Rows of the chosen kernels by the region of each; None: all count to region 0."""
    found = []
    for which in blocks_of(chosen, len(kernels)):
        of_block = np.zeros(1, dtype=np.int64) if regions is None else regions[which]
        found.append(_rows_of(kernels, which, of_block, labels))
    return merged_rows(found or [_rows_of(kernels, chosen, chosen, labels)])


def _rows_of(kernels: Work, which: slice | Int64s, regions: Int64s, labels: Int64s | Int32s) -> KernelRows:
    """Rows of some kernels, each counted to its region; those of ROOT are left out."""
    duration = kernels.end[which] - kernels.start[which]
    region = np.broadcast_to(regions.astype(np.int64, copy=False), len(duration))
    columns = [region, labels[which].astype(np.int64), kernels.device[which].astype(np.int64), duration]
    inside = region != ROOT
    if not inside.all():
        columns = [column[inside] for column in columns]
    region, label, device, duration = columns
    return _merge_rows(region, label, device, None, duration, duration, duration)


def _one_behind_the_other(parts: list[KernelRows]) -> KernelRows:
    return KernelRows(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))


def _merge_rows(
    region: Int64s,
    label: Int64s,
    device: Int64s,
    calls: Int64s | None,
    total: Int64s,
    shortest: Int64s,
    longest: Int64s,
) -> KernelRows:
    """Equal rows added up. `calls`: None where each row is one."""
    if len(region) == 0:
        return KernelRows(region, label, device, region, total, shortest, longest)
    labels, low = int(label.max()) + 1, int(device.min())
    devices = int(device.max()) - low + 1
    key = region * labels + label
    if devices > 1:
        key = key * devices + (device - low)
    size = (int(region.max()) + 1) * labels * devices
    # Few possible keys: count into bins. Many: sort.
    if size <= len(key) + 65536:
        which = key
        count = np.bincount(which, minlength=size)
        used = seen = np.flatnonzero(count)
    else:
        seen, which = np.unique(key, return_inverse=True)
        which, used = which.reshape(-1), np.arange(len(seen))
        count = np.bincount(which, minlength=len(seen))
    rows = len(count)
    minima = np.full(rows, np.iinfo(np.int64).max)
    np.minimum.at(minima, which, shortest)
    maxima = np.zeros(rows, dtype=np.int64)
    np.maximum.at(maxima, which, longest)
    return KernelRows(
        region=seen // devices // labels,
        label=seen // devices % labels,
        device=seen % devices + low,
        calls=(count if calls is None else np.bincount(which, weights=calls, minlength=rows))[used].astype(np.int64),
        total=np.bincount(which, weights=total, minlength=rows)[used].astype(np.int64),
        shortest=minima[used],
        longest=maxima[used],
    )


def merged_rows(tables: list[KernelRows]) -> KernelRows:
    """Several tables of rows as one, equal rows added up."""
    if len(tables) == 1:
        return tables[0]
    return _merge_rows(*_one_behind_the_other(tables).columns)


def rows_per_region(levels: list[KernelRows]) -> dict[int, tuple[KernelRows, Int64s]]:
    """For each region its table of rows and which of them are its own."""
    return {region: (rows, part) for rows in levels for region, part in group_by(rows.region)}
