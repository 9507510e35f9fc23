"""From recordings to the finished report: scopes, regions, kernels, counters, and what is missing.

Three cases, one result: a timeline alone (times), counters alone (what ncu measured, regions from the
NVTX stack of each result), or both, joined by signature: time and counts from the timeline, counters
from the samples.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from attrs import Factory, define, evolve, field

from llm_perf_opt.analysis.counters import (
    TIME,
    Join,
    LaunchRows,
    Samples,
    add_up_results,
    coverage_of,
    join_samples,
    rules_of,
    signatures,
)
from llm_perf_opt.analysis.scopes import ScopePart, same_selection, timeline_scopes
from llm_perf_opt.regions.attribution import Attribution, Mode, attribute
from llm_perf_opt.regions.columns import Bools, CounterSet, Int64s, Ranges, Recording, Timeline, Work
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.model import (
    SCHEMA_VERSION,
    Coverage,
    Diagnosis,
    KernelRecord,
    MemoryWork,
    MetricValue,
    NCUProfileRegion,
    NCUProfileRegionReport,
    RegionStats,
    Scope,
    ScopeTotals,
)
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter, exact_expression, nearest
from llm_perf_opt.regions.rollup import KernelRows, RolledUp, Sums, exclusive_rows, lift, roll_up
from llm_perf_opt.regions.table import ROOT, RegionTable
from llm_perf_opt.version import __version__

_MOST_KERNEL_RECORDS = 300_000  # in one report: beyond that regions list their first kernels only
_LISTED_RANGES = 200


@define
class ReportOptions:
    """What the user may choose about a report."""

    include: list[str] = Factory(list)
    exclude: list[str] = Factory(list)
    kernel_include: list[str] = Factory(list)
    kernel_exclude: list[str] = Factory(list)
    aggregate: bool = True
    attribution: Mode = "auto"
    top: int = 30  # kernels per region where a list has to be cut

    def fingerprint(self) -> str:
        """The same for the same settings of the same version."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        text = json.dumps({"version": __version__, **settings}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_report(
    recordings: Sequence[Recording], options: ReportOptions, inputs: list[dict[str, Any]] | None = None
) -> NCUProfileRegionReport:
    """The whole report of one or more recordings."""
    timelines = [r for r in recordings if isinstance(r, Timeline)]
    counter_sets = [r for r in recordings if isinstance(r, CounterSet)]
    region_filter = RegionFilter.of(options.include, options.exclude)
    kernel_filter = NameFilter.of(options.kernel_include, options.kernel_exclude)
    diagnostics = [d for r in recordings for d in r.diagnostics]
    coverage = None
    if timelines:
        if len({t.kind for t in timelines}) > 1:
            diagnostics.append(
                Diagnosis(
                    "MIXED_TIMELINES",
                    "warning",
                    "Timelines of different tools were given together; if they are of the same run, its work counts twice in the aggregate.",
                    "Give one timeline of each process.",
                )
            )
        diagnostics += _compare_timelines(timelines)
        builder = _TimelineReport(merge_timelines(timelines), counter_sets, options, region_filter, kernel_filter)
        scopes, table = builder.scopes(), builder.attribution.table
        kernel_names = {builder.timeline.strings[n] for n in np.unique(builder.timeline.kernels.name).tolist()}
        coverage = builder.coverage
        diagnostics += builder.diagnostics
    else:
        scopes, table = _counter_scopes(counter_sets, options, region_filter, kernel_filter)
        kernel_names = {a.name for c in counter_sets for a in c.actions if a.kind == "kernel"}
        diagnostics.append(
            Diagnosis(
                "NO_TIMELINE",
                "info",
                "There is no timeline: kernel times are ncu's, taken with kernels one after another; ranges and graphs measured as a whole have no GPU time; wall and idle time are not known.",
                "Record one with: nsys profile -t cuda,nvtx -s none -o OUT CMD  and give OUT.sqlite beside the counters.",
            )
        )
    report = NCUProfileRegionReport(
        schema_version=SCHEMA_VERSION,
        generated_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config_fingerprint=options.fingerprint(),
        inputs=inputs or [{"path": r.source, "kind": r.kind} for r in recordings],
        environment=_environment(recordings),
        diagnostics=diagnostics,
        scopes=scopes,
        attribution=options.attribution,
        selection=region_filter.as_json()
        | {"kernel_include": list(options.kernel_include), "kernel_exclude": list(options.kernel_exclude)},
        coverage=coverage,
    )
    _limit_kernels(report, options.top)
    if kernel_filter and kernel_names and not any(kernel_filter.keeps(n, short_kernel_name(n)) for n in kernel_names):
        wanted = (options.kernel_include or options.kernel_exclude)[0]
        close = nearest(wanted, {short_kernel_name(n) for n in kernel_names}, 5)
        report.diagnostics.append(
            Diagnosis(
                "NO_MATCHING_KERNELS",
                "warning",
                f"The kernel patterns let none of the {len(kernel_names)} kernels through: counts and times are of nothing.",
                f"Nearest: {', '.join(close)}. A pattern is a glob over the whole name (*{wanted.strip('*')}*) or regex:…",
            )
        )
    if not any(scope.regions for scope in scopes):
        _explain_no_match(report, table, options)
    return report


