"""The report of many timelines, one in memory at a time: the ranks of a large job, each in a file of its own.

A timeline of a million kernels becomes a few thousand numbers (what each region of each of its scopes adds up
to), and is let go before the next one is read. The first is kept whole: pictures of single launches are of it.
Attribution and busy time never cross recordings, so clocks of different hosts need not agree.
"""

from __future__ import annotations

import attrs
import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.code_lines import CodeLines
from llm_perf_opt.analysis.known_code import KnownCode
from llm_perf_opt.analysis.known_waiting import KnownWaiting
from llm_perf_opt.analysis.rank_comparison import RankComparison
from llm_perf_opt.analysis.rank_steps import OfRank, steps_of
from llm_perf_opt.analysis.ranks import RankCalls, rank_calls
from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.analysis.sampled_bytes import SampledBytes, used_by_others
from llm_perf_opt.analysis.scope_builder import ScopeBuilder
from llm_perf_opt.analysis.scopes import (
    AGGREGATE,
    ProcessUse,
    ScopeName,
    ScopePart,
    name_scopes,
    same_selection,
    timeline_scopes,
)
from llm_perf_opt.analysis.steady import RegionTimes, SteadyTimeline
from llm_perf_opt.analysis.timeline_counters import RegionMetrics, sampled_metrics
from llm_perf_opt.analysis.timeline_report import (
    bounds_of,
    kernel_mask,
    limited,
    names_in,
    pooling,
    saw_gpu,
    seen_by_ncu,
    totals_of,
    warmed_up,
)
from llm_perf_opt.analysis.verdicts.performance import SteadyRegion
from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.analysis.waiting import Waiting
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.combine import CommonNames, Translated, combined
from llm_perf_opt.regions.copy_work import MemoryWork
from llm_perf_opt.regions.instances import Instances
from llm_perf_opt.regions.model import Scope, ScopeTotals
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter
from llm_perf_opt.regions.prepared import find_regions, prepare_timeline
from llm_perf_opt.regions.rollup import RolledUp, roll_up
from llm_perf_opt.regions.used_gpus import UsedGpus

_MOST_EXPLAINED = 96  # regions of each recording whose waiting is looked into
_MOST_KERNEL_ROWS = 300_000  # in all scopes together; beyond that regions list their longest only


@define(eq=False)
class _Piece:
    """One scope of one recording, as far as it adds up."""

    part: Translated
    steady: Translated | None  # the same without warm-up; None where there is none
    inside: Int64s  # of each region, the instances that steady regions around it hold
    times: dict[int, RegionTimes]
    totals: ScopeTotals
    bounds: tuple[int, int] | None
    sampled: SampledBytes
    steady_sampled: SampledBytes
    gpus: UsedGpus
    waiting: KnownWaiting | None  # None where the scope has a part of what its processes did
    code: KnownCode | None  # None where the recording tells of none


