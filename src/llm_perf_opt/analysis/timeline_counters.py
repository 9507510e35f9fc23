"""Counters of the regions of a timeline: samples scaled by launches, and results that measured a region whole."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from attrs import Factory, define, evolve, field

from llm_perf_opt.analysis.fitted import copied_bytes, fit, scaled
from llm_perf_opt.analysis.join import (
    NO_SAMPLES,
    Join,
    LaunchRows,
    Place,
    coverage_of,
    join_samples,
    scale_of,
    stage_levels,
)
from llm_perf_opt.analysis.sample_matrix import TIME, Samples, add_up_results, rules_of, sum_of_parts
from llm_perf_opt.analysis.sampled_bytes import SampledBytes, Values, own_values, used_by_others
from llm_perf_opt.analysis.scopes import ScopePart
from llm_perf_opt.analysis.selected import sections_of
from llm_perf_opt.analysis.verdicts.counted_work import amounts_of, usable
from llm_perf_opt.analysis.verdicts.launches import Kind, KindList, Launches
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.duration_clusters import DurationClusters, context_of, queue_of
from llm_perf_opt.regions.kernel_rows import KernelRows, exclusive_rows, lift, rows_per_region
from llm_perf_opt.regions.model import Coverage, MetricValue, RuleFinding
from llm_perf_opt.regions.rollup import RolledUp, Sums
from llm_perf_opt.regions.signatures import NEIGHBOUR, Signature, describe_signatures
from llm_perf_opt.regions.table import ROOT, RegionTable

_AGREE = (0.9, 1.1)  # estimate over truth: outside of this a warning is due
_WORTH_A_VALUE = 0.005  # of a region's bytes


@define(eq=False)
class RegionMetrics:
    """Counters of one region in one scope."""

    inclusive: dict[str, MetricValue]
    exclusive: dict[str, MetricValue]
    rules: list[RuleFinding]
    sections: dict[str, Any]


def sampled_metrics(values: Mapping[int, Values], table: RegionTable, rolled: RolledUp) -> dict[int, RegionMetrics]:
    """Bytes of regions that samples of the GPU alone tell."""
    own = own_values(values, table, rolled)
    return {number: RegionMetrics(dict(of), own.get(number, {}), [], {}) for number, of in values.items() if of}


@define(eq=False)
class TimelineCounters:
    """Counter results joined to a timeline and its attribution."""

    timeline: Timeline
    attribution: Attribution
    samples: Samples
    kept: list[bool]  # regions the report shows
    everything: RolledUp  # the whole timeline: decides which region a range result measured
    _signature_of: Int64s = field(init=False)
    _clusters: DurationClusters = field(init=False)
    _join: Join = field(init=False)
    _differences: dict[str, float] = Factory(dict)
    _moved_otherwise: dict[str, float] = Factory(dict)  # what to say of it, and by how many bytes
    _described: list[Signature] = field(init=False)
    _regions: dict[Place, int] = field(init=False)
    _kinds: KindList = Factory(KindList)
    _good: set[str] = Factory(set)  # counters whose meaning and unit are known
    _outside: int = 0  # results of kernels that are launched in no reported region
    _last: tuple[ScopePart, KernelRows, Int64s] | None = None

    def __attrs_post_init__(self) -> None:
        self._good = usable(self.samples.info)[0]
        self._signature_of, self._described = describe_signatures(self.timeline)
        self._regions = {place_of(self.attribution.table, n): n for n in range(len(self.attribution.table))}

        def kernels_per_instance(place: Place) -> float | None:
            number = self._regions.get(place)
            if number is None or not self.everything.present[number]:
                return None
            return float(
                self.everything.inclusive.kernels.count[number] / max(int(self.everything.instances[number]), 1)
            )

        has_graphs = len(self.timeline.graphs) > 0
        work = self.timeline.kernels
        duration = work.end - work.start
        calls, total = (
            np.bincount(self._signature_of, weights=weights, minlength=len(self._described))
            for weights in (None, duration)
        )
        durations = (total / np.maximum(calls, 1)).tolist()
        whole = next((place_of(self.attribution.table, n) for n in self.attribution.table.whole), None)
        self._join = join_samples(self.samples, self._described, durations, kernels_per_instance, has_graphs, whole)
        self._join.stage_level = stage_levels(self._regions)
        context = context_of(self._signature_of, queue_of(work))
        self._clusters = self._join.split_into_clusters(self._signature_of, duration, context)

    def attributed(self, attribution: Attribution) -> TimelineCounters:
        """The same join with launches that belong to other regions of the same table."""
        other = copy.copy(self)
        other.attribution, other._last = attribution, None
        other._differences, other._moved_otherwise = {}, {}
        return other

    def metrics(self, part: ScopePart, rolled: RolledUp) -> dict[int, RegionMetrics]:
        """Counters of every kept region in a scope."""
        table = self.attribution.table
        rows, groups = self._rows(part)
        grouped = evolve(rows, label=groups)
        inclusive = rows_per_region(lift(grouped, self.attribution))
        exclusive = rows_per_region([grouped])
        found = {}
        for number in range(len(table)):
            if self.kept[number] and rolled.present[number]:
                all_rows, own_rows = _launch_rows(inclusive.get(number)), _launch_rows(exclusive.get(number))
                metrics = self._metrics_of(number, all_rows, own_rows, rolled)
                if metrics is not None:
                    found[number] = metrics
        if self._join.wholes:
            self._add_up_parts(found, rolled)
        if self.timeline.sampled_gpus:
            self._fit_to_traffic(found, part, rolled)
        return found

    def _fit_to_traffic(self, found: dict[int, RegionMetrics], part: ScopePart, rolled: RolledUp) -> None:
        """Bytes of regions as the GPU was seen to move them, where it was; see `fitted`."""
        table = self.attribution.table
        sampled = SampledBytes.of(self.timeline, self.attribution, part.selection, rolled, self.kept)
        moved = sampled.moved
        for counter in sorted({counter for sums in moved.values() for counter in sums}):
            estimates = {n: metrics.inclusive[counter] for n, metrics in found.items() if counter in metrics.inclusive}
            own = {n: metrics.exclusive[counter].value for n, metrics in found.items() if counter in metrics.exclusive}
            sums = {number: counters[counter] for number, counters in moved.items() if counter in counters}
            fitted = fit(table, estimates, own, sums, copied_bytes(rolled, counter))
            for number, value in fitted.values.items():
                metrics = found[number]
                exclusive = metrics.exclusive.get(counter)
                # Where nothing is below a region, both are the same.
                if exclusive is not None and exclusive is metrics.inclusive[counter]:
                    metrics.exclusive = {**metrics.exclusive, counter: value}
                elif exclusive is not None or fitted.own[number] > _WORTH_A_VALUE * value.value:
                    # Copies, or what the regions below do not explain, where no kernel is right in it.
                    exclusive = scaled(exclusive or evolve(value, launches=0), fitted.own[number])
                    metrics.exclusive = {**metrics.exclusive, counter: exclusive}
                metrics.inclusive = {**metrics.inclusive, counter: value}
                metrics.sections = sections_of(self.samples, metrics.inclusive)
            for number, estimated in fitted.estimated.items():
                total = fitted.values[number].value
                if not _AGREE[0] * total <= estimated <= _AGREE[1] * total:
                    text = f"{table.key(number)} {counter}: {estimated / total:.2f} times"
                    self._moved_otherwise[text] = abs(estimated - total)

        # What no counter of kernels tells of a region, samples alone may.
        alone = {
            number: {
                name: value
                for name, value in values.items()
                if number not in found or name not in found[number].inclusive
            }
            for number, values in sampled.values(rolled).items()
        }
        for number, metrics in sampled_metrics(alone, table, rolled).items():
            known = found.setdefault(number, RegionMetrics({}, {}, [], {}))
            known.inclusive, known.exclusive = known.inclusive | metrics.inclusive, known.exclusive | metrics.exclusive

    def _add_up_parts(self, found: dict[int, RegionMetrics], rolled: RolledUp) -> None:
        """Regions around those that were measured as wholes, from the innermost out."""
        table = self.attribution.table
        below: dict[int, list[int]] = {}
        for number, parent in enumerate(table.parent):
            below.setdefault(parent, []).append(number)
        for number in reversed(table.in_tree_order()):
            parts = [child for child in below.get(number, []) if child in found]
            if number in found or not parts or not self.kept[number] or not rolled.present[number]:
                continue
            times = rolled.inclusive.kernels.time
            summed = sum_of_parts(
                [found[child].inclusive for child in parts], [int(times[c]) for c in parts], int(times[number])
            )
            if summed:
                found[number] = RegionMetrics(summed, {}, [], sections_of(self.samples, summed))

    def launches(self, part: ScopePart) -> dict[int, Launches]:
        """Launches of every kept region in a scope, each with what one launch of its kind does."""
        rows, groups = self._rows(part)
        signatures = self._clusters.signature[rows.label]
        pairs = zip(signatures.tolist(), groups.tolist(), strict=True)
        numbers = [self._kinds.number(pair, partial(self._kind, *pair)) for pair in pairs]
        kinds = np.array(numbers, dtype=np.int64)
        found = {}
        for number, (table, which) in rows_per_region(lift(evolve(rows, label=kinds), self.attribution)).items():
            if self.kept[number]:
                found[number] = Launches(
                    self._kinds.kinds, table.label[which], table.device[which], table.calls[which], table.total[which]
                )
        return found

    def _kind(self, signature: int, group: int) -> Kind:
        name, described = self._join.names[signature], self._described[signature]
        kind = Kind(
            name, family_of(name), described.grid or (), described.block or (), samples=len(self._join.groups[group])
        )
        if group != NO_SAMPLES:
            typical = self._join.statistics()[0][group]
            values = zip(self.samples.metrics, typical.tolist(), strict=True)
            known = {n: v for n, v in values if not math.isnan(v)}
            kind.amounts = amounts_of({n: v for n, v in known.items() if n in self._good})
            kind.sampled_ns = known.get(TIME)
            kind.fill = self.samples.actions[self._join.groups[group][0]].fill
        return kind

    def _rows(self, part: ScopePart) -> tuple[KernelRows, Int64s]:
        """A scope's launches by region and cluster, and the group of samples of each; the last scope's are kept."""
        if self._last is None or self._last[0] is not part:
            of_launch = self._clusters.of_launch
            rows = exclusive_rows(self.timeline.kernels, self.attribution, part.selection.kernels, of_launch)
            self._last = (part, rows, self._groups_of(rows))
        return self._last[1:]

    def _groups_of(self, rows: KernelRows) -> Int64s:
        """The group of samples for each row of launches."""
        places = {n: place_of(self.attribution.table, n) for n in np.unique(rows.region).tolist()}
        pairs = list(zip(rows.region.tolist(), rows.label.tolist(), strict=True))
        durations = _mean_durations(pairs, rows)
        launches = self._launches_of_signatures(rows)
        sampled: dict[tuple[str, int, tuple[int, ...]], float | None] = {}
        groups = []
        for region, cluster in pairs:
            place = places[region]
            signature = int(self._clusters.signature[cluster])
            all_there = self._join.taken_right_in(place, signature)
            if all_there and len(all_there) == launches[region, signature]:
                groups.append(self._join.group(all_there, True))  # each was sampled, of whichever cluster it is
                continue
            found, there = self._join.nearest(place, cluster)
            if not found:
                groups.append(NO_SAMPLES)
                continue
            key = (place[0], cluster, tuple(found))
            if key not in sampled:
                sampled[key] = self._sampled_duration(*key, durations)
            # Start/end ranges are not where a sample says it was taken.
            usual = None if place[1] else sampled[key]
            scale = scale_of(durations[region, cluster], usual) * (self._join.by_cluster[cluster].scale or 1.0)
            groups.append(self._join.group(found, there, scale))
        return np.array(groups, dtype=np.int64)

    def _launches_of_signatures(self, rows: KernelRows) -> dict[tuple[int, int], int]:
        """Launches of each region and signature."""
        found: Counter[tuple[int, int]] = Counter()
        signatures = self._clusters.signature[rows.label].tolist()
        for region, signature, calls in zip(rows.region.tolist(), signatures, rows.calls.tolist(), strict=True):
            found[region, signature] += calls
        return found

    def _sampled_duration(
        self, domain: str, cluster: int, samples: tuple[int, ...], durations: dict[tuple[int, int], float]
    ) -> float | None:
        """How long the timeline has the launches of a cluster in the regions where its samples were taken."""
        stacks = [self.samples.actions[row].push_pop.get(domain, []) for row in samples]
        regions = [self._regions.get((domain, False, tuple(stack)), ROOT) for stack in stacks]
        known = [durations[region, cluster] for region in regions if (region, cluster) in durations]
        return sum(known) / len(known) if known else None

    def _metrics_of(
        self, number: int, inclusive: LaunchRows, exclusive: LaunchRows, rolled: RolledUp
    ) -> RegionMetrics | None:
        place = place_of(self.attribution.table, number)
        everything = self._with_graphs(place, inclusive, rolled.inclusive.graphs, number)
        own = self._with_graphs(place, exclusive, rolled.exclusive.graphs, number)
        metrics = self._join.estimate(everything)
        whole = self._whole_metrics(place, int(rolled.range_instances[number]))
        self._compare(self.attribution.table.key(number), metrics, whole)
        alike = len(own.label) == len(everything.label) and bool((own.calls == everything.calls).all())
        # A region without regions below it has the same values twice.
        own_metrics = metrics if alike else self._join.estimate(own)
        metrics = metrics | whole
        if not metrics:
            return None
        shares = _time_shares(self._join, everything)
        return RegionMetrics(
            inclusive=metrics,
            exclusive=own_metrics,
            rules=rules_of(self.samples, sorted(shares), shares),
            sections=sections_of(self.samples, metrics),
        )

    def _with_graphs(self, place: Place, launches: LaunchRows, graphs: Sums, number: int) -> LaunchRows:
        """CUDA graphs recorded as one block, as launches: results of whole graphs describe them."""
        count = int(graphs.count[number])
        if not count:
            return launches
        rows = self._join.graphs.get(place, [])
        group = self._join.group(rows, True) if rows else NO_SAMPLES
        return launches.plus(group, count, int(graphs.time[number]))

    def _whole_metrics(self, place: Place, instances: int) -> dict[str, MetricValue]:
        """Results of range replay: they measured the region itself, so they win over sums of kernels."""
        rows = self._join.wholes.get(place, [])
        metrics = add_up_results(self.samples, rows)
        if not rows or not instances:
            return {}
        for value in metrics.values():
            value.launches = instances
            value.coverage = min(len(rows) / instances, 1.0)
            if instances != len(rows):
                # Which results are of which instance, or process, is not known: each is as good as another.
                value.source = "extrapolated"
                if value.rollup == "sum":
                    value.value *= instances / len(rows)
        return metrics

    def _compare(self, key: str, estimate: dict[str, MetricValue], whole: dict[str, MetricValue]) -> None:
        """Note where kernels added up and the region measured as a whole differ."""
        for name, truth in whole.items():
            added = estimate.get(name)
            if added is None or truth.rollup != "sum" or not truth.value or name == TIME:
                continue
            ratio = added.value / truth.value
            if not _AGREE[0] <= ratio <= _AGREE[1]:
                self._differences[f"{key} {name}: {ratio:.2f} times"] = abs(math.log(max(ratio, 1e-9)))

    def coverage(self, kernels: Int64s) -> Coverage:
        """How far the samples reach into the kernels of the regions reported."""
        kept = np.array([*self.kept, False], dtype=np.bool_)  # the last stands for ROOT
        inside = np.zeros(len(self.timeline.kernels), dtype=np.bool_)
        for regions in self.attribution.kernels.by_domain:
            inside |= kept[regions]
        for region, members in self.attribution.kernels.beside_stacks():
            if self.kept[region]:
                inside[members] = True
        chosen = kernels[inside[kernels]]
        label = self._signature_of[chosen]
        duration = (self.timeline.kernels.end - self.timeline.kernels.start)[chosen]
        calls = np.bincount(label).astype(np.int64)
        total = np.bincount(label, weights=duration).astype(np.int64)
        used = np.flatnonzero(calls)
        inside_regions = {row for signature in used.tolist() for row in self._join.by_signature[signature].rows}
        self._outside = len(set(self.samples.kernels) - inside_regions - set(self._join.unmatched))
        return coverage_of(self._join, LaunchRows(used, calls[used], total[used]))

    def diagnoses(self, coverage: Coverage) -> Iterator[Diagnosis]:
        """A word where counters fall short, fit nothing, or contradict each other."""
        if self._differences:
            yield diagnose("ESTIMATE_DIFFERS", worst=_worst(self._differences))
        yield from used_by_others(self.timeline)
        if self._moved_otherwise:
            yield diagnose("FITTED_TO_TRAFFIC", worst=_worst(self._moved_otherwise))
        missing = coverage.signatures - coverage.signatures_matched
        gpu_time = coverage.gpu_time_ns or math.inf
        if missing and self.samples.kernels:
            share = (coverage.gpu_time_ns - coverage.gpu_time_matched_ns) / gpu_time
            yield diagnose(
                "SIGNATURES_WITHOUT_COUNTERS" if share > 0.05 else "SIGNATURES_WITHOUT_COUNTERS.small",
                missing=missing,
                signatures=coverage.signatures,
                share=share,
                examples="; ".join(coverage.unmatched_signatures[:3]),
            )
        if coverage.signatures_scaled:
            yield diagnose(
                "SIGNATURES_SCALED",
                scaled=coverage.signatures_scaled,
                signatures=coverage.signatures,
                share=coverage.gpu_time_scaled_ns / gpu_time,
                difference=NEIGHBOUR - 1,
            )
        if self._outside:
            yield diagnose("COUNTERS_OUTSIDE_REGIONS", outside=self._outside, results=coverage.results)
        if coverage.results_unmatched:
            yield diagnose(
                "COUNTERS_WITHOUT_LAUNCH",
                unmatched=coverage.results_unmatched,
                results=coverage.results,
                examples="; ".join(coverage.unmatched_results[:3]),
            )


def _worst(differences: dict[str, float]) -> str:
    return "; ".join(sorted(differences, key=lambda text: -differences[text])[:5])


def place_of(table: RegionTable, number: int) -> Place:
    return table.domain[number], table.start_end[number], tuple(table.path(number))


def _mean_durations(pairs: list[tuple[int, int]], rows: KernelRows) -> dict[tuple[int, int], float]:
    """Mean duration of the launches of each region and cluster, all devices together."""
    calls: Counter[tuple[int, int]] = Counter()
    time: Counter[tuple[int, int]] = Counter()
    for pair, own_calls, own_time in zip(pairs, rows.calls.tolist(), rows.total.tolist(), strict=True):
        calls[pair] += own_calls
        time[pair] += own_time
    return {pair: time[pair] / max(calls[pair], 1) for pair in calls}


def _launch_rows(rows: tuple[KernelRows, Int64s] | None) -> LaunchRows:
    if rows is None:
        return LaunchRows.empty()
    table, which = rows
    # Clusters may share a group of samples.
    label, number = np.unique(table.label[which], return_inverse=True)
    summed = (np.bincount(number, weights=column[which], minlength=len(label)) for column in (table.calls, table.total))
    return LaunchRows(label, *(values.astype(np.int64) for values in summed))


def _time_shares(join: Join, launches: LaunchRows) -> dict[int, float | None]:
    """Share of the region's GPU time each sample stands for: its group's, split among the group's samples."""
    total = int(launches.total.sum())
    shares: dict[int, float | None] = {}
    for group, time in zip(launches.label.tolist(), launches.total.tolist(), strict=True):
        rows = join.groups[group]
        for row in rows:
            shares[row] = (shares.get(row) or 0.0) + (time / total / len(rows) if total else 0.0)
    return shares