def _compare_timelines(timelines: list[Timeline]) -> list[Diagnosis]:
    """Timelines given together should be parts of one job: its ranks, with the same ranges."""
    names = [{t.strings[n] for n in np.unique(t.ranges.name).tolist()} for t in timelines]
    strangers = [t.source for t, own in zip(timelines[1:], names[1:], strict=True) if own and not own & names[0]]
    if not strangers or not names[0]:
        return []
    return [
        Diagnosis(
            "UNRELATED_TIMELINES",
            "warning",
            f"{', '.join(strangers)} has no range in common with {timelines[0].source}: the aggregate adds up different programs.",
            "Give timelines of one job together, others one by one.",
        )
    ]


def matched_anything(report: NCUProfileRegionReport) -> bool:
    """Did the patterns of the user select something?"""
    return any(scope.regions for scope in report.scopes) and not any(
        d.code == "NO_MATCHING_KERNELS" for d in report.diagnostics
    )


def _environment(recordings: Iterable[Recording]) -> dict[str, Any]:
    """Facts about where the recordings come from, one entry per input."""
    gpus = {str(d): name for r in recordings for d, name in r.environment.get("gpus", {}).items()}
    facts = [{"input": r.source} | {k: v for k, v in r.environment.items() if k != "gpus"} for r in recordings]
    return {"llm_perf_opt": __version__, "gpus": gpus, "recordings": facts}


def _explain_no_match(report: NCUProfileRegionReport, table: RegionTable, options: ReportOptions) -> None:
    keys = sorted({table.key(i) for i in range(len(table))})
    if not keys:
        report.diagnostics.append(
            Diagnosis(
                "NO_REGIONS",
                "warning",
                "The recording has no NVTX ranges, so there is no region to report; kernels are listed for the whole scope.",
                "Mark stages with torch.cuda.nvtx.range or nvtx.annotate and record with -t cuda,nvtx.",
            )
        )
        return
    wanted = options.include[0] if options.include else ""
    close = nearest(wanted, keys, 5)
    report.available_ranges = close + [k for k in keys if k not in close][: _LISTED_RANGES - len(close)]
    report.diagnostics.append(
        Diagnosis(
            "NO_MATCHING_REGIONS",
            "warning",
            f"No matching regions: {', '.join(map(repr, options.include)) or 'every region'}"
            + (f" without {', '.join(map(repr, options.exclude))}" if options.exclude else "")
            + f" matches none of the {len(keys)} that exist.",
            f"Nearest: {', '.join(close)}. List all with: llm-perf ranges INPUT",
        )
    )


def _limit_kernels(report: NCUProfileRegionReport, top: int) -> None:
    total = sum(len(region.kernels) for scope in report.scopes for region in scope.regions)
    if total <= _MOST_KERNEL_RECORDS:
        return
    for scope in report.scopes:
        for region in scope.regions:
            region.kernels_omitted = max(len(region.kernels) - top, 0)
            region.kernels = region.kernels[:top]
    report.diagnostics.append(
        Diagnosis(
            "KERNEL_LISTS_CUT",
            "info",
            f"The regions have {total:,} kernel rows together; each lists its {top} longest.",
            "Choose regions with --include, or a longer list with --top.",
        )
    )


