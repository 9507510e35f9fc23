"""From recordings to a side: steady instances, kernels by signature, and all that can be counted, per region.

The same attribution, warm-up and steady instances as in a report; verdicts and rates, which a comparison has no use
for, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from attrs import Factory, define, evolve, field

from llm_perf_opt.analysis.gaps import Gaps
from llm_perf_opt.analysis.gpu_side import GpuSteps
from llm_perf_opt.analysis.sample_matrix import Samples
from llm_perf_opt.analysis.scopes import AGGREGATE, ScopePart, timeline_scopes
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.timeline_counters import TimelineCounters
from llm_perf_opt.analysis.verdicts.counted_work import with_totals
from llm_perf_opt.analysis.verdicts.launches import Launches
from llm_perf_opt.comparing.side import (
    COPIED,
    COPIES,
    DRAM,
    GPU,
    KERNELS,
    LAUNCHES,
    PEAK_MEMORY,
    RECOMPILATIONS,
    REPLAYS,
    SYNCS,
    TENSOR,
    TIMELINE,
    UNDISTURBED,
    KernelUse,
    RegionSide,
    Side,
    SignatureKey,
    Times,
)
from llm_perf_opt.metrics.host_calls import call_kind
from llm_perf_opt.regions.attribution import Mode
from llm_perf_opt.regions.columns import (
    CALL,
    COMPILATION,
    ONCE,
    UNKNOWN,
    CounterSet,
    Int32s,
    Int64s,
    Recording,
    Timeline,
    Work,
)
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.prepared import find_regions, prepare
from llm_perf_opt.regions.ranking import with_parents
from llm_perf_opt.regions.rollup import KernelRows, RolledUp, Selection, exclusive_rows, lift, roll_up, rows_per_region
from llm_perf_opt.regions.signatures import Signature, describe_signatures
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT

_MOST_REGIONS = 2_000  # compared: the heaviest, with those around them
_MOST_LAUNCHES = 600  # of one instance, whose order is looked at
_EARLY = 0.02  # of the wall time, work that goes on after a range was closed: its instances are also timed on the GPU
_SPOKEN_FOR = 0.9  # part of the GPU time whose launches were counted: less, and sums of counters say nothing


def collect(
    recordings: Sequence[Recording], measured: Sequence[Timeline], label: str, chosen: RegionFilter, mode: Mode = "auto"
) -> Side:
    """The side of one program: its recordings, and the runs of it without a profiler."""
    prepared = prepare([*recordings, *measured], chosen)
    timelines = [r for r in prepared[: len(recordings)] if isinstance(r, Timeline)]
    counters = with_totals([r for r in prepared[: len(recordings)] if isinstance(r, CounterSet)])
    alone = [r for r in prepared[len(recordings) :] if isinstance(r, Timeline)]
    alone += [t for t in timelines if t.kind == "measured"]
    recorded = [t for t in timelines if t.kind != "measured"]
    side = Side(label)
    for part, sets in ((recorded, counters), (alone, [])):
        if part:
            found = _Collected.of(merge_timelines(part), sets, chosen, mode)
            found.add_to(side)
    gpus = {name for recording in recordings for name in recording.environment.get("gpus", {}).values()}
    gpus |= {name for t in [*recorded, *alone] for name in t.devices.values()} | {g.name for t in alone for g in t.gpus}
    side.gpus = tuple(sorted(str(name) for name in gpus))
    side.clock_mhz = _clock(alone)
    return side


def _clock(measured: Sequence[Timeline]) -> float | None:
    """The median SM clock while ranges were open."""
    seen = []
    for timeline in measured:
        for gpu in timeline.gpus if len(timeline.ranges) else ():
            during = gpu.sm_mhz[gpu.within(int(timeline.ranges.start.min()), int(timeline.ranges.end.max()))]
            seen.append(during[during > 0])
    known = np.concatenate(seen) if seen else np.zeros(0)
    return float(np.median(known)) if len(known) else None


@define(eq=False)
class _Collected:
    """One merged timeline with its steady instances."""

    timeline: Timeline
    warmth: SteadyTimeline
    part: ScopePart
    rolled: RolledUp
    chosen: RegionFilter
    launches: Mapping[int, Launches] | None  # by region, with what one launch does; None without counters
    _rows: dict[int, tuple[KernelRows, Int64s]] | None = None
    _described: list[Signature] = Factory(list)
    _label: Int64s = field(factory=lambda: np.zeros(0, dtype=np.int64))
    _by_host: Int64s | None = None  # kernels in the order of their launches
    _others: dict[str, dict[int, tuple[KernelRows, Int64s]]] = Factory(dict)  # copies and graphs

    @staticmethod
    def of(timeline: Timeline, counters: list[CounterSet], chosen: RegionFilter, mode: Mode) -> _Collected:
        timeline, attribution = find_regions(timeline, mode)
        warmth = SteadyTimeline.of(timeline, attribution)
        whole = next(p for p in timeline_scopes(timeline, None, aggregate=True) if p.name == AGGREGATE)
        part = evolve(whole, selection=warmth.selection(whole.selection))
        launches, samples = None, Samples.of(counters)
        if samples.actions:
            every = roll_up(timeline, attribution, whole.selection)
            kept = [True] * len(attribution.table)
            joined = TimelineCounters(timeline, attribution, samples, kept, every)
            launches = joined.attributed(warmth.lifted).launches(part)
        return _Collected(timeline, warmth, part, warmth.rolled(whole.selection), chosen, launches)

    def add_to(self, side: Side) -> None:
        """Add the regions; of those that are there, what this timeline knows and the other does not."""
        table, rolled = self.warmth.attribution.table, self.rolled
        times = self.warmth.times(self.part.selection)
        gpu_side = self._gpu_side()
        syncs, compilations = self._host_counts()
        for number in self._heaviest():
            key = table.key(number)
            steady = times.get(number)
            instances = int(rolled.range_instances[number]) or int(rolled.instances[number])
            if not instances:
                continue
            parent = table.parent[number]
            region = side.regions.get(key)
            if region is None:
                region = side.regions[key] = RegionSide(
                    key, tuple(table.path(number)), None if parent == ROOT else table.key(parent)
                )
                region.numbers = tuple(known.mean for known in table.numbers(number))
            measured = self.timeline.kind == "measured"
            if steady is not None and len(steady.steady):
                found = Times.of(steady.runs or [steady.steady])
                region.times[UNDISTURBED if measured else TIMELINE] = found
                region.instances = found.instances
                region.weight_ns = float(sum(run.sum() for run in found.runs)) / len(found.runs)
                if steady.use.memory_peak is not None:
                    region.counts[PEAK_MEMORY] = float(steady.use.memory_peak)
            if compilations is not None:
                before = region.counts.get(RECOMPILATIONS, 0.0)
                region.counts[RECOMPILATIONS] = max(before, float(compilations[number]))
            if measured:
                continue
            region.instances = region.instances or instances
            self._add_work(region, number, instances, syncs)
            if region.early > _EARLY and (spans := gpu_side(number)) is not None:
                region.times[GPU] = spans

    def _heaviest(self) -> list[int]:
        table, rolled = self.warmth.attribution.table, self.rolled
        weight = np.maximum(rolled.wall, rolled.busy)
        known = [n for n in table.in_tree_order() if rolled.present[n] and self._keeps(n)]
        if len(known) <= _MOST_REGIONS:
            return known

        def parent_of(number: int) -> int | None:
            return None if table.parent[number] == ROOT else table.parent[number]

        ordered = sorted(known, key=lambda number: -int(weight[number]))
        kept = with_parents(ordered, parent_of, _MOST_REGIONS)
        return [number for number in known if number in kept]

    def _keeps(self, number: int) -> bool:
        table = self.warmth.attribution.table
        return self.chosen.keeps(table.domain[number], table.path(number))

    # -- GPU work --------------------------------------------------------------------------------------

    def _add_work(self, region: RegionSide, number: int, instances: int, syncs: Int64s | None) -> None:
        if not any(len(work) for work in self.timeline.work):
            return
        rolled, counts = self.rolled, region.counts
        work = rolled.inclusive
        busy, wall, idle = (float(column[number]) for column in (rolled.busy, rolled.wall, rolled.idle))
        region.busy_ns = busy / instances
        region.early = max(busy - (wall - idle), 0.0) / max(wall, 1.0)
        single = work.kernels.count[number] - rolled.graph_kernels[number]
        replays = rolled.graph_replays[number] + work.graphs.count[number]
        per_instance = {
            LAUNCHES: single + replays + work.copies.count[number],
            KERNELS: work.kernels.count[number],
            REPLAYS: replays,
            COPIES: work.copies.count[number],
            COPIED: work.copies.bytes[number],
        }
        if syncs is not None:
            per_instance[SYNCS] = syncs[number]
        counts.update({what: float(total) / instances for what, total in per_instance.items()})
        region._kernels = partial(self._kernels_of, number, instances)
        region._order = partial(self._order_of, number)
        if self.launches is not None:
            self._add_counters(region)

    def _add_counters(self, region: RegionSide) -> None:
        """Sums of the counters of a region, where nearly all of its launches were counted."""
        kernels = [use for use in region.kernels if use.kind == "kernel"]
        total = sum(use.time_ns for use in kernels)
        for what, amount in ((TENSOR, "tensor"), (DRAM, "dram")):
            known = [use for use in kernels if getattr(use, amount) is not None]
            if total and sum(use.time_ns for use in known) >= _SPOKEN_FOR * total:
                region.counts[what] = sum(use.calls * getattr(use, amount) for use in known)

    def _kernels_of(self, number: int, instances: int) -> list[KernelUse]:
        found = self._counted_kernels(number, instances) if self.launches is not None else None
        if found is None:
            self._describe()
            found = _uses(self._rows or {}, number, instances, self._use_of_signature)
        for kind, work in (("copy", self.timeline.copies), ("graph", self.timeline.graphs)):
            found += self._other_work(kind, work, number, instances)
        return found

    def _describe(self) -> None:
        """Kernels by signature, of all regions; once."""
        if self._rows is None:
            self._label, self._described = describe_signatures(self.timeline)
            lifted, kernels = self.warmth.lifted, self.timeline.kernels
            rows = exclusive_rows(kernels, lifted, self.part.selection.kernels, self._label)
            self._rows = rows_per_region(lift(rows, lifted))

    def _use_of_signature(self, label: int, calls: float, time: float) -> KernelUse:
        signature = self._described[label]
        return KernelUse(signature.shown or signature.name, calls, time, signature.grid or (), signature.block or ())

    def _counted_kernels(self, number: int, instances: int) -> list[KernelUse] | None:
        """The same with counters; several kinds of one signature are one."""
        assert self.launches is not None
        launches = self.launches.get(number)
        if launches is None:
            return None
        found: dict[object, KernelUse] = {}
        columns = (launches.which.tolist(), launches.calls.tolist(), launches.time_ns.tolist())
        for which, calls, time in zip(*columns, strict=True):
            kind = launches.kinds[which]
            amounts = kind.amounts
            use = KernelUse(
                kind.kernel_name,
                calls / instances,
                time / instances,
                tuple(kind.grid),
                tuple(kind.block),
                flops=kind.flops,
                tensor=None if amounts is None else amounts.total("tensor_"),
                dram=None if amounts is None else amounts.bytes.get("dram"),
            )
            found[use.signature] = _together(found[use.signature], use) if use.signature in found else use
        return list(found.values())

    def _other_work(self, kind: str, work: Work, number: int, instances: int) -> list[KernelUse]:
        if not len(work):
            return []
        if kind not in self._others:
            lifted, selection = self.warmth.lifted, self.part.selection
            membership = lifted.copies if kind == "copy" else lifted.graphs
            which = selection.copies if kind == "copy" else selection.graphs
            of_kind = evolve(lifted, kernels=membership)
            self._others[kind] = rows_per_region(lift(exclusive_rows(work, of_kind, which, work.name), of_kind))
        rows, strings = self._others[kind], self.timeline.strings

        def use(label: int, calls: float, time: float) -> KernelUse:
            return KernelUse(strings[label] if label >= 0 else kind, calls, time, kind=kind)

        return _uses(rows, number, instances, use)

    def _order_of(self, number: int) -> list[SignatureKey]:
        """Signatures in the order of launches, of the steady instance in the middle."""
        self._describe()
        timeline, ranges, kernels = self.timeline, self.timeline.ranges, self.timeline.kernels
        steady = self.part.selection.ranges[self.warmth.attribution.range_region[self.part.selection.ranges] == number]
        if not len(steady):
            return []
        if self._by_host is None:
            self._by_host = np.argsort(kernels.host_time, kind="stable")
        typical = int(steady[np.argsort(timeline.ranges.duration[steady])[len(steady) // 2]])
        at = np.searchsorted(kernels.host_time, [ranges.start[typical], ranges.end[typical]], sorter=self._by_host)
        inside = self._by_host[at[0] : at[1]]
        inside = inside[kernels.process[inside] == ranges.process[typical]][:_MOST_LAUNCHES]
        return [self._use_of_signature(label, 0.0, 0.0).signature for label in self._label[inside].tolist()]

    def _gpu_side(self) -> Callable[[int], Times | None]:
        """What the steady instances of a region take on the GPU, from the first start to the last end of their work."""
        steps = GpuSteps(self.timeline, self.warmth.lifted, _no_gaps)
        ranges, selection = self.timeline.ranges, self.part.selection.ranges
        region_of = self.warmth.attribution.range_region[selection]

        def of(number: int) -> Times | None:
            mine = selection[region_of == number]
            found = []
            for process in np.unique(ranges.process[mine]).tolist():
                start, end = steps.spans(process, mine[ranges.process[mine] == process], number)
                found.append(end - start)
            return Times.of([np.concatenate(found)]) if found and sum(map(len, found)) else None

        return of

    # -- host ------------------------------------------------------------------------------------------

    def _host_counts(self) -> tuple[Int64s | None, Int64s | None]:
        """Per region: synchronising calls in its steady instances; and compilations, in all of them."""
        timeline, table = self.timeline, self.warmth.attribution.table
        host, syncs, compilations = timeline.host, None, None
        if len(host):
            kinds = {n: call_kind(timeline.strings[n]) for n in np.unique(host.name).tolist() if n != UNKNOWN}
            waits = [n for n, kind in kinds.items() if kind == "sync"]
            which = np.flatnonzero((host.kind == CALL) & np.isin(host.name, waits))
            syncs = self._inside(host.start[which], host.thread[which], timeline.ranges.thread, self.part.selection)
        once = timeline.only_once
        compiled = np.flatnonzero(once.what == ONCE.index(COMPILATION))
        if len(once.what) or timeline.kind == "measured":
            every = evolve(self.part.selection, ranges=np.arange(len(timeline.ranges)))
            compilations = self._inside(once.start[compiled], once.process[compiled], timeline.ranges.process, every)
        assert syncs is None or len(syncs) == len(table)
        return syncs, compilations

    def _inside(
        self, moments: Int64s, owner: Int64s | Int32s, owner_of_range: Int64s | Int32s, selection: Selection
    ) -> Int64s:
        """How many moments lie in the ranges of each region, of the same thread or process."""
        ranges, chosen = self.timeline.ranges, selection.ranges
        counts = np.zeros(len(ranges), dtype=np.int64)
        by_owner = {one: np.sort(moments[part]) for one, part in group_by(owner.astype(np.int64))}
        for one, part in group_by(owner_of_range[chosen].astype(np.int64)):
            mine = chosen[part]
            if one in by_owner:
                edges = (ranges.start[mine], ranges.end[mine])
                first, last = (np.searchsorted(by_owner[one], edge) for edge in edges)
                counts[mine] = np.maximum(last - first, 0)
        table = self.warmth.attribution.table
        region_of = self.warmth.attribution.range_region[chosen]
        return np.bincount(region_of, weights=counts[chosen], minlength=len(table)).astype(np.int64)


def _no_gaps(process: int) -> Gaps:
    raise AssertionError("only spans are asked for")


def _uses(
    rows: Mapping[int, tuple[KernelRows, Int64s]],
    number: int,
    instances: int,
    use: Callable[[int, float, float], KernelUse],
) -> list[KernelUse]:
    """Rows of one region per instance, devices added up."""
    if number not in rows:
        return []
    table, which = rows[number]
    sums: dict[int, list[int]] = {}
    for label, calls, total in zip(
        table.label[which].tolist(), table.calls[which].tolist(), table.total[which].tolist(), strict=True
    ):
        known = sums.setdefault(label, [0, 0])
        known[0] += calls
        known[1] += total
    return [use(label, calls / instances, total / instances) for label, (calls, total) in sums.items()]


def _together(one: KernelUse, other: KernelUse) -> KernelUse:
    """Launches of one signature that differ in what they do."""
    calls = one.calls + other.calls

    def mean(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None or not calls else (a * one.calls + b * other.calls) / calls

    return evolve(
        one,
        calls=calls,
        time_ns=one.time_ns + other.time_ns,
        flops=mean(one.flops, other.flops),
        tensor=mean(one.tensor, other.tensor),
        dram=mean(one.dram, other.dram),
    )
