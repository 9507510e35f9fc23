"""The report of many timelines, one in memory at a time: the ranks of a large job, each in a file of its own.

A timeline of a million kernels becomes a few thousand numbers (what each region of each of its scopes adds up
to), and is let go before the next one is read. The first is kept whole: pictures of single launches are of it.
Attribution and busy time never cross recordings, so clocks of different hosts need not agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs
import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.analysis.scope_builder import ScopeBuilder
from llm_perf_opt.analysis.scopes import AGGREGATE, ScopePart, same_selection, timeline_scopes
from llm_perf_opt.analysis.timeline_report import (
    bounds_of,
    kernel_mask,
    limited,
    pooling,
    saw_gpu,
    seen_by_ncu,
    totals_of,
)
from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.regions.attribution import Attribution, attribute
from llm_perf_opt.regions.columns import Ranges, Timeline, Work
from llm_perf_opt.regions.combine import CommonNames, Translated, combined
from llm_perf_opt.regions.model import MemoryWork, Scope, ScopeTotals
from llm_perf_opt.regions.patterns import NameFilter, RegionFilter
from llm_perf_opt.regions.rollup import roll_up

_MOST_KERNEL_ROWS = 300_000  # in all scopes together; beyond that regions list their longest only


@define(eq=False)
class _Piece:
    """One scope of one recording, as far as it adds up."""

    part: Translated
    totals: ScopeTotals
    bounds: tuple[int, int] | None


@define(eq=False)
class _ProcessPiece:
    """A process of one recording."""

    pid: int
    rank: int | None
    devices: frozenset[int]
    piece: _Piece


@define(eq=False)
class TimelineStream:
    """Takes timelines one by one and builds their scopes at the end."""

    options: ReportOptions
    region_filter: RegionFilter
    kernel_filter: NameFilter
    diagnostics: list[Diagnosis] = Factory(list)
    existing: list[str] = Factory(list)
    first: tuple[Timeline, Attribution] | None = None
    facts: list[Timeline] = Factory(list)  # the timelines without their columns
    range_names: list[set[str]] = Factory(list)  # of each timeline
    _names: CommonNames = Factory(CommonNames)
    _seen_by_ncu: set[int] = Factory(set)
    _processes: list[_ProcessPiece] = Factory(list)
    _devices: dict[int, list[_Piece]] = Factory(dict)
    _ranks: dict[int, list[_Piece]] = Factory(dict)
    _whole: list[_Piece] = Factory(list)
    _saw_gpu: bool = field(default=False)

    def add_all(self, timelines: Iterable[Timeline]) -> None:
        for timeline in timelines:
            self.add(timeline)

    def add(self, timeline: Timeline) -> None:
        """Take what a timeline adds to the report."""
        attribution = attribute(timeline, self.options.attribution)
        regions = self._names.regions_of(attribution.table)
        self._names.table.simplified = self._names.table.simplified or attribution.table.simplified
        labels = self._names.labels_of(timeline.strings, np.unique(timeline.kernels.name))
        self._seen_by_ncu |= set(regions[sorted(seen_by_ncu(timeline, attribution))].tolist())
        self._saw_gpu = self._saw_gpu or saw_gpu(timeline)
        done: list[tuple[ScopePart, _Piece]] = []
        parts = timeline_scopes(timeline, kernel_mask(timeline, self.kernel_filter), aggregate=True)
        for part in parts:
            piece = next((p for known, p in done if same_selection(known.selection, part.selection)), None)
            if piece is None:
                rolled = roll_up(timeline, attribution, part.selection)
                totals = totals_of(timeline, attribution, part, rolled)
                piece = _Piece(Translated.of(rolled, regions, labels), totals, bounds_of(timeline, part))
                done.append((part, piece))
            if part.name == AGGREGATE:
                self._whole.append(piece)
            elif part.name.startswith("device:"):
                assert part.device is not None
                self._devices.setdefault(part.device, []).append(piece)
            elif part.name.startswith("rank:"):
                self._ranks.setdefault(int(part.name.removeprefix("rank:")), []).append(piece)
            else:
                assert part.process_id is not None
                self._processes.append(_ProcessPiece(part.process_id, part.rank, part.devices, piece))
        self.range_names.append({timeline.strings[n] for n in np.unique(timeline.ranges.name).tolist()})
        if self.first is None:
            self.first = timeline, attribution
        self.facts.append(_without_columns(timeline))

    def kernel_names(self) -> set[str]:
        return set(self._names.strings)

    def scopes(self) -> list[Scope]:
        """Every process, device and rank, and all of them together."""
        size = len(self._names.table)
        builder = ScopeBuilder(
            self._names.table, self._names.strings, self.region_filter, self._saw_gpu, self._seen_by_ncu
        )
        whole = combined([piece.part for piece in self._whole], size)
        self.existing = builder.existing(whole)
        plan = self._plan()
        limit, told = limited(len(builder.present(whole)), len(plan))
        rows = sum(len(level.region) for level in whole.kernel_rows)
        # An estimate: each scope has fewer rows than all together.
        cut = self.options.top if rows * len(plan) > _MOST_KERNEL_ROWS and limit is not None else None
        self.diagnostics += told + pooling(self._names.table)
        main = plan[-1 if self.options.aggregate else 0][0]
        scopes = []
        for name, pieces, pid, device in plan:
            rolled = whole if name == AGGREGATE else combined([piece.part for piece in pieces], size)
            scopes.append(
                builder.scope(
                    name,
                    rolled,
                    self._totals(pieces),
                    process_id=pid,
                    device=device,
                    most_regions=None if name == main else limit,
                    most_kernels=cut,
                )
            )
        return scopes

    def _plan(self) -> list[tuple[str, list[_Piece], int | None, int | None]]:
        """Name, pieces, process and device of every scope, in the order of the report."""
        busy = [p for p in self._processes if p.devices] or self._processes[:1]
        pids = Counter(p.pid for p in busy)
        seen: Counter[int] = Counter()
        plan: list[tuple[str, list[_Piece], int | None, int | None]] = []
        for process in busy:
            seen[process.pid] += 1
            # Two hosts may use the same process id.
            label = f"process:{process.pid}" + (f"#{seen[process.pid]}" if pids[process.pid] > 1 else "")
            plan.append((label, [process.piece], process.pid, _only(process.devices)))
        for device in sorted(self._devices):
            users = [p.pid for p in busy if device in p.devices]
            plan.append((f"device:{device}", self._devices[device], users[0] if len(users) == 1 else None, device))
        for rank in sorted(self._ranks):
            of_rank = [p.pid for p in busy if p.rank == rank]
            plan.append((f"rank:{rank}", self._ranks[rank], of_rank[0] if len(of_rank) == 1 else None, None))
        if self.options.aggregate:
            only_pid = busy[0].pid if len(busy) == 1 else None
            plan.append((AGGREGATE, self._whole, only_pid, _only(frozenset(self._devices))))
        return plan

    def _totals(self, pieces: list[_Piece]) -> ScopeTotals:
        """The sum of what the recordings say; a time that only some of them know is the sum of those."""
        told = [piece.totals for piece in pieces]
        bounds = [piece.bounds for piece in pieces if piece.bounds is not None]
        total = ScopeTotals(gpu_time_ns=0, kernel_count=0, gpu_busy_ns=0)
        for name in attrs.fields_dict(ScopeTotals):
            if name not in ("memory", "span_ns"):
                setattr(total, name, sum(getattr(t, name) or 0 for t in told))
        for name in attrs.fields_dict(MemoryWork):
            setattr(total.memory, name, sum(getattr(t.memory, name) for t in told))
        if not self._saw_gpu:
            total.gpu_time_ns = total.gpu_busy_ns = None
        total.span_ns = max(e for _, e in bounds) - min(s for s, _ in bounds) if bounds else None
        return total


def _only(things: frozenset[int]) -> int | None:
    return next(iter(things)) if len(things) == 1 else None


def _without_columns(timeline: Timeline) -> Timeline:
    """What a report says of the recording itself."""
    empty = Work.empty()
    return attrs.evolve(timeline, strings=[], kernels=empty, copies=empty, graphs=empty, ranges=Ranges.empty())