def ncu_expressions(table: RegionTable) -> list[str]:
    """For every region the shortest ncu expression that selects it and no other region."""
    names = Counter(zip(table.domain, table.start_end, table.name, strict=True))
    expressions = []
    for i in range(len(table)):
        alone = names[table.domain[i], table.start_end[i], table.name[i]] == 1
        path = [table.name[i]] if alone else table.path(i)
        expressions.append(exact_expression(table.domain[i], path, anchored=not alone, start_end=table.start_end[i]))
    return expressions


# -- with a timeline -------------------------------------------------------------------------------


@define(eq=False)
class _TimelineReport:
    """Builds the scopes of a timeline, with counters where there are any."""

    timeline: Timeline
    counter_sets: list[CounterSet]
    options: ReportOptions
    region_filter: RegionFilter
    kernel_filter: NameFilter
    diagnostics: list[Diagnosis] = Factory(list)
    coverage: Coverage | None = None
    attribution: Attribution = field(init=False)
    _kept: list[bool] = field(init=False)
    _expressions: list[str] = field(init=False)
    _join: Join | None = None
    _unmatched: list[int] = Factory(list)
    _signature_of: Int64s | None = None
    _regions_of_ranges: set[int] = field(init=False)
    _differences: dict[str, float] = Factory(dict)

    def __attrs_post_init__(self) -> None:
        self.attribution = attribute(self.timeline, self.options.attribution)
        self._regions_of_ranges = set(np.unique(self.attribution.range_region).tolist())
        table = self.attribution.table
        self._kept = kept_regions(table, self.region_filter)
        # Annotations of the PyTorch profiler are no NVTX ranges: ncu does not see them.
        visible_to_ncu = self.timeline.kind != "kineto"
        self._expressions = ncu_expressions(table) if visible_to_ncu else [""] * len(table)
        samples = Samples.of(self.counter_sets)
        if samples.actions:
            self._signature_of, described = signatures(self.timeline)
            self._join, self._unmatched = join_samples(samples, described)

    def scopes(self) -> list[Scope]:
        kernel_mask = self._kernel_mask()
        parts = timeline_scopes(self.timeline, kernel_mask, self.options.aggregate)
        scopes: list[Scope] = []
        done: list[tuple[ScopePart, RolledUp, dict[int, _Metrics], ScopeTotals]] = []
        for part in parts:
            twin = next((d for d in done if same_selection(d[0].selection, part.selection)), None)
            if twin is None:
                rolled = roll_up(self.timeline, self.attribution, part.selection)
                twin = (part, rolled, self._metrics(part), self._totals(part, rolled))
                done.append(twin)
            scopes.append(self._scope(part, *twin[1:]))
        if self._join is not None and parts:
            self._cover(parts[-1])
        return scopes

    def _kernel_mask(self) -> Bools | None:
        if not self.kernel_filter:
            return None
        strings, kernels = self.timeline.strings, self.timeline.kernels
        used = np.unique(kernels.name)
        keeps = np.zeros(len(strings) + 1, dtype=np.bool_)
        for number in used.tolist():
            keeps[number] = self.kernel_filter.keeps(strings[number], short_kernel_name(strings[number]))
        return keeps[kernels.name]

    def _scope(self, part: ScopePart, rolled: RolledUp, metrics: dict[int, _Metrics], totals: ScopeTotals) -> Scope:
        table = self.attribution.table
        rows = _rows_per_region(rolled.kernel_rows)
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
        metrics: _Metrics | None,
    ) -> NCUProfileRegion:
        table = self.attribution.table
        parent = table.parent[number]
        has_ranges = bool(rolled.wall[number]) or number in self._regions_of_ranges
        region = NCUProfileRegion(
            name=table.name[number],
            domain=table.domain[number],
            path=table.path(number),
            parent=None if parent == ROOT else table.key(parent),
            depth=table.depth[number],
            device=part.device,
            process_id=part.process_id,
            instances=int(rolled.instances[number]) or None,
            inclusive=_stats(number, rolled.inclusive, rolled.inclusive_copies, rolled.inclusive_graphs),
            exclusive=_stats(number, rolled.exclusive, rolled.exclusive_copies, rolled.exclusive_graphs),
            key=table.key(number),
            range_kind="start_end" if table.start_end[number] else "push_pop",
            # A region known only through a graph's capture has no host-side range to measure.
            wall_ns=int(rolled.wall[number]) if has_ranges else None,
            gpu_busy_ns=int(rolled.busy[number]),
            gpu_idle_ns=int(rolled.idle[number]) if has_ranges else None,
            adopted_kernels=int(rolled.adopted[number]),
            graph_kernels=int(rolled.graph_kernels[number]),
            nvtx_include=self._expressions[number],
            kernels=self._kernel_records(*rows) if rows else [],
            selection=self.region_filter.as_json(),
        )
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
            gpu_time_ns=int((kernels.end[chosen] - kernels.start[chosen]).sum()),
            kernel_count=len(chosen),
            unattributed_kernel_count=len(outside),
            unattributed_gpu_time_ns=int((kernels.end[outside] - kernels.start[outside]).sum()),
            unknown_launch_count=int((kernels.host_time[outside] < 0).sum()),
            adopted_kernel_count=int(attribution.kernels.adopted[chosen].sum()),
            graph_kernel_count=int((kernels.graph_node[chosen] >= 0).sum()),
            graph_launches=len(graphs),
            graph_time_ns=int((timeline.graphs.end[graphs] - timeline.graphs.start[graphs]).sum()),
            memory=MemoryWork(
                count=len(copies),
                time_ns=int((timeline.copies.end[copies] - timeline.copies.start[copies]).sum()),
                bytes=int(sizes[copies].sum()) if sizes is not None else 0,
            ),
            gpu_busy_ns=rolled.scope_busy,
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
            _record(strings[label], device, calls, total, low, high)
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

    # -- counters ---------------------------------------------------------------------------------

    def _metrics(self, part: ScopePart) -> dict[int, _Metrics]:
        """Counters of every kept region, from the samples of its launches."""
        join, signature_of = self._join, self._signature_of
        if join is None or signature_of is None:
            return {}
        table = self.attribution.table
        rows = exclusive_rows(self.timeline.kernels, self.attribution, part.selection.kernels, signature_of)
        groups = self._groups_of(rows, join)
        grouped = evolve(rows, label=groups)
        inclusive = _rows_per_region(lift(grouped, self.attribution))
        exclusive = _rows_per_region([grouped])
        found = {}
        for number in range(len(table)):
            if self._kept[number] and not table.start_end[number]:
                metrics = self._metrics_of(
                    number, _launch_rows(inclusive.get(number)), _launch_rows(exclusive.get(number)), part
                )
                if metrics is not None:
                    found[number] = metrics
        return found

    def _groups_of(self, rows: KernelRows, join: Join) -> Int64s:
        """The group of samples for each row of launches."""
        table = self.attribution.table
        places = {n: (table.domain[n], table.path(n)) for n in np.unique(rows.region).tolist()}
        groups = [
            join.group_for(*places[region], signature)
            for region, signature in zip(rows.region.tolist(), rows.label.tolist(), strict=True)
        ]
        return np.array(groups, dtype=np.int64)

    def _metrics_of(
        self, number: int, inclusive: LaunchRows, exclusive: LaunchRows, part: ScopePart
    ) -> _Metrics | None:
        join, table = self._join, self.attribution.table
        assert join is not None
        metrics = join.estimate(inclusive)
        whole = self._whole_metrics(number, table.domain[number], tuple(table.path(number)), part)
        self._compare(table.key(number), metrics, whole)
        metrics |= whole
        if not metrics:
            return None
        shares = _time_shares(join, inclusive)
        return _Metrics(
            inclusive=metrics,
            exclusive=join.estimate(exclusive),
            rules=rules_of(join.samples, sorted(shares), shares),
            sections=_sections(join.samples, metrics),
        )

    def _compare(self, key: str, estimate: dict[str, MetricValue], whole: dict[str, MetricValue]) -> None:
        """Note where kernels added up and the region measured as a whole do not tell the same."""
        for name, truth in whole.items():
            added = estimate.get(name)
            if added is None or truth.rollup != "sum" or not truth.value or name == TIME:
                continue
            ratio = added.value / truth.value
            if not 0.9 <= ratio <= 1.1:
                self._differences[f"{key} {name}: {ratio:.2f} times"] = abs(np.log(max(ratio, 1e-9)))

    def _whole_metrics(
        self, number: int, domain: str, path: tuple[str, ...], part: ScopePart
    ) -> dict[str, MetricValue]:
        """Results of range or graph replay: they measured the region itself, so they win over sums of kernels."""
        assert self._join is not None
        rows = self._join.whole_rows(domain, path)
        metrics = add_up_results(self._join.samples, rows)
        if not metrics:
            return {}
        ranges = part.selection.ranges
        instances = int((self.attribution.range_region[ranges] == number).sum())
        if metrics and instances > len(rows):
            for value in metrics.values():
                if value.rollup == "sum":
                    value.value *= instances / len(rows)
                    value.source = "extrapolated"
                value.coverage = len(rows) / instances
        return metrics

    def _cover(self, part: ScopePart) -> None:
        """How far the samples reach into the regions reported, and a word where they fall short."""
        join, signature_of = self._join, self._signature_of
        assert join is not None
        assert signature_of is not None
        kept = np.array([*self._kept, False], dtype=np.bool_)  # the last stands for ROOT
        inside = np.zeros(len(self.timeline.kernels), dtype=np.bool_)
        for regions in self.attribution.kernels.by_domain:
            inside |= kept[regions]
        chosen = part.selection.kernels[inside[part.selection.kernels]]
        label = signature_of[chosen]
        duration = (self.timeline.kernels.end - self.timeline.kernels.start)[chosen]
        count = int(label.max()) + 1 if len(label) else 0
        calls = np.bincount(label, minlength=count).astype(np.int64)
        total = np.bincount(label, weights=duration, minlength=count).astype(np.int64)
        used = np.flatnonzero(calls)
        self.coverage = coverage_of(join, LaunchRows(used, calls[used], total[used]), self._unmatched)
        self._say_coverage(self.coverage)

    def _say_coverage(self, coverage: Coverage) -> None:
        if self._differences:
            worst = sorted(self._differences, key=lambda text: -self._differences[text])[:5]
            self.diagnostics.append(
                Diagnosis(
                    "ESTIMATE_DIFFERS",
                    "warning",
                    "Counters of single kernels added up differ from the region measured as a whole, which is the one reported: "
                    + "; ".join(worst)
                    + ". Regions without such a measurement may be off in the same way.",
                    "Sample more launches, leave caches alone (--cache-control none), and record all from the same command.",
                )
            )
        missing = coverage.signatures - coverage.signatures_matched
        if missing and coverage.results:
            share = 1 - coverage.gpu_time_matched_ns / coverage.gpu_time_ns if coverage.gpu_time_ns else 0.0
            self.diagnostics.append(
                Diagnosis(
                    "SIGNATURES_WITHOUT_COUNTERS",
                    "warning" if share > 0.05 else "info",
                    f"{missing} of {coverage.signatures} kernel signatures in the regions have no counters "
                    f"({share:.1%} of their GPU time); metrics say how much they cover.",
                    "Profile those launches too: " + "; ".join(coverage.unmatched_signatures[:3]),
                )
            )
        if coverage.results_unmatched:
            self.diagnostics.append(
                Diagnosis(
                    "COUNTERS_WITHOUT_LAUNCH",
                    "warning",
                    f"{coverage.results_unmatched} of {coverage.results} ncu results match no launch of the timeline "
                    "(other shapes, other kernels, or another program) and are not used.",
                    "Record both from the same command: " + "; ".join(coverage.unmatched_results[:3]),
                )
            )