@define(eq=False)
class TimelineStream:
    """Takes timelines one by one and builds their scopes at the end."""

    options: ReportOptions
    region_filter: RegionFilter
    kernel_filter: NameFilter
    diagnostics: list[Diagnosis] = Factory(list)
    existing: list[str] = Factory(list)
    first: tuple[Timeline, Attribution, Instances] | None = None
    facts: list[Timeline] = Factory(list)  # the timelines without their columns
    range_names: list[set[str]] = Factory(list)  # of each timeline
    _names: CommonNames = Factory(CommonNames)
    _seen_by_ncu: set[int] = Factory(set)
    _processes: list[tuple[ProcessUse, _Piece]] = Factory(list)
    _pieces: dict[str, list[_Piece]] = Factory(dict)  # of all other scopes, by name
    _saw_gpu: bool = False
    _gpus: list[UsedGpus] = Factory(list)  # of each timeline
    _calls: list[RankCalls] = Factory(list)
    _steps: list[tuple[int, OfRank]] = Factory(list)
    ranks: RankComparison = Factory(RankComparison)
    steady: dict[str, dict[str, SteadyRegion]] = Factory(dict)  # scope -> region key; empty where nothing warms up
    waiting: dict[str, KnownWaiting] = Factory(dict)  # by scope
    code: dict[str, KnownCode] = Factory(dict)  # the same

    def add(self, timeline: Timeline) -> None:
        """Take what a timeline adds to the report."""
        timeline = prepare_timeline(timeline, self.region_filter)
        timeline, attribution = find_regions(timeline, self.options.attribution)
        regions = self._names.regions_of(attribution.table)
        self._names.table.simplified = self._names.table.simplified or attribution.table.simplified
        labels = self._names.labels_of(timeline.strings, np.unique(timeline.kernels.name))
        self._seen_by_ncu |= set(regions[sorted(seen_by_ncu(timeline, attribution))].tolist())
        self.diagnostics += used_by_others(timeline)
        self._saw_gpu = self._saw_gpu or saw_gpu(timeline)
        self._calls += rank_calls(timeline, attribution, regions)
        warmth, gpus = SteadyTimeline.of(timeline, attribution), UsedGpus.of(timeline)
        self._gpus.append(gpus)
        self._steps += steps_of(timeline, attribution, warmth.instances, regions)
        code = CodeLines.of(warmth) if self.options.verdicts else None
        waiting = Waiting(warmth, code) if self.options.verdicts else None
        done: list[tuple[ScopePart, _Piece]] = []
        parts = timeline_scopes(timeline, kernel_mask(timeline, self.kernel_filter), aggregate=True)
        for part in parts:
            piece = next((p for known, p in done if same_selection(known.selection, part.selection)), None)
            if piece is None:
                rolled = roll_up(timeline, attribution, part.selection)
                totals = totals_of(timeline, attribution, part, rolled)
                warm = warmth.rolled(part.selection) if warmth.has_warmup else None
                sampled = steady_sampled = SampledBytes.of(timeline, attribution, part.selection, rolled)
                if warm is not None:
                    selection = warmth.selection(part.selection)
                    steady_sampled = SampledBytes.of(timeline, warmth.lifted, selection, warm)
                piece = _Piece(
                    Translated.of(rolled, regions, labels),
                    None if warm is None else Translated.of(warm, regions, labels),
                    _renumbered(warmth.inside_steady(part.selection), regions),
                    {int(regions[n]): found for n, found in warmth.times(part.selection).items()},
                    totals,
                    bounds_of(timeline, part),
                    sampled.renumbered(regions),
                    steady_sampled.renumbered(regions),
                    gpus,
                    _explained(waiting and waiting.of_scope(part.selection), attribution, warm or rolled),
                    _coded(code and code.of_scope(part.selection.kernels), attribution, warm or rolled),
                )
                done.append((part, piece))
            if part.process is not None:
                self._processes.append((part.process, piece))
            else:
                self._pieces.setdefault(part.name, []).append(piece)
        timeline.merged.clear()  # as large as its kernels, and nobody asks again
        self.range_names.append(names_in(timeline, timeline.ranges.name))
        if self.first is None:
            self.first = timeline, attribution, warmth.instances
        self.facts.append(_without_columns(timeline))

    @property
    def kernel_names(self) -> set[str]:
        return set(self._names.strings)

    def scopes(self) -> list[Scope]:
        """Every process, device and rank, and all of them together."""
        size = len(self._names.table)
        builder = ScopeBuilder(
            self._names.table, self._names.strings, self.region_filter, self._saw_gpu, self._seen_by_ncu
        )
        whole = combined([piece.part for piece in self._pieces[AGGREGATE]], size)
        self.existing = builder.existing(whole)
        plan = self._plan()
        limit, diagnoses = limited(len(builder.present(whole)), len(plan))
        rows = sum(len(level.region) for level in whole.kernel_rows)
        # An estimate: each scope has fewer rows than all together.
        cut = self.options.top if rows * len(plan) > _MOST_KERNEL_ROWS and limit is not None else None
        self.diagnostics += diagnoses + pooling(self._names.table, self.region_filter)
        main = plan[-1 if self.options.aggregate else 0][0]
        scopes: list[Scope] = []
        for scope, pieces in plan:
            rolled = whole if scope.name == AGGREGATE else combined([piece.part for piece in pieces], size)
            scopes.append(
                builder.scope(
                    scope.name,
                    rolled,
                    self._totals(pieces),
                    process_id=scope.process_id,
                    device=scope.device,
                    metrics=self._sampled([(piece.sampled, piece.gpus) for piece in pieces], rolled),
                    most_regions=None if scope is main else limit,
                    most_kernels=cut,
                )
            )
            self._add_times(scopes[-1], pieces)
            if known := [piece.waiting for piece in pieces if piece.waiting is not None]:
                self.waiting[scope.name] = KnownWaiting.together(known)
            if lines := [piece.code for piece in pieces if piece.code is not None]:
                self.code[scope.name] = KnownCode.together(lines)
            if any(piece.steady is not None for piece in pieces):
                self.steady[scope.name] = self._steady_regions(builder, scope, pieces, warmed_up(scopes[-1]))
        self.diagnostics += builder.diagnoses()
        self.ranks = RankComparison.of(self._calls, self._steps, scopes, self._names.table)
        return scopes

    def _add_times(self, scope: Scope, pieces: list[_Piece]) -> None:
        parts: dict[str, list[RegionTimes]] = {}
        for piece in pieces:
            for number, times in piece.times.items():
                parts.setdefault(self._names.table.key(number), []).append(times)
        for region in scope.regions:
            region.timing = RegionTimes.together(parts[region.key]).timing() if region.key in parts else None

    def _steady_regions(
        self, builder: ScopeBuilder, scope: ScopeName, pieces: list[_Piece], keys: set[str]
    ) -> dict[str, SteadyRegion]:
        """Those regions of a scope as they are once the program is warm."""
        size = len(self._names.table)
        rolled = combined([piece.steady or piece.part for piece in pieces], size)
        metrics = self._sampled([(piece.steady_sampled, piece.gpus) for piece in pieces], rolled)
        totals = self._totals(pieces)
        warm = builder.scope(
            scope.name, rolled, totals, process_id=scope.process_id, device=scope.device, metrics=metrics
        )
        inside = sum((_padded(piece.inside, size) for piece in pieces), start=np.zeros(size, dtype=np.int64))
        held = {self._names.table.key(number): int(count) for number, count in enumerate(inside.tolist())}
        return {r.key: SteadyRegion(r, None, held[r.key]) for r in warm.regions if r.key in keys and r.instances}

    def _sampled(self, parts: list[tuple[SampledBytes, UsedGpus]], rolled: RolledUp) -> dict[int, RegionMetrics]:
        """Samples of a GPU that ranks share are of the work of both: whose bytes they are nobody knows."""
        known = [part.dropped() if gpus.shares_with(self._gpus) else part for part, gpus in parts]
        return sampled_metrics(SampledBytes.together(known).values(rolled), self._names.table, rolled)

    def _plan(self) -> list[tuple[ScopeName, list[_Piece]]]:
        """Every scope with its pieces, in the order of the report."""
        busy = [(process, piece) for process, piece in self._processes if process.devices]
        busy = busy or [one for one in self._processes if one[0].rank is not None] or self._processes[:1]
        ranks = [int(name.removeprefix("rank:")) for name in self._pieces if name.startswith("rank:")]
        names = name_scopes([process for process, _ in busy], ranks, self.options.aggregate)
        # Scopes of processes come first.
        pieces = [[piece] for _, piece in busy] + [self._pieces[scope.name] for scope in names[len(busy) :]]
        return list(zip(names, pieces, strict=True))

    def _totals(self, pieces: list[_Piece]) -> ScopeTotals:
        """The sum of what the recordings say; a time that only some of them know is the sum of those."""
        parts = [piece.totals for piece in pieces]
        bounds = [piece.bounds for piece in pieces if piece.bounds is not None]
        total = ScopeTotals(gpu_time_ns=0, kernel_count=0, gpu_busy_ns=0)
        for name in attrs.fields_dict(ScopeTotals):
            if name not in ("memory", "span_ns"):
                setattr(total, name, sum(getattr(t, name) or 0 for t in parts))
        for name in attrs.fields_dict(MemoryWork):
            setattr(total.memory, name, sum(getattr(t.memory, name) for t in parts))
        if not self._saw_gpu:
            total.gpu_time_ns = total.gpu_busy_ns = None
        total.span_ns = max(e for _, e in bounds) - min(s for s, _ in bounds) if bounds else None
        return total


