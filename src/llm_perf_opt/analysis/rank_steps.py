"""Ranks by steps: what each rank takes for each step, how much of it is waiting for others, and what it does differently.

A step is an instance of the outermost region that every rank has and most repeat. The same step has the same
collectives on all ranks; where none were recorded, the n-th is the same everywhere. Its common time is that of the rank
that takes longest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import define

from llm_perf_opt.analysis.ranks import Skew
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.families import COLLECTIVE
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import Bools, Int64s, Timeline
from llm_perf_opt.regions.instances import Instances
from llm_perf_opt.regions.model import NCUProfileRegion, Scope
from llm_perf_opt.regions.names import visible
from llm_perf_opt.regions.rank_skew import RankRow, RankSteps, differing_ranks
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import WHOLE, RegionTable

_DEEPEST = 1  # level of regions that may be steps: a loop may have a range around it
_SEVERAL = 4  # steps are better than an outer region with fewer instances
_MOST_STEPS = 200  # that are listed
_DIFFERENT, _LEAST_NS = 0.05, 20_000  # of a step, by which a rank differs from the others
_MORE_KERNELS = 0.02
_SLOWER_CLOCK = 0.03
_WAITS = re.compile(
    r"all_?(reduce|gather|to_?all)|reduce_?scatter|barrier", re.IGNORECASE
)  # who comes early is longer there


@define(eq=False)
class StepsOfRank:
    """The instances of one region on one rank, in order of start."""

    start: Int64s
    end: Int64s
    took: Int64s
    warmup: Bools
    sm_mhz: float | None  # what its GPU reaches while it works; None: nobody looked, or at several ranks together

    def only(self, which: list[int]) -> StepsOfRank:
        chosen = np.array(which, dtype=np.int64)
        return StepsOfRank(self.start[chosen], self.end[chosen], self.took[chosen], self.warmup[chosen], self.sm_mhz)

    def around(self, moments: Int64s) -> Int64s:
        """In which step each moment is; less than 0: in none."""
        step = np.searchsorted(self.start, moments, side="right") - 1
        found: Int64s = np.where((step >= 0) & (moments <= self.end[np.maximum(step, 0)]), step, -1)
        return found


OfRank = dict[int, StepsOfRank]  # by region of the common table


def steps_of(
    timeline: Timeline, attribution: Attribution, instances: Instances, numbers: Int64s
) -> list[tuple[int, OfRank]]:
    """Of each rank in a timeline. `numbers`: of its regions in the common table."""
    ranges, region_of = timeline.ranges, attribution.range_region
    depth = np.array([*attribution.table.depth, _DEEPEST + 1], dtype=np.int64)[region_of]
    outer = np.flatnonzero(depth <= _DEEPEST)
    found = []
    alone = len({process.rank for process in timeline.processes}) == 1
    sm_mhz = _clock(timeline) if alone and len(ranges.start) else None
    for process, part in group_by(ranges.process[outer]):
        rank = timeline.processes[process].rank
        if rank is None:
            continue
        of_rank: OfRank = {}
        for region, some in group_by(region_of[outer[part]]):
            mine = outer[part[some]]
            mine = mine[np.argsort(ranges.start[mine], kind="stable")]
            of_rank[int(numbers[region])] = StepsOfRank(
                ranges.start[mine], ranges.end[mine], ranges.duration[mine], instances.warmup[mine], sm_mhz
            )
        found.append((rank, of_rank))
    return found


def _clock(timeline: Timeline) -> float | None:
    """Of the GPUs of the only rank, the slowest: what it reaches or exceeds in a tenth of the samples, for one that waits may go slower."""
    reached = []
    for gpu in timeline.gpus:
        seen = gpu.sm_mhz[gpu.within(int(timeline.ranges.start.min()), int(timeline.ranges.end.max()))]
        if (seen := seen[seen > 0]).size:
            reached.append(float(np.percentile(seen, 90)))
    return min(reached, default=None)


def rank_steps(
    of_ranks: Sequence[tuple[int, OfRank]],
    skew: Skew | None,
    scopes: Sequence[Scope],
    table: RegionTable,
    *,
    in_turn: bool = False,
) -> RankSteps | None:
    """None where there are not two ranks with a region in common, or no step is on all. `in_turn`: they send to one another, and wait for that."""
    by_rank: dict[int, OfRank] = {}
    for rank, regions in of_ranks:
        known = by_rank.setdefault(rank, {})
        for number, one in regions.items():  # of several processes of one rank, the one that takes longer
            if number not in known or one.took.sum() > known[number].took.sum():
                known[number] = one
    by_rank = {rank: regions for rank, regions in sorted(by_rank.items()) if regions}
    region = _step_region(list(by_rank.values()), table)
    if region is None:
        return None
    steps = _the_same({rank: regions[region] for rank, regions in by_rank.items()}, skew)
    count = min(len(own.took) for own in steps.values())
    if not count:  # each was recorded at another time
        return None
    listed = min(count, _MOST_STEPS)
    warmup = max(int(own.warmup[:listed].sum()) for own in steps.values())
    if warmup >= listed:
        warmup = 0
    common = np.max([own.took[:listed] for own in steps.values()], axis=0)
    key = table.key(region)
    parts = {rank: _parts_of(scopes, rank, key) for rank in steps}
    rows = []
    in_collectives = {rank: _in_collectives(own, rank, skew, listed) for rank, own in steps.items()}
    first_waits = _first_waits([waits for waits, _ in in_collectives.values() if waits])
    for rank, own in steps.items():
        waiting, transfer = in_collectives[rank]
        timing = parts[rank][key].timing if key in parts[rank] else None
        rows.append(
            RankRow(
                rank=rank,
                label=f"rank {rank}",
                times_ns=own.took[:listed].tolist(),
                waiting_ns=waiting,
                transfer_ns=transfer,
                median_ns=int(np.median(own.took[warmup:listed])),
                memory_peak_bytes=timing.memory_peak_bytes if timing is not None else None,
                energy_j=timing.energy_j if timing is not None else None,
                why=_later_start(rank, steps, skew, first_waits)
                or _with_clock(_difference(rank, key, parts, in_turn), rank, steps),
                computing_ns=_computing(parts[rank].get(key)),
            )
        )
    return RankSteps(key, count, warmup, common.tolist(), int(np.median(common[warmup:])), rows)


def _step_region(ranks: Sequence[OfRank], table: RegionTable) -> int | None:
    """The region whose instances are the steps: on all ranks, as far out as possible, the longest of those."""
    if len(ranks) < 2:
        return None
    everywhere = set.intersection(*({r for r in regions if table.key(r) != WHOLE} for regions in ranks))

    def worth(region: int) -> tuple[bool, bool, int, int]:
        count = min(len(regions[region].took) for regions in ranks)
        is_named = not table.is_operator(region)  # two steps that the program names are better than many operators
        return is_named and count > 1, count >= _SEVERAL, -table.depth[region], int(ranks[0][region].took.sum())

    return max(everywhere, key=worth, default=None)


def _the_same(steps: Mapping[int, StepsOfRank], skew: Skew | None) -> dict[int, StepsOfRank]:
    """Those that all ranks have. The same step has the same collectives; where that is not known, the n-th is the same."""
    numbers = _numbered(steps, skew) if skew is not None else {}
    if len(numbers) < len(steps):
        return dict(steps)
    common = sorted(set.intersection(*(set(own) for own in numbers.values())))
    return {rank: own.only([numbers[rank][step] for step in common]) for rank, own in steps.items()}


def _numbered(steps: Mapping[int, StepsOfRank], skew: Skew) -> dict[int, dict[int, int]]:
    """Of each rank, which of its steps is which of the first rank's: by way of ranks that share collectives with both."""
    inside: dict[int, tuple[Int64s, Int64s]] = {}  # collectives, and the step that each is in
    for number, calls in enumerate(skew.ranks):
        if calls.rank is not None and calls.rank in steps and calls.rank not in inside:
            step = steps[calls.rank].around(calls.launched[skew.matched[number]])
            inside[calls.rank] = skew.instance[number][step >= 0], step[step >= 0]
    unknown = np.iinfo(np.int64).min
    known = np.full(len(skew.late), unknown)  # of each collective, the step it is in
    found: dict[int, dict[int, int]] = {}
    while todo := [rank for rank in inside if rank not in found]:
        rank = next((one for one in todo if not found or (known[inside[one][0]] != unknown).any()), None)
        if rank is None:
            break
        collectives, step = inside[rank]
        own = (
            np.arange(len(steps[rank].start))
            if not found
            else _steps_by(known[collectives], step, steps[rank], unknown)
        )
        found[rank] = {number: at for at, number in reversed(list(enumerate(own.tolist())))}
        fresh = known[collectives] == unknown
        known[collectives[fresh]] = own[step[fresh]]
    return found