@define(eq=False)
class _Metrics:
    """Counters of one region in one scope."""

    inclusive: dict[str, MetricValue]
    exclusive: dict[str, MetricValue]
    rules: list[Any]
    sections: dict[str, Any]


def kept_regions(table: RegionTable, region_filter: RegionFilter) -> list[bool]:
    """Which regions the patterns select. Parents come first in the table, so one pass reaches down."""
    kept: list[bool] = []
    banned: list[bool] = []
    for number in range(len(table)):
        parent = table.parent[number]
        domain, path = table.domain[number], table.path(number)
        out = (parent != ROOT and banned[parent]) or any(p.matches(domain, path) for p in region_filter.exclude)
        banned.append(out)
        inside = (
            not region_filter.include
            or (parent != ROOT and kept[parent])
            or any(p.matches(domain, path) for p in region_filter.include)
        )
        kept.append(inside and not out)
    return kept


def _stats(number: int, kernels: Sums, copies: Sums, graphs: Sums) -> RegionStats:
    return RegionStats(
        gpu_time_ns=int(kernels.time[number]),
        kernel_count=int(kernels.count[number]),
        memory=MemoryWork(int(copies.count[number]), int(copies.time[number]), int(copies.bytes[number])),
        graph_launches=int(graphs.count[number]),
        graph_time_ns=int(graphs.time[number]),
    )


