"""The scopes and regions of a timeline, with counters where there are any."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from attrs import Factory, define, evolve, field

from llm_perf_opt.analysis.code_lines import CodeLines
from llm_perf_opt.analysis.engine_loop import engine_diagnoses
from llm_perf_opt.analysis.gpu_condition import gpu_diagnoses, gpu_facts
from llm_perf_opt.analysis.range_costs import range_costs
from llm_perf_opt.analysis.rank_comparison import RankComparison
from llm_perf_opt.analysis.rank_steps import steps_of
from llm_perf_opt.analysis.ranks import rank_calls
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.sample_matrix import Samples
from llm_perf_opt.analysis.sampled_bytes import SampledBytes, used_by_others
from llm_perf_opt.analysis.scope_builder import ScopeBuilder
from llm_perf_opt.analysis.scopes import ScopePart, same_selection, timeline_scopes
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.timeline_counters import RegionMetrics, TimelineCounters, sampled_metrics
from llm_perf_opt.analysis.verdicts.launches import Launches
from llm_perf_opt.analysis.verdicts.performance import SteadyRegion
from llm_perf_opt.analysis.waiting import Waiting
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.blocks import taken
from llm_perf_opt.regions.columns import UNKNOWN, Bools, CounterSet, Int32s, Int64s, Ranges, Timeline, Work
from llm_perf_opt.regions.copy_work import MemoryWork
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.intervals import union_by_group
from llm_perf_opt.regions.merged_work import merge_all
from llm_perf_opt.regions.model import Coverage, NCUProfileRegion, Scope, ScopeTotals
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter
from llm_perf_opt.regions.prepared import find_regions
from llm_perf_opt.regions.rollup import RolledUp, Selection, copies_by_kind, roll_up
from llm_perf_opt.regions.table import DEEPEST, POOLED, RegionTable
from llm_perf_opt.regions.timing import Timing
from llm_perf_opt.regions.whole_recording import COVERED


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
    builder: ScopeBuilder = field(init=False)
    warmth: SteadyTimeline = field(init=False)
    existing: list[str] = Factory(list)  # keys of all regions that have something in them
    launches: dict[str, dict[str, Launches]] = Factory(dict)  # scope -> region key; empty without counters
    steady: dict[str, dict[str, SteadyRegion]] = Factory(dict)  # scope -> region key; empty where nothing warms up
    waiting: dict[str, Waiting] = Factory(dict)  # by scope; not of one that holds a part of what its processes did
    code: dict[str, CodeLines] = Factory(dict)  # by scope; empty where the recording tells of no code
    ranks: RankComparison = Factory(RankComparison)

    def __attrs_post_init__(self) -> None:
        with ThreadPoolExecutor(max_workers=1) as worker:  # beside it, what everything else asks for first
            worker.submit(merge_all, self.timeline)
            self.timeline, self.attribution = find_regions(self.timeline, self.options.attribution)
        self.builder = ScopeBuilder(
            self.attribution.table,
            self.timeline.strings,
            self.region_filter,
            saw_gpu(self.timeline),
            seen_by_ncu(self.timeline, self.attribution),
        )

    def scopes(self) -> list[Scope]:
        """All scopes with their regions; also finds `coverage`, `existing` and more `diagnostics`."""
        parts = timeline_scopes(self.timeline, kernel_mask(self.timeline, self.kernel_filter), aggregate=True)
        # NumPy works outside Python's lock: what needs nothing of each other is found side by side.
        with ThreadPoolExecutor(max_workers=1) as worker:
            pending = worker.submit(roll_up, self.timeline, self.attribution, parts[-1].selection)
            self.warmth = SteadyTimeline.of(self.timeline, self.attribution)
            code = CodeLines.of(self.warmth)
            waiting = Waiting(self.warmth, code)
            if self.options.verdicts:
                waiting.prepare()
            whole = pending.result()
        self.existing = self.builder.existing(whole)
        samples = Samples.of(self.counter_sets)
        counters = None
        if samples.actions:
            counters = TimelineCounters(self.timeline, self.attribution, samples, self.builder.kept, whole)
        scopes: list[Scope] = []
        shown = self._affordable(parts if self.options.aggregate else parts[:-1])
        main = shown[-1 if self.options.aggregate else 0]
        limit, diagnoses = limited(len(self.builder.present(whole)), len(shown))
        self.diagnostics += diagnoses + pooling(self.attribution.table, self.region_filter)
        done = [(parts[-1], whole, *self._extras(parts[-1], whole, counters, self.attribution))]
        self.timeline.environment.update(gpu_facts(self.timeline, self.warmth.energy))
        timings: dict[str, dict[str, Timing]] = {}  # by scope, of those that hold the same the first
        for part in shown:
            twin = next((d for d in done if same_selection(d[0].selection, part.selection)), None)
            if twin is None:
                rolled = roll_up(self.timeline, self.attribution, part.selection)
                twin = (part, rolled, *self._extras(part, rolled, counters, self.attribution))
                done.append(twin)
            _, rolled, metrics, totals = twin
            scopes.append(
                self.builder.scope(
                    part.name,
                    rolled,
                    totals,
                    process_id=part.process_id,
                    device=part.device,
                    metrics=metrics,
                    most_regions=None if part is main else limit,
                )
            )
            if twin[0].name not in timings:
                times = self.warmth.times(part.selection)
                timings[twin[0].name] = {self.attribution.table.key(n): one.timing() for n, one in times.items()}
            for region in scopes[-1].regions:
                region.timing = timings[twin[0].name].get(region.key)
            if (of_scope := waiting.of_scope(part.selection)) is not None:
                self.waiting[part.name] = of_scope
            if code is not None:
                self.code[part.name] = code.of_scope(part.selection.kernels)
            if self.warmth.has_warmup:
                same = self.steady.get(twin[0].name)
                self.steady[part.name] = same or self._steady_regions(part, counters, warmed_up(scopes[-1]))
            if counters is not None:
                # Twins hold the same launches; the one met first was counted under its own name.
                known = twin[0].name
                if known not in self.launches:
                    found = counters.launches(twin[0])
                    self.launches[known] = {self.attribution.table.key(n): launches for n, launches in found.items()}
                self.launches[part.name] = self.launches[known]
        self.diagnostics += [*self.builder.diagnoses(), *gpu_diagnoses(self.timeline, scopes[-1].regions)]
        self.diagnostics += range_costs(self.timeline, scopes[-1].regions)
        self.diagnostics += engine_diagnoses(self.timeline, self.warmth.numbers)
        if counters is not None:
            self.coverage = counters.coverage(parts[-1].selection.kernels)
            self.diagnostics += counters.diagnoses(self.coverage)
        else:
            self.diagnostics += used_by_others(self.timeline)
        table = self.attribution.table
        calls = rank_calls(self.timeline, self.attribution, np.arange(len(table)))
        steps = steps_of(self.timeline, self.attribution, self.warmth.instances, np.arange(len(table)))
        self.ranks = RankComparison.of(calls, steps, scopes, table)
        return scopes

    def _steady_regions(
        self, whole: ScopePart, counters: TimelineCounters | None, keys: set[str]
    ) -> dict[str, SteadyRegion]:
        """Those regions of a scope as they are once the program is warm."""
        warmth = self.warmth
        part = evolve(whole, selection=warmth.selection(whole.selection))
        rolled = warmth.rolled(whole.selection)
        warm = counters.attributed(warmth.lifted) if counters is not None else None
        metrics, totals = self._extras(part, rolled, warm, warmth.lifted)
        scope = self.builder.scope(
            part.name, rolled, totals, process_id=part.process_id, device=part.device, metrics=metrics
        )
        table = self.attribution.table
        launches = {} if warm is None else {table.key(n): found for n, found in warm.launches(part).items()}
        steps = warmth.inside_steady(whole.selection)
        inside = {table.key(n): int(count) for n, count in enumerate(steps.tolist())}
        return {
            r.key: SteadyRegion(r, launches.get(r.key), inside[r.key])
            for r in scope.regions
            if r.key in keys and r.instances
        }

    def launches_of(self, scope: str, region: NCUProfileRegion) -> Launches | None:
        return self.launches.get(scope, {}).get(region.key)

    def _affordable(self, parts: list[ScopePart]) -> list[ScopePart]:
        """As many scopes as a very deep tree allows: each has to be added up level by level."""
        levels = max(self.attribution.table.depth, default=0) + 1
        most = max(_MOST_LEVELS // levels, 4)
        if len(parts) <= most:
            return parts
        self.diagnostics.append(diagnose("SCOPES_CUT", levels=levels, scopes=len(parts), most=most))
        return [*parts[: most - 1], parts[-1]]

    def _extras(
        self, part: ScopePart, rolled: RolledUp, counters: TimelineCounters | None, attribution: Attribution
    ) -> tuple[dict[int, RegionMetrics], ScopeTotals]:
        totals = totals_of(self.timeline, self.attribution, part, rolled)
        if counters is not None:
            return counters.metrics(part, rolled), totals
        if not self.timeline.sampled_gpus:
            return {}, totals
        values = SampledBytes.of(self.timeline, attribution, part.selection, rolled).values(rolled)
        return sampled_metrics(values, attribution.table, rolled), totals


def warmed_up(scope: Scope) -> set[str]:
    """Keys of the regions with warm-up."""
    return {r.key for r in scope.regions if r.timing is not None and r.timing.warmup.total_ns}


_MOST_LEVELS = 16_000  # in all scopes of one recording
MOST_REGIONS = 20_000  # in all scopes but the main one; beyond that each lists its heaviest


def limited(regions: int, scopes: int) -> tuple[int | None, list[Diagnosis]]:
    """How many regions each scope but the main one may list (None: all), and a diagnosis where not all are."""
    if regions * (scopes - 1) <= MOST_REGIONS:
        return None, []
    limit = max(MOST_REGIONS // (scopes - 1), 100)
    return limit, [diagnose("REGION_LISTS_CUT", regions=regions, scopes=scopes, limit=limit)]


def pooling(table: RegionTable, chosen: RegionFilter) -> list[Diagnosis]:
    """What is to be said where not every range could have its own region, or where they hold little."""
    found = []
    if table.pooled or table.simplified:
        found.append(diagnose("RANGES_POOLED", deepest=DEEPEST, pooled=POOLED))
    if table.held < COVERED and not chosen.include:
        found.append(diagnose("RANGES_HOLD_LITTLE", share=table.held))
    return found


def saw_gpu(timeline: Timeline) -> bool:
    """Is there GPU work at all? Without, times are unknown, not 0."""
    return any(len(work) for work in timeline.work)


def seen_by_ncu(timeline: Timeline, attribution: Attribution) -> set[int]:
    """Regions that ncu can select.

    Annotations of the PyTorch profiler are no NVTX ranges, at a graph's launch the ranges of its capture are not
    open, and a whole recording is no range: ncu sees none of them.
    """
    found = set(distinct(attribution.range_region).tolist()) if timeline.kind != "kineto" else set()
    return found - attribution.table.whole


def names_in(timeline: Timeline, column: Int32s) -> set[str]:
    """The names that a column has."""
    return {timeline.strings[number] for number in distinct(column).tolist()}


def kernel_mask(timeline: Timeline, kernel_filter: NameFilter) -> Bools | None:
    """The kernels that a filter lets through; None: all."""
    if not kernel_filter:
        return None
    strings, kernels = timeline.strings, timeline.kernels
    keeps = np.zeros(len(strings) + 1, dtype=np.bool_)
    for number in distinct(kernels.name).tolist():
        keeps[number] = kernel_filter.keeps(strings[number], short_kernel_name(strings[number]))
    return keeps[kernels.name]


def totals_of(timeline: Timeline, attribution: Attribution, part: ScopePart, rolled: RolledUp) -> ScopeTotals:
    """All GPU work of a scope, in regions or not."""
    kernels, chosen = timeline.kernels, part.selection.kernels
    outside = chosen[taken(attribution.kernels.unattributed(), chosen)]
    graphs = part.selection.graphs
    bounds = bounds_of(timeline, part)
    known = saw_gpu(timeline)
    recorded, outside_ranges = _recorded(timeline, attribution, part)
    return ScopeTotals(
        gpu_time_ns=int((taken(kernels.end, chosen) - taken(kernels.start, chosen)).sum()) if known else None,
        kernel_count=len(chosen),
        unattributed_kernel_count=len(outside),
        unattributed_gpu_time_ns=int((kernels.end[outside] - kernels.start[outside]).sum()),
        unknown_launch_count=int((kernels.host_time[outside] == UNKNOWN).sum()),
        adopted_kernel_count=int(taken(attribution.kernels.adopted, chosen).sum()),
        graph_kernel_count=int((taken(kernels.graph_node, chosen) >= 0).sum()),
        graph_launches=len(graphs),
        graph_time_ns=int((timeline.graphs.end[graphs] - timeline.graphs.start[graphs]).sum()),
        memory=_all_copies(timeline, part.selection),
        gpu_busy_ns=rolled.scope_busy if known else None,
        span_ns=bounds[1] - bounds[0] if bounds else None,
        recorded_ns=recorded if bounds else None,
        outside_ranges_ns=outside_ranges if bounds else None,
    )


def _all_copies(timeline: Timeline, selection: Selection) -> MemoryWork:
    """Copies and fills of a scope, in regions or not."""
    copies = timeline.copies

    def summed(chosen: Int64s, kind: str = "") -> dict[str, int]:
        sizes = 0 if copies.bytes is None else int(copies.bytes[chosen].sum())
        time = int((copies.end[chosen] - copies.start[chosen]).sum())
        return {f"{kind}count": len(chosen), f"{kind}time_ns": time, f"{kind}bytes": sizes}

    kinds = copies_by_kind(timeline, selection)
    return MemoryWork(
        **summed(selection.copies),
        **summed(kinds["host_copies"], "host_"),
        **summed(kinds["device_copies"], "device_"),
        upload_bytes=summed(kinds["uploads"])["bytes"],
        peer_count=len(kinds["peers"]),
        peer_time_ns=summed(kinds["peers"])["time_ns"],
        **summed(kinds["migrations"], "migration_"),
        pageable_time_ns=summed(kinds["pageable"])["time_ns"],
        pinned_time_ns=summed(kinds["pinned"])["time_ns"],
    )


def bounds_of(timeline: Timeline, part: ScopePart) -> tuple[int, int] | None:
    """First and last moment of the scope, ranges and GPU work together."""
    events = [(taken(columns.start, which), taken(columns.end, which)) for columns, which in _events(timeline, part)]
    bounds = [(int(start.min()), int(end.max())) for start, end in events if len(start)]
    return (min(s for s, _ in bounds), max(e for _, e in bounds)) if bounds else None


def _events(timeline: Timeline, part: ScopePart) -> list[tuple[Ranges | Work, Int64s]]:
    return [(timeline.ranges, part.selection.ranges), *part.selection.work(timeline)]


def _recorded(timeline: Timeline, attribution: Attribution, part: ScopePart) -> tuple[int, int]:
    """How long the processes of a scope were recorded, and how long they had no range open, each added up."""
    processes = len(timeline.processes)
    start, end = np.full(processes, np.iinfo(np.int64).max), np.full(processes, np.iinfo(np.int64).min)
    for columns, which in _events(timeline, part):
        process = taken(columns.process, which)
        np.minimum.at(start, process, taken(columns.start, which))
        np.maximum.at(end, process, taken(columns.end, which))
    recorded = int((end - start)[end >= start].sum())
    ranges, chosen = timeline.ranges, part.selection.ranges
    outermost = chosen[attribution.range_parent[chosen] == UNKNOWN]
    outermost = outermost[np.argsort(ranges.start[outermost], kind="stable")]
    owner = ranges.process[outermost].astype(np.int64)
    inside = union_by_group(owner, ranges.start[outermost], ranges.end[outermost], processes)
    return recorded, recorded - int(inside.sum())
