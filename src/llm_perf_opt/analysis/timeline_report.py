"""The scopes and regions of a timeline, with counters where there are any."""

from __future__ import annotations

import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.analysis.samples import Samples
from llm_perf_opt.analysis.scopes import ScopePart, same_selection, timeline_scopes
from llm_perf_opt.analysis.selected import kept_regions, kernel_record, ncu_expressions
from llm_perf_opt.analysis.timeline_counters import RegionMetrics, TimelineCounters
from llm_perf_opt.analysis.verdicts.launches import Launches
from llm_perf_opt.regions.attribution import Attribution, attribute
from llm_perf_opt.regions.columns import UNKNOWN, Bools, CounterSet, Int64s, Ranges, Timeline, Work
from llm_perf_opt.regions.model import (
    Coverage,
    Diagnosis,
    KernelRecord,
    MemoryWork,
    NCUProfileRegion,
    RegionStats,
    Scope,
    ScopeTotals,
)
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter
from llm_perf_opt.regions.rollup import CopyKinds, KernelRows, RolledUp, Sums, roll_up, rows_per_region
from llm_perf_opt.regions.table import ROOT


@define(eq=False)
class TimelineReport:
    """Builds the scopes of a timeline, with counters where there are any."""

    timeline: Timeline
    counter_sets: list[CounterSet]
    options: ReportOptions
    region_filter: RegionFilter
    kernel_filter: NameFilter
    diagnostics: list[Diagnosis] = Factory(list)
    coverage: Coverage | None = None
    attribution: Attribution = field(init=False)
    existing: list[str] = Factory(list)  # keys of all regions that have something in them
    launches: dict[str, dict[str, Launches]] = Factory(dict)  # scope -> region key; empty without counters
    _saw_gpu: bool = field(init=False)  # the recording has GPU work at all: without, its times are unknown, not 0
    _kept: list[bool] = field(init=False)
    _expressions: list[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.attribution = attribute(self.timeline, self.options.attribution)
        self._saw_gpu = any(len(w) for w in (self.timeline.kernels, self.timeline.copies, self.timeline.graphs))
        table = self.attribution.table
        self._kept = kept_regions(table, self.region_filter)
        self._expressions = ncu_expressions(table)
        seen_by_ncu = (
            set(np.unique(self.attribution.range_region).tolist()) if self.timeline.kind != "kineto" else set()
        )
        for number in range(len(table)):
            # Annotations of the PyTorch profiler are no NVTX ranges, and at a graph's launch the ranges of
            # its capture are not open: ncu sees neither.
            if number not in seen_by_ncu:
                self._expressions[number] = ""

    def scopes(self) -> list[Scope]:
        """All scopes with their regions; also finds `coverage`, `existing` and more `diagnostics`."""
        table = self.attribution.table
        parts = timeline_scopes(self.timeline, self._kernel_mask(), aggregate=True)
        whole = roll_up(self.timeline, self.attribution, parts[-1].selection)
        self.existing = [table.key(n) for n in table.in_tree_order() if whole.present[n]]
        samples = Samples.of(self.counter_sets)
        counters = None
        if samples.actions:
            counters = TimelineCounters(self.timeline, self.attribution, samples, self._kept, whole)
        scopes: list[Scope] = []
        done = [(parts[-1], whole, *self._extras(parts[-1], whole, counters))]
        for part in parts if self.options.aggregate else parts[:-1]:
            twin = next((d for d in done if same_selection(d[0].selection, part.selection)), None)
            if twin is None:
                rolled = roll_up(self.timeline, self.attribution, part.selection)
                twin = (part, rolled, *self._extras(part, rolled, counters))
                done.append(twin)
            scopes.append(self._scope(part, *twin[1:]))
            if counters is not None:
                # Twins hold the same launches; the one met first was counted under its own name.
                known = twin[0].name
                if known not in self.launches:
                    found = counters.launches(twin[0])
                    self.launches[known] = {table.key(n): launches for n, launches in found.items()}
                self.launches[part.name] = self.launches[known]
        if counters is not None:
            self.coverage = counters.coverage(parts[-1].selection.kernels)
            self.diagnostics += counters.diagnose(self.coverage)
        return scopes

    def _extras(
        self, part: ScopePart, rolled: RolledUp, counters: TimelineCounters | None
    ) -> tuple[dict[int, RegionMetrics], ScopeTotals]:
        return counters.metrics(part, rolled) if counters else {}, self._totals(part, rolled)

    def _kernel_mask(self) -> Bools | None:
        if not self.kernel_filter:
            return None
        strings, kernels = self.timeline.strings, self.timeline.kernels
        used = np.unique(kernels.name)
        keeps = np.zeros(len(strings) + 1, dtype=np.bool_)
        for number in used.tolist():
            keeps[number] = self.kernel_filter.keeps(strings[number], short_kernel_name(strings[number]))
        return keeps[kernels.name]

    def _scope(
        self, part: ScopePart, rolled: RolledUp, metrics: dict[int, RegionMetrics], totals: ScopeTotals
    ) -> Scope:
        table = self.attribution.table
        rows = rows_per_region(rolled.kernel_rows)
        regions = []
        for number in table.in_tree_order():
            if rolled.present[number] and self._kept[number]:
                regions.append(self._region(number, part, rolled, rows.get(number), metrics.get(number)))
        return Scope(
            scope=part.name,
            totals=totals,
            regions=regions,
            kernels=self._kernel_records(rolled.all_kernels, np.arange(len(rolled.all_kernels.label))),
        )

    def _region(
        self,
        number: int,
        part: ScopePart,
        rolled: RolledUp,
        rows: tuple[KernelRows, Int64s] | None,
        metrics: RegionMetrics | None,
    ) -> NCUProfileRegion:
        table = self.attribution.table
        parent = table.parent[number]
        has_ranges = bool(rolled.range_instances[number])
        region = NCUProfileRegion(
            name=table.name[number],
            domain=table.domain[number],
            path=table.path(number),
            parent=None if parent == ROOT else table.key(parent),
            depth=table.depth[number],
            device=part.device,
            process_id=part.process_id,
            instances=int(rolled.instances[number]) or None,
            inclusive=_stats(
                number,
                rolled.inclusive,
                rolled.inclusive_copies,
                rolled.inclusive_copy_kinds,
                rolled.inclusive_graphs,
            ),
            exclusive=_stats(
                number,
                rolled.exclusive,
                rolled.exclusive_copies,
                rolled.exclusive_copy_kinds,
                rolled.exclusive_graphs,
            ),
            key=table.key(number),
            range_kind="start_end" if table.start_end[number] else "push_pop",
            # A region known only through a graph's capture has no host-side range to measure.
            wall_ns=int(rolled.wall[number]) if has_ranges else None,
            gpu_busy_ns=int(rolled.busy[number]) if self._saw_gpu else None,
            gpu_idle_ns=int(rolled.idle[number]) if has_ranges and self._saw_gpu else None,
            adopted_kernels=int(rolled.adopted[number]),
            graph_kernels=int(rolled.graph_kernels[number]),
            graph_replays=int(rolled.graph_replays[number]),
            nvtx_include=self._expressions[number],
            kernels=self._kernel_records(*rows) if rows else [],
            selection=self.region_filter.as_json(),
        )
        if not self._saw_gpu:
            region.inclusive.gpu_time_ns = region.exclusive.gpu_time_ns = None
        if metrics is not None:
            region.inclusive.metrics = metrics.inclusive
            region.exclusive.metrics = metrics.exclusive
            region.rules = metrics.rules
            region.sections = metrics.sections
        return region

    def _totals(self, part: ScopePart, rolled: RolledUp) -> ScopeTotals:
        timeline, attribution = self.timeline, self.attribution
        kernels, chosen = timeline.kernels, part.selection.kernels
        outside = chosen[attribution.kernels.unattributed()[chosen]]
        copies, graphs = part.selection.copies, part.selection.graphs
        sizes = timeline.copies.bytes
        return ScopeTotals(
            gpu_time_ns=int((kernels.end[chosen] - kernels.start[chosen]).sum()) if self._saw_gpu else None,
            kernel_count=len(chosen),
            unattributed_kernel_count=len(outside),
            unattributed_gpu_time_ns=int((kernels.end[outside] - kernels.start[outside]).sum()),
            unknown_launch_count=int((kernels.host_time[outside] == UNKNOWN).sum()),
            adopted_kernel_count=int(attribution.kernels.adopted[chosen].sum()),
            graph_kernel_count=int((kernels.graph_node[chosen] >= 0).sum()),
            graph_launches=len(graphs),
            graph_time_ns=int((timeline.graphs.end[graphs] - timeline.graphs.start[graphs]).sum()),
            memory=MemoryWork(
                count=len(copies),
                time_ns=int((timeline.copies.end[copies] - timeline.copies.start[copies]).sum()),
                bytes=int(sizes[copies].sum()) if sizes is not None else 0,
            ),
            gpu_busy_ns=rolled.scope_busy if self._saw_gpu else None,
            span_ns=self._span(part),
        )

    def _span(self, part: ScopePart) -> int | None:
        """First to last event of the scope, ranges and GPU work together."""
        timeline, chosen = self.timeline, part.selection
        pairs: list[tuple[Ranges | Work, Int64s]] = [
            (timeline.ranges, chosen.ranges),
            (timeline.kernels, chosen.scope_kernels),
            (timeline.copies, chosen.copies),
            (timeline.graphs, chosen.graphs),
        ]
        bounds = [(int(c.start[i].min()), int(c.end[i].max())) for c, i in pairs if len(i)]
        return max(e for _, e in bounds) - min(s for s, _ in bounds) if bounds else None

    def _kernel_records(self, rows: KernelRows, which: Int64s) -> list[KernelRecord]:
        order = which[np.argsort(-rows.total[which], kind="stable")]
        strings = self.timeline.strings
        return [
            kernel_record(strings[label], device, calls, total, low, high)
            for label, device, calls, total, low, high in zip(
                rows.label[order].tolist(),
                rows.device[order].tolist(),
                rows.calls[order].tolist(),
                rows.total[order].tolist(),
                rows.shortest[order].tolist(),
                rows.longest[order].tolist(),
                strict=True,
            )
        ]


def _stats(number: int, kernels: Sums, copies: Sums, kinds: CopyKinds, graphs: Sums) -> RegionStats:
    return RegionStats(
        gpu_time_ns=int(kernels.time[number]),
        kernel_count=int(kernels.count[number]),
        memory=MemoryWork(
            count=int(copies.count[number]),
            time_ns=int(copies.time[number]),
            bytes=int(copies.bytes[number]),
            host_count=int(kinds.host.count[number]),
            host_time_ns=int(kinds.host.time[number]),
            host_bytes=int(kinds.host.bytes[number]),
            device_count=int(kinds.device.count[number]),
            device_time_ns=int(kinds.device.time[number]),
            device_bytes=int(kinds.device.bytes[number]),
        ),
        graph_launches=int(graphs.count[number]),
        graph_time_ns=int(graphs.time[number]),
    )