def _record(name: str, device: int | None, calls: int, total: int, low: int, high: int) -> KernelRecord:
    return KernelRecord(
        kernel_name=name,
        device=device,
        total_ms=total / 1e6,
        calls=calls,
        mean_ms=total / calls / 1e6,
        min_ms=low / 1e6,
        max_ms=high / 1e6,
        short_name=short_kernel_name(name),
    )


def _rows_per_region(levels: list[KernelRows]) -> dict[int, tuple[KernelRows, Int64s]]:
    """For each region its table of rows and which of them are its own."""
    found = {}
    for rows in levels:
        order = np.argsort(rows.region, kind="stable")
        cuts = np.flatnonzero(np.diff(rows.region[order])) + 1
        for part in np.split(order, cuts):
            if len(part):
                found[int(rows.region[part[0]])] = (rows, part)
    return found


def _launch_rows(rows: tuple[KernelRows, Int64s] | None) -> LaunchRows:
    if rows is None:
        empty = np.zeros(0, dtype=np.int64)
        return LaunchRows(empty, empty, empty)
    table, which = rows
    return LaunchRows(table.label[which], table.calls[which], table.total[which])


def _time_shares(join: Join, launches: LaunchRows) -> dict[int, float | None]:
    """Share of the region's GPU time each sample stands for: its group's, split among the group's samples."""
    total = int(launches.total.sum())
    shares: dict[int, float | None] = {}
    for group, time in zip(launches.label.tolist(), launches.total.tolist(), strict=True):
        rows = join.groups[group]
        for row in rows:
            shares[row] = (shares.get(row) or 0.0) + (time / total / len(rows) if total else 0.0)
    return shares