def _explained(waiting: Waiting | None, attribution: Attribution, rolled: RolledUp) -> KnownWaiting | None:
    """What a recording says of the waiting of the regions that take most of its time, before it is let go."""
    if waiting is None:
        return None
    known, late = KnownWaiting(), verdict_rules().thresholds["returns_early"]
    for number in _longest(rolled):
        wall, busy, idle = (int(column[number]) for column in (rolled.wall, rolled.busy, rolled.idle))
        if wall:
            early = busy - (wall - idle) > late * wall
            copies = bool(rolled.inclusive.host_copies.time[number])
            known.add(waiting, attribution.table.key(number), early=early, copies=copies)
    return known


def _coded(code: CodeLines | None, attribution: Attribution, rolled: RolledUp) -> KnownCode | None:
    """The same of the lines that launch."""
    return None if code is None else KnownCode.of(code, [attribution.table.key(n) for n in _longest(rolled)])


def _longest(rolled: RolledUp) -> list[int]:
    found: list[int] = np.argsort(-np.maximum(rolled.wall, rolled.busy), kind="stable")[:_MOST_EXPLAINED].tolist()
    return found


def _renumbered(counts: Int64s, regions: Int64s) -> Int64s:
    """Counts of the regions of a recording by the numbers of the common table."""
    found = np.zeros(int(regions.max()) + 1 if len(regions) else 0, dtype=np.int64)
    np.add.at(found, regions, counts)
    return found


def _padded(counts: Int64s, size: int) -> Int64s:
    return np.pad(counts, (0, size - len(counts)))


def _without_columns(timeline: Timeline) -> Timeline:
    """What a report says of the recording itself. A single column would keep everything that was read with it."""
    columns = {name: getattr(timeline, name) for name in attrs.fields_dict(Timeline) if name != "merged"}
    empty = {name: value.empty() for name, value in columns.items() if hasattr(value, "empty")}
    return attrs.evolve(timeline, strings=[], traffic={}, traffic_of_parts=[], **empty)