def _steps_by(known: Int64s, step: Int64s, own: StepsOfRank, unknown: int) -> Int64s:
    """The number of each step: that of most of its collectives; of one that has none, by its neighbours."""
    told = known != unknown
    found = np.full(len(own.start), unknown)
    for at, which in group_by(step[told]):
        numbers, count = np.unique(known[told][which], return_counts=True)
        found[at] = numbers[count.argmax()]
    sure = np.flatnonzero(found != unknown)
    before = sure[np.clip(np.searchsorted(sure, np.arange(len(found)), side="right") - 1, 0, None)]
    filled: Int64s = found[before] + np.arange(len(found)) - before
    return filled


def _in_collectives(
    own: StepsOfRank, rank: int, skew: Skew | None, listed: int
) -> tuple[list[int] | None, list[int] | None]:
    """Of each step of a rank, how long it waited in collectives for others, and how long they took once all were there."""
    number = next((n for n, of in enumerate(skew.ranks) if of.rank == rank), None) if skew is not None else None
    if skew is None or number is None:
        return None, None
    calls, matched = skew.ranks[number], skew.matched[number]
    step, took = own.around(calls.launched[matched]), (calls.end - calls.start)[matched]
    inside = (step >= 0) & (step < listed)
    waits = np.bincount(step[inside], weights=skew.waiting[number][inside], minlength=listed).astype(np.int64)
    whole = np.bincount(step[inside], weights=took[inside], minlength=listed).astype(np.int64)
    return waits.tolist(), (whole - waits).tolist()