def _sections(samples: Samples, metrics: dict[str, MetricValue]) -> dict[str, Any]:
    """ncu's sections, each with those of its counters that the region has."""
    found = {}
    for section, names in samples.sections.items():
        if here := [name for name in names if name in metrics]:
            found[section] = {"metrics": here}
    return found


# -- counters alone --------------------------------------------------------------------------------


def _counter_scopes(
    counter_sets: list[CounterSet],
    options: ReportOptions,
    region_filter: RegionFilter,
    kernel_filter: NameFilter,
) -> tuple[list[Scope], RegionTable]:
    samples = Samples.of(counter_sets)
    chosen = [
        row
        for row, action in enumerate(samples.actions)
        if action.kind != "kernel" or kernel_filter.keeps(action.name, short_kernel_name(action.name))
    ]
    table = RegionTable()
    own: dict[int, list[int]] = {}
    for row in chosen:
        action = samples.actions[row]
        for domain, stack in action.push_pop.items():
            own.setdefault(table.intern_path(domain, stack), []).append(row)
        for domain, names in action.start_end.items():
            for name in dict.fromkeys(names):
                own.setdefault(table.intern(domain, True, ROOT, name), []).append(row)
    kept = kept_regions(table, region_filter)
    expressions = ncu_expressions(table)
    groups: list[tuple[str, list[int], int | None, int | None]] = []
    pids = sorted({p for row in chosen if (p := samples.actions[row].process) is not None})
    devices = sorted({d for row in chosen if (d := samples.actions[row].device) is not None})
    only_pid = pids[0] if len(pids) == 1 else None
    only_device = devices[0] if len(devices) == 1 else None
    for pid in pids:
        rows = [r for r in chosen if samples.actions[r].process == pid]
        groups.append((f"process:{pid}", rows, pid, _only(samples.actions[r].device for r in rows)))
    for device in devices:
        rows = [r for r in chosen if samples.actions[r].device == device]
        groups.append((f"device:{device}", rows, _only(samples.actions[r].process for r in rows), device))
    if options.aggregate:
        groups.append(("aggregate", chosen, only_pid, only_device))
    scopes = [_counter_scope(samples, table, own, kept, expressions, region_filter, *group) for group in groups]
    return scopes, table


