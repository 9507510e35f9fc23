"""From the columns of a scope to its regions: the place where a report's objects begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import define, evolve, field

from llm_perf_opt.analysis.selected import kept_regions, kernel_record, ncu_expressions
from llm_perf_opt.analysis.timeline_counters import RegionMetrics
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.regions.budget import affordable
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.copy_work import MemoryWork
from llm_perf_opt.regions.kernel_rows import KernelRows, rows_per_region
from llm_perf_opt.regions.model import KernelRecord, NCUProfileRegion, RegionStats, Scope, ScopeTotals
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.ranking import with_parents
from llm_perf_opt.regions.rollup import GpuWork, RolledUp
from llm_perf_opt.regions.table import ROOT, RegionTable

KernelList = tuple[list[KernelRecord], int]  # and how many rows were left out


@define(eq=False)
class ScopeBuilder:
    """Builds scopes over one table of regions."""

    table: RegionTable
    strings: list[str]  # names of kernels, by label
    region_filter: RegionFilter
    saw_gpu: bool  # the recording has GPU work at all: without, its times are unknown, not 0
    seen_by_ncu: set[int]  # regions that ncu can select: NVTX ranges that are open when something is launched
    kept: list[bool] = field(init=False)
    _order: list[int] = field(init=False)
    _expressions: list[str] = field(init=False)
    _pooled_names: int = field(init=False, default=0)  # the most in one list
    # Kernels of the scope built last, by region, None being all: a process alone on its GPU has three scopes alike.
    _listed: tuple[RolledUp, int | None, dict[int | None, KernelList]] | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.kept = kept_regions(self.table, self.region_filter)
        self._order = self.table.in_tree_order()
        self._expressions = ncu_expressions(self.table)
        for number in range(len(self.table)):
            if number not in self.seen_by_ncu:
                self._expressions[number] = ""

    def present(self, rolled: RolledUp) -> list[int]:
        """Numbers of the kept regions with something in them, in the order of the tree."""
        return [number for number in self._order if rolled.present[number] and self.kept[number]]

    def existing(self, rolled: RolledUp) -> list[str]:
        """Keys of all regions with something in them, kept or not."""
        return [self.table.key(number) for number in self._order if rolled.present[number]]

    def scope(
        self,
        name: str,
        rolled: RolledUp,
        totals: ScopeTotals,
        *,
        process_id: int | None = None,
        device: int | None = None,
        metrics: dict[int, RegionMetrics] | None = None,
        most_regions: int | None = None,
        most_kernels: int | None = None,
    ) -> Scope:
        """One scope. `most_regions`: only so many, the heaviest; `most_kernels`: listed a region, the longest."""
        rows = rows_per_region(rolled.kernel_rows)
        numbers = self.present(rolled)
        if most_regions is not None and len(numbers) > most_regions:
            numbers = self._heaviest(numbers, rolled, most_regions)
        counts = np.array([len(rows[n][1]) if n in rows else 0 for n in numbers], dtype=np.int64)
        keys = np.array([len(self.table.key(n)) for n in numbers], dtype=np.int64)
        most_kernels = _affordable(counts, keys, most_kernels)
        if self._listed is None or self._listed[0] is not rolled or self._listed[1] != most_kernels:
            self._listed = (rolled, most_kernels, {})
        listed = self._listed[2]
        regions = []
        for number in numbers:
            if number not in listed:
                listed[number] = self._kernel_records(*rows[number], most_kernels) if number in rows else ([], 0)
            region = self._region(number, rolled)
            region.kernels, region.kernels_omitted = list(listed[number][0]), listed[number][1]
            region.device, region.process_id = device, process_id
            if metrics is not None and (own := metrics.get(number)) is not None:
                region.inclusive.metrics = own.inclusive
                region.exclusive.metrics = own.exclusive
                region.rules = own.rules
                region.sections = own.sections
            regions.append(region)
        if None not in listed:
            listed[None] = self._kernel_records(rolled.all_kernels, np.arange(len(rolled.all_kernels.label)))
        return Scope(name, totals, regions, list(listed[None][0]))

    def diagnoses(self) -> list[Diagnosis]:
        """What is to be said of the lists of the scopes built so far."""
        pooled = self._pooled_names
        return [diagnose("KERNELS_POOLED", kernels=pooled + _MOST_NAMES, listed=_MOST_NAMES)] if pooled else []

    def _heaviest(self, numbers: list[int], rolled: RolledUp, most: int) -> list[int]:
        """Those with the most time, each with the regions around it."""
        weight = np.maximum(np.maximum(rolled.wall, rolled.busy), rolled.inclusive.kernels.time)
        parents = [None if parent == ROOT else parent for parent in self.table.parent]
        chosen = with_parents(sorted(numbers, key=lambda n: -int(weight[n])), parents.__getitem__, most)
        return [number for number in numbers if number in chosen]

    def _region(self, number: int, rolled: RolledUp) -> NCUProfileRegion:
        table = self.table
        parent = table.parent[number]
        has_ranges = bool(rolled.range_instances[number])
        region = NCUProfileRegion(
            name=table.name[number],
            domain=table.domain[number],
            path=table.path(number),
            parent=None if parent == ROOT else self.table.key(parent),
            depth=table.depth[number],
            device=None,
            process_id=None,
            instances=int(rolled.instances[number]) or None,
            inclusive=_stats(number, rolled.inclusive),
            exclusive=_stats(number, rolled.exclusive),
            key=self.table.key(number),
            numbers=table.numbers(number),
            range_kind=table.kind(number),
            # A region known only through a graph's capture has no host-side range to measure.
            wall_ns=int(rolled.wall[number]) if has_ranges else None,
            gpu_busy_ns=int(rolled.busy[number]) if self.saw_gpu else None,
            gpu_idle_ns=int(rolled.idle[number]) if has_ranges and self.saw_gpu else None,
            collective_ns=int(rolled.collective[number]) if self.saw_gpu else None,
            exposed_collective_ns=int(rolled.exposed[number]) if self.saw_gpu else None,
            adopted_kernels=int(rolled.adopted[number]),
            graph_kernels=int(rolled.graph_kernels[number]),
            graph_replays=int(rolled.graph_replays[number]),
            nvtx_include=self._expressions[number],
            selection=self.region_filter.as_json(),
        )
        if not self.saw_gpu:
            region.inclusive.gpu_time_ns = region.exclusive.gpu_time_ns = None
        return region

    def _kernel_records(self, rows: KernelRows, which: Int64s, most: int | None = None) -> KernelList:
        """Longest first: at most `most` rows, else names that are too many pooled by what kind of work they do."""
        order = which[np.argsort(-rows.total[which], kind="stable")]
        names = np.zeros(0, dtype=np.int64)  # where in the list each comes first
        if len(order) > _MOST_NAMES:
            names = np.sort(np.unique(rows.label[order], return_index=True)[1])
        end = int(names[_MOST_NAMES]) if len(names) > _MOST_NAMES else len(order)
        end = end if most is None else min(end, most)
        records = [kernel_record(self.strings[label], *row) for label, *row in _cells(rows, order[:end])]
        if end == most:
            return records, len(order) - end
        if end < len(order):
            self._pooled_names = max(self._pooled_names, len(names) - _MOST_NAMES)
            records += self._pooled(rows, order[end:])
        return records, 0

    def _pooled(self, rows: KernelRows, which: Int64s) -> list[KernelRecord]:
        """One row a device for each kind of work: times add up as if every kernel had its own."""
        sums: dict[tuple[str, int], list[int]] = {}
        for label, device, calls, total, shortest, longest in _cells(rows, which):
            found = sums.setdefault((family_of(self.strings[label]), device), [0, 0, shortest, longest])
            found[:] = found[0] + calls, found[1] + total, min(found[2], shortest), max(found[3], longest)
        records = (
            evolve(kernel_record(f"(further kernels: {family})", device, *row), family=family)
            for (family, device), row in sums.items()
        )
        return sorted(records, key=lambda record: -(record.total_ms or 0.0))


def _cells(rows: KernelRows, which: Int64s) -> Iterator[tuple[int, ...]]:
    """Label, device, calls and times of these rows."""
    return zip(*(column[which].tolist() for column in rows.columns[1:]), strict=True)


# Different kernels of one list. Programs have some thousands at the most, a table of sixty thousand fits into a few
# megabytes; every list that a kernel is in repeats its name and its numbers, in each scope and each kind of output.
_MOST_NAMES = 10_000
# Kernels listed in all regions of a scope, each with the region's key. A region lists those of the regions inside it
# too: a thousand ranges inside each other around a thousand kernels, half a megabyte of trace, would list a million.
_MOST_LISTED = 300_000
_USUAL_KEY = 100  # characters; a longer key counts more than once


def _affordable(counts: Int64s, keys: Int64s, most: int | None) -> int | None:
    """How many kernels a region may list, where all of them are too many. `keys`: the lengths of the regions' keys."""
    weights = np.maximum(keys / _USUAL_KEY, 1)
    if (counts * weights).sum() <= _MOST_LISTED:
        return most
    limit = affordable(counts, weights, _MOST_LISTED)
    return limit if most is None else min(limit, most)


def _stats(number: int, work: GpuWork) -> RegionStats:
    copies, host, device = work.copies, work.host_copies, work.device_copies
    return RegionStats(
        gpu_time_ns=int(work.kernels.time[number]),
        kernel_count=int(work.kernels.count[number]),
        memory=MemoryWork(
            count=int(copies.count[number]),
            time_ns=int(copies.time[number]),
            bytes=int(copies.bytes[number]),
            host_count=int(host.count[number]),
            host_time_ns=int(host.time[number]),
            host_bytes=int(host.bytes[number]),
            upload_bytes=int(work.uploads.bytes[number]),
            peer_count=int(work.peers.count[number]),
            peer_time_ns=int(work.peers.time[number]),
            migration_count=int(work.migrations.count[number]),
            migration_time_ns=int(work.migrations.time[number]),
            migration_bytes=int(work.migrations.bytes[number]),
            pageable_time_ns=int(work.pageable.time[number]),
            pinned_time_ns=int(work.pinned.time[number]),
            device_count=int(device.count[number]),
            device_time_ns=int(device.time[number]),
            device_bytes=int(device.bytes[number]),
        ),
        graph_launches=int(work.graphs.count[number]),
        graph_time_ns=int(work.graphs.time[number]),
    )