def _first_waits(waiting: Sequence[Sequence[int]]) -> int:
    """The longest wait in the first step, where ranks wait there most; in a loop, one who starts later has been late before."""
    return max((own[0] for own in waiting if 2 * own[0] > sum(own)), default=0)


def _later_start(rank: int, steps: Mapping[int, StepsOfRank], skew: Skew | None, first_waits: int) -> str:
    if skew is None or (not first_waits and len(steps[rank].start) >= _SEVERAL):
        return ""
    starts = {}
    for number, calls in enumerate(skew.ranks):
        if calls.rank is not None and calls.rank in steps:
            start = steps[calls.rank].start[:1]
            starts[calls.rank] = int(skew.clocks.to_first(number, start)[0])
    if rank not in starts:
        return ""
    first = min(starts, key=lambda one: starts[one])
    later, own = starts[rank] - starts[first], int(steps[rank].took[0])
    usual = float(np.median([start - starts[first] for start in starts.values()]))
    return f"starts {_shown(later)} after rank {first}" if later > max(own, usual, _LEAST_NS) else ""


def _with_clock(difference: str, rank: int, steps: Mapping[int, StepsOfRank]) -> str:
    """A GPU that goes slower than the others makes its rank differ; on a rank that does not, it costs nothing."""
    mine, known = steps[rank].sm_mhz, [own.sm_mhz for own in steps.values() if own.sm_mhz is not None]
    usual = float(np.median(known)) if len(known) > 2 else max(known, default=0.0)
    if not difference or mine is None or mine >= usual * (1 - _SLOWER_CLOCK):
        return difference
    return f"{difference}; its GPU runs at {mine:,.0f} MHz, usually {usual:,.0f} MHz"


def _parts_of(scopes: Sequence[Scope], rank: int, key: str) -> dict[str, NCUProfileRegion]:
    """The region of the steps on a rank, and what is directly inside it."""
    scope = next((scope for scope in scopes if scope.scope == f"rank:{rank}"), None)
    regions = scope.regions if scope is not None else []
    return {region.key: region for region in regions if key in (region.key, region.parent)}


def _difference(rank: int, key: str, ranks: Mapping[int, Mapping[str, NCUProfileRegion]], in_turn: bool) -> str:
    """What a rank does differently from most others: more work, slower kernels, a slower host, or a longer part."""
    mine, others = ranks[rank].get(key), [own for number, own in ranks.items() if number != rank]
    if mine is None or not mine.instances or mine.wall_ns is None:
        return ""
    least = max(_DIFFERENT * mine.wall_ns / mine.instances, _LEAST_NS)
    wholes = [own[key] for own in others if key in own and own[key].instances]
    if wholes and mine.gpu_busy_ns and all(whole.gpu_busy_ns for whole in wholes):
        return _on_gpu(mine, wholes, least, in_turn, _longer_part(rank, key, ranks, least))
    return _longer_part(rank, key, ranks, least)[1]