def _only(values: Iterable[int | None]) -> int | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _counter_scope(
    samples: Samples,
    table: RegionTable,
    own: dict[int, list[int]],
    kept: list[bool],
    expressions: list[str],
    region_filter: RegionFilter,
    name: str,
    rows: list[int],
    process_id: int | None,
    device: int | None,
) -> Scope:
    inside = set(rows)
    mine = {number: [r for r in members if r in inside] for number, members in own.items()}
    below = {number: list(members) for number, members in mine.items()}
    for number in range(len(table) - 1, -1, -1):
        if table.parent[number] != ROOT:
            below.setdefault(table.parent[number], []).extend(below.get(number, []))
    regions = []
    for number in table.in_tree_order():
        members = sorted(below.get(number, []))
        if not members or not kept[number]:
            continue
        inclusive = _result_stats(samples, members, mine.get(number, []))
        parent = table.parent[number]
        whole = [r for r in mine.get(number, []) if samples.actions[r].kind == "range"]
        regions.append(
            NCUProfileRegion(
                name=table.name[number],
                domain=table.domain[number],
                path=table.path(number),
                parent=None if parent == ROOT else table.key(parent),
                depth=table.depth[number],
                device=device,
                process_id=process_id,
                instances=len(whole) or None,
                inclusive=inclusive,
                exclusive=_result_stats(samples, mine.get(number, []), mine.get(number, [])),
                key=table.key(number),
                range_kind="start_end" if table.start_end[number] else "push_pop",
                time_source="ncu",
                nvtx_include=expressions[number],
                sections=_sections(samples, inclusive.metrics),
                rules=rules_of(samples, members, _result_shares(samples, members)),
                kernels=_result_kernels(samples, members),
                selection=region_filter.as_json(),
            )
        )
    kernels = [r for r in rows if samples.actions[r].kind == "kernel"]
    outside = [r for r in kernels if not samples.actions[r].push_pop and not samples.actions[r].start_end]
    return Scope(
        scope=name,
        totals=ScopeTotals(
            gpu_time_ns=samples.time_ns(rows),
            kernel_count=_kernel_count(samples, rows),
            unattributed_kernel_count=len(outside),
            unattributed_gpu_time_ns=samples.time_ns(outside) if outside else 0,
        ),
        regions=regions,
        kernels=_result_kernels(samples, rows),
    )


def _result_stats(samples: Samples, rows: list[int], own: list[int]) -> RegionStats:
    """Values of some results. A range result of the region itself measured it whole: it stands alone."""
    whole = [r for r in own if samples.actions[r].kind == "range"]
    parts = [r for r in rows if samples.actions[r].kind != "range"]
    chosen = whole or parts or rows
    metrics = (
        add_up_results(samples, parts) | add_up_results(samples, whole) if whole else add_up_results(samples, chosen)
    )
    return RegionStats(
        gpu_time_ns=samples.time_ns(chosen),
        kernel_count=_kernel_count(samples, chosen),
        metrics=metrics,
        graph_launches=sum(samples.actions[r].kind == "graph" for r in chosen),
    )


def _kernel_count(samples: Samples, rows: list[int]) -> int:
    """Kernels measured one by one, and those known to be inside range results."""
    actions = [samples.actions[r] for r in rows]
    return sum(1 if a.kind == "kernel" else (a.kernels_inside or 0) for a in actions)


def _result_shares(samples: Samples, rows: list[int]) -> dict[int, float | None]:
    total = samples.time_ns(rows)
    if not total:
        return dict.fromkeys(rows)
    return {r: (samples.actions[r].time_ns() or 0.0) / total for r in rows}


def _result_kernels(samples: Samples, rows: list[int]) -> list[KernelRecord]:
    groups: dict[tuple[str, int | None], list[int]] = {}
    for row in rows:
        action = samples.actions[row]
        if action.kind == "kernel":
            groups.setdefault((action.name, action.device), []).append(row)
    records = []
    for (name, device), members in groups.items():
        total = samples.time_ns(members)
        if total is None:
            records.append(KernelRecord(name, device, None, len(members), None, None, None, short_kernel_name(name)))
            continue
        times = [round(samples.actions[r].time_ns() or 0) for r in members]
        records.append(_record(name, device, len(members), total, min(times), max(times)))
    return sorted(records, key=lambda r: -(r.total_ms or 0))


def with_ranks(timeline: Timeline, rank: int) -> Timeline:
    """The same timeline, its processes known to be of this rank."""
    return evolve(timeline, processes=[evolve(p, rank=rank) if p.rank is None else p for p in timeline.processes])
