"""From recordings to a side: steady instances, kernels by signature, and all that can be counted, per region.

The same attribution, warm-up and steady instances as in a report; verdicts and rates, which a comparison has no use
for, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
from attrs import define, evolve

from llm_perf_opt.analysis.code_lines import CodeLines
from llm_perf_opt.analysis.gaps import Gaps
from llm_perf_opt.analysis.gpu_side import GpuSteps
from llm_perf_opt.analysis.sample_matrix import Samples
from llm_perf_opt.analysis.scopes import AGGREGATE, ScopePart, timeline_scopes
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.timeline_counters import TimelineCounters
from llm_perf_opt.analysis.verdicts.counted_work import with_totals
from llm_perf_opt.analysis.waiting import Waiting
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
    RegionSide,
    Side,
    SignatureKey,
    Times,
)
from llm_perf_opt.comparing.work_table import WorkTable
from llm_perf_opt.metrics.host_calls import call_kind
from llm_perf_opt.regions.attribution import Mode
from llm_perf_opt.regions.columns import (
    CALL,
    COMPILATION,
    ONCE,
    UNKNOWN,
    UNKNOWN_HERE,
    CounterSet,
    Int32s,
    Int64s,
    Recording,
    Timeline,
)
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.merge import merge_timelines
from llm_perf_opt.regions.merged_work import merged_work
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.prepared import find_regions, prepare
from llm_perf_opt.regions.ranking import with_parents
from llm_perf_opt.regions.rollup import RolledUp, Selection, roll_up
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT

_MOST_REGIONS = 2_000  # compared: the heaviest, with those around them
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
    side.recorders = tuple(sorted({timeline.kind for timeline in recorded}))
    side.clock_mhz = _clock(alone)
    waits = [process.cpu_wait for timeline in alone for process in timeline.processes if process.cpu_wait is not None]
    side.cpu_wait = float(np.median(waits)) if waits else None
    return side


def _launch_lines(code: CodeLines, key: str, instances: int) -> dict[SignatureKey, dict[str, float]]:
    """Of each signature in a region: launches of an instance by the line they come from, where that is known."""
    found: dict[SignatureKey, dict[str, float]] = {}
    for launched in code.launches(key):
        if launched.place is not None:
            signature, line = launched.signature, f"{launched.place.name}:{launched.place.line}"
            lines = found.setdefault(
                (signature.shown or signature.name, tuple(signature.grid or ()), tuple(signature.block or ())), {}
            )
            lines[line] = lines.get(line, 0.0) + launched.calls / instances
    return found


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
    work: WorkTable
    code: CodeLines | None

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
        work = WorkTable(warmth, part.selection, launches)
        rolled = warmth.rolled(whole.selection)
        return _Collected(timeline, warmth, part, rolled, chosen, work, CodeLines.of(warmth))

    def add_to(self, side: Side) -> None:
        """Add the regions; of those that are there, what this timeline knows and the other does not."""
        table, rolled = self.warmth.attribution.table, self.rolled
        times = self.warmth.times(self.part.selection)
        gpu_side = self._gpu_side()
        host_only = self._timed_by_the_host()
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
                found = Times.of(steady.runs or [steady.steady], by_host=measured and number in host_only)
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
            region.instances, region.recorded = region.instances or instances, instances
            self._add_work(region, number, instances, syncs)
            # Of every region: the other side may be the one whose ranges end before their work.
            if (spans := gpu_side(number)) is not None:
                region.times[GPU] = spans
            if not region.times and region.busy_ns:  # known through CUDA graphs alone: no range, no time on the host
                region.times[GPU] = Times.of([np.array([region.busy_ns])])
                region.weight_ns = region.busy_ns * instances

    def _timed_by_the_host(self) -> set[int]:
        """Regions of a program that uses a GPU, of which no instance was timed there."""
        events, region_of = self.timeline.ranges.gpu_start, self.warmth.attribution.range_region
        if events is None or not self.timeline.gpus:
            return set()
        return set(np.unique(region_of).tolist()) - set(np.unique(region_of[events != UNKNOWN_HERE]).tolist())

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
        if not (self.chosen.include or self.chosen.exclude):
            return True
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
        region._kernels = partial(self.work.uses_of, number, instances)
        region._order = partial(self.work.order_of, number)
        region._idle = partial(self._idle_by_cause, region.key, instances)
        if self.code is not None:
            region._lines = partial(_launch_lines, self.code, region.key, instances)
        if self.work.has_counters:
            _add_counters(region)

    @cached_property
    def _waiting(self) -> Waiting:
        return Waiting(self.warmth)

    def _idle_by_cause(self, key: str, instances: int) -> dict[str, float]:
        idle = self._waiting.idle(key)
        return {cause: time / instances for cause, time in idle.by_cause().items()} if idle is not None else {}

    def _gpu_side(self) -> Callable[[int], Times | None]:
        """What the steady instances of a region take on the GPU: to the end of their work, from its start, or from when
        the instance began, where the GPU had nothing to do until then."""
        steps = GpuSteps(self.timeline, self.warmth.lifted, _no_gaps)
        ranges, selection = self.timeline.ranges, self.part.selection.ranges
        region_of = self.warmth.attribution.range_region[selection]

        def of(number: int) -> Times | None:
            mine = selection[region_of == number]
            found = []
            for process in np.unique(ranges.process[mine]).tolist():
                own = mine[ranges.process[mine] == process]
                start, end = steps.spans(process, own, number)
                busy = merged_work(self.timeline, process).busy
                found.append(end - _waited_from(start, np.sort(ranges.start[own]), busy))
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


def _waited_from(start: Int64s, began: Int64s, busy: BusyTime) -> Int64s:
    """When each instance first had the GPU: at the start of its work, or earlier, where the GPU waited for that work."""
    last = np.searchsorted(began, start, side="right") - 1
    run = np.searchsorted(busy.starts, start)
    idle = (last >= 0) & (busy.starts[np.minimum(run, len(busy.starts) - 1)] == start)
    free = np.where(run > 0, busy.ends[np.maximum(run - 1, 0)], np.iinfo(np.int64).min)
    return np.where(idle, np.minimum(np.maximum(began[np.maximum(last, 0)], free), start), start)


def _no_gaps(process: int) -> Gaps:
    raise AssertionError("only spans are asked for")


def _add_counters(region: RegionSide) -> None:
    """Sums of the counters of a region, where nearly all of its launches were counted."""
    kernels = [use for use in region.kernels if use.kind == "kernel"]
    total = sum(use.time_ns for use in kernels)
    for what, amount in ((TENSOR, "tensor"), (DRAM, "dram")):
        known = [use for use in kernels if getattr(use, amount) is not None]
        if total and sum(use.time_ns for use in known) >= _SPOKEN_FOR * total:
            region.counts[what] = sum(use.calls * getattr(use, amount) for use in known)