def _longer_part(
    rank: int, key: str, ranks: Mapping[int, Mapping[str, NCUProfileRegion]], least: float
) -> tuple[float, str]:
    """The part of a step that takes longest beyond what it takes on most others, and by how much; else no words."""
    mine, others = ranks[rank][key], [own for number, own in ranks.items() if number != rank]
    found = []
    for part, region in ranks[rank].items():
        if part == key or _WAITS.search(region.name):
            continue
        name, own = visible(region.name, 80), _each(region)
        elsewhere = [_each(ranks_own[part]) for ranks_own in others if part in ranks_own]
        known = [time for time in elsewhere if time is not None]
        if own is None or (elsewhere and not known):
            continue  # a time that nobody knows is not 0
        usual = float(np.median(known)) if known else 0.0
        told = f"{name} takes {_shown(own)}, usually {_shown(usual)}"
        if not elsewhere:  # it need not be in every step
            own = own * _instances(region) / _instances(mine)
            told = f"{name}, which no other rank has, takes {_shown(own)} of a step"
        if own - usual > least:
            found.append((own - usual, told))
    return max(found, default=(0.0, ""))


def _on_gpu(
    mine: NCUProfileRegion, others: Sequence[NCUProfileRegion], least: float, in_turn: bool, part: tuple[float, str]
) -> str:
    work = _each_work(mine) - float(np.median([_each_work(one) for one in others]))
    waits, usually = _each_idle(mine), [idle for one in others if (idle := _each_idle(one)) is not None]
    idle = waits - float(np.median(usually)) if waits is not None and usually and not in_turn else 0.0
    if max(work, idle) <= least:
        return ""
    if idle > work:
        told = f": {part[1]}" if 2 * part[0] > idle else ""  # what most of it is
        return f"its GPU waits {_shown(idle)} longer in a step for its host{told}"
    kernels = [_own_kernels(one) for one in others]
    own, usual = _own_kernels(mine), float(np.median(kernels))
    if own > usual * (1 + _MORE_KERNELS):
        return f"more work: {own:,.0f} kernels in a step, usually {usual:,.0f}; they take {_shown(work)} longer"
    return f"the same number of kernels take {_shown(work)} longer in a step: larger inputs, or a slower GPU"


def _own_kernels(region: NCUProfileRegion) -> float:
    """Of an instance, without collectives: a stage in the middle of a pipeline has more of them than one at its end."""
    collectives = sum(record.calls for record in region.kernels if record.family == COLLECTIVE)
    return (region.inclusive.kernel_count - collectives) / _instances(region)


def _instances(region: NCUProfileRegion) -> int:
    return region.instances or 1


def _each(region: NCUProfileRegion) -> float | None:
    """What an instance takes; None where nobody knows, as of regions that only the capture of a graph tells of."""
    steady = region.timing.steady if region.timing is not None else None
    if steady is not None and steady.instances:
        return steady.total_ns / steady.instances
    return None if region.wall_ns is None else region.wall_ns / _instances(region)


def _each_work(region: NCUProfileRegion) -> float:
    """GPU time of an instance without collectives that nothing else runs beside."""
    return ((region.gpu_busy_ns or 0) - (region.exposed_collective_ns or 0)) / _instances(region)


def _computing(region: NCUProfileRegion | None) -> int | None:
    return None if region is None or not region.gpu_busy_ns or not region.instances else round(_each_work(region))


def _each_idle(region: NCUProfileRegion) -> float | None:
    return None if region.gpu_idle_ns is None else region.gpu_idle_ns / _instances(region)


def _shown(ns: float) -> str:
    return shown(nanoseconds(ns))


def steps_compared(steps: RankSteps | None) -> list[Diagnosis]:
    """What a step takes on all ranks together, and who differs."""
    if steps is None:
        return []
    computing = max((row.computing_ns or 0 for row in steps.ranks), default=0)
    early = computing > steps.common_median_ns  # the ranges end before their GPU work does
    found = [
        diagnose(
            "RANK_STEPS.on_gpu" if early else "RANK_STEPS",
            region=visible(steps.region, 120),
            ranks=len(steps.ranks),
            times="once" if steps.all_steps == 1 else f"{steps.all_steps:,} times",
            common=_shown(computing if early else steps.common_median_ns),
        )
    ]
    if named := differing_ranks(steps):
        found.append(diagnose("RANKS_DIFFER", region=visible(steps.region, 120), named=named))
    return found
