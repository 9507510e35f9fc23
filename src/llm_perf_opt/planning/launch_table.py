"""The launches of a timeline as the planner sees them: which kernel, where, which turn, how long.

Only launches inside the chosen regions are kept, in the order in which the host made them, for that is the
order in which ncu meets and counts them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
from attrs import define, field

from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline
from llm_perf_opt.regions.duration_clusters import context_of, queue_of
from llm_perf_opt.regions.instances import find_instances, without_warmup
from llm_perf_opt.regions.signatures import Signature, describe_signatures
from llm_perf_opt.regions.table import ROOT, RegionTable, add_up

_TURNS_OF_A_REGION = 4
_TURNS_IN_ALL = 24


@define(frozen=True)
class RegionChoice:
    """A region that ncu can select."""

    key: str
    expression: str  # for --nvtx-include; "" for a whole recording, which needs none


@define(eq=False)
class Turns:
    """The instances of one repeated range: decode steps, layers of one name, training steps."""

    region: str  # its key
    number: Int64s  # of each launch: the instance it lies in, from 1 in the order of their starts; 0 outside
    count: int


@define(eq=False)
class LaunchTable:
    """Launches of the chosen regions, one element each, in the order of the host's calls."""

    signatures: list[Signature]
    signature: Int64s
    process: Int64s
    region: Int64s  # index into `regions`: the chosen region a launch lies in
    place: Int64s  # index into `places`: the name of the innermost range around it
    duration: Int64s  # ns
    regions: list[RegionChoice]
    places: list[str]
    turns: list[Turns] = field(factory=list)  # repeated ranges, those with most GPU time first
    process_scope: bool = False  # some launches come from threads without ranges of their own
    has_configs: bool = True  # grid, block and mangled names were read
    kernels: Int64s | None = None  # of each launch, its number among the kernels of the timeline
    context: Int64s | None = None  # of each launch, see `regions.duration_clusters`
    warmup: Bools | None = None  # of each launch, whether it lies in a warm-up instance; None: there is no warm-up
    bytes_are_known: bool = False  # nsys sampled what the GPU moved: of regions, samples need not tell that

    def __len__(self) -> int:
        return len(self.signature)

    @property
    def time_ns(self) -> int:
        return int(self.duration.sum())

    @cached_property
    def by_signature(self) -> tuple[Int64s, Int64s]:
        """Launches sorted by process and signature, calls in order, and of each the place where its group begins."""
        key = self.process * max(len(self.signatures), 1) + self.signature
        order = np.argsort(key, kind="stable")
        begins = np.flatnonzero(np.concatenate([[True], np.diff(key[order]) != 0])) if len(order) else order
        return order, np.repeat(begins, np.diff(np.append(begins, len(order))))

    def counts(self, taken: Bools | None = None) -> Int64s:
        """Launches of each signature, all or the taken ones."""
        labels = self.signature if taken is None else self.signature[taken]
        return np.bincount(labels, minlength=len(self.signatures)).astype(np.int64)

    def times(self) -> Int64s:
        """GPU time of each signature, ns."""
        return np.bincount(self.signature, weights=self.duration, minlength=len(self.signatures)).astype(np.int64)


def describe_launches(
    timeline: Timeline, attribution: Attribution, expressions: Mapping[str, str], chosen: Collection[str]
) -> LaunchTable:
    """Launches of the regions `chosen` (keys), outermost ones.

    `expressions`: ncu's expression for every region that has one (`NCUProfileRegion.nvtx_include` by `key`).
    Chosen regions without one are left out: ncu cannot select them.
    """
    table = attribution.table
    numbers = {table.key(n): n for n in range(len(table))}
    roots = [numbers[key] for key in chosen if key in numbers and key in expressions]
    regions = [RegionChoice(table.key(n), expressions[table.key(n)]) for n in roots]
    kernels = timeline.kernels
    region = np.full(len(kernels), UNKNOWN, dtype=np.int64)
    for index, root in enumerate(roots):
        region[(region == UNKNOWN) & _inside(attribution, root, len(kernels))] = index
    inside = np.flatnonzero(region != UNKNOWN)
    inside = inside[np.argsort(kernels.host_time[inside], kind="stable")]
    # ncu's `per-launch-config` tells shared memory apart too.
    label, described = describe_signatures(timeline, inside, by_shared_memory=True)
    place, places = _places(attribution, [table.domain[n] for n in roots], region, inside, timeline)
    return LaunchTable(
        signatures=described,
        signature=label,
        process=kernels.process[inside].astype(np.int64),
        region=region[inside],
        place=place,
        duration=(kernels.end - kernels.start)[inside],
        regions=regions,
        places=places,
        turns=_turns(timeline, attribution, expressions, roots, inside),
        process_scope=bool(attribution.kernels.adopted[inside].any()),
        has_configs=kernels.config is not None,
        kernels=inside,
        warmup=_in_warmup(timeline, attribution, inside),
        context=context_of(label, queue_of(kernels)[inside]),
    )


def _in_warmup(timeline: Timeline, attribution: Attribution, inside: Int64s) -> Bools | None:
    instances = find_instances(timeline, attribution)
    if not instances.first.any():
        return None
    steady = without_warmup(timeline, attribution, instances).kernels
    found = np.zeros(len(inside), dtype=np.bool_)
    for one, other in zip(attribution.kernels.by_domain, steady.by_domain, strict=True):
        found |= one[inside] != other[inside]
    return found


def _below(table: RegionTable, root: int) -> list[bool]:
    """Of every region (and, last, of none): is it `root` or below it? Parents have lower numbers."""
    under = [False] * (len(table) + 1)
    for number in range(root, len(table)):
        parent = table.parent[number]
        under[number] = number == root or (parent != ROOT and under[parent])
    return under


def _inside(attribution: Attribution, root: int, count: int) -> Bools:
    """Kernels in a region or below it."""
    found = np.zeros(count, dtype=np.bool_)
    # A whole recording beside other ranges holds its kernels as start/end ranges do.
    if attribution.table.start_end[root] or root == attribution.kernels.whole:
        found[attribution.kernels.pieces(root)] = True
        return found
    under = np.array(_below(attribution.table, root), dtype=np.bool_)  # ROOT is -1: the last element
    for regions in attribution.kernels.by_domain:
        found |= under[regions]
    return found


def _places(
    attribution: Attribution, domains: Sequence[str], region: Int64s, inside: Int64s, timeline: Timeline
) -> tuple[Int64s, list[str]]:
    """The name of the innermost range around each launch, in the domain of its chosen region."""
    table = attribution.table
    innermost = np.full(len(inside), ROOT, dtype=np.int64)
    for domain in set(domains):
        mine = np.isin(region[inside], [i for i, d in enumerate(domains) if d == domain])
        found = attribution.kernels.by_domain[timeline.domains.index(domain)][inside]
        innermost[mine] = found[mine]
    names: dict[str, int] = {}
    # The last stands for ROOT: inside a start/end range alone.
    number = [names.setdefault(name, len(names)) for name in [*table.name, ""]]
    return np.array(number, dtype=np.int64)[innermost], list(names)


def _turns(
    timeline: Timeline, attribution: Attribution, expressions: Mapping[str, str], roots: Sequence[int], inside: Int64s
) -> list[Turns]:
    """Repeated push/pop ranges among the chosen regions and below them: of each chosen region those with most time.

    Not all there are: every one is a column as long as the launches.
    """
    table, kernels = attribution.table, timeline.kernels
    duration = (kernels.end - kernels.start)[inside]
    time = _inclusive_times(attribution, inside, duration)
    instances = np.bincount(attribution.range_region[attribution.range_region != ROOT], minlength=len(table))
    kept: dict[int, None] = {}
    for root in roots:
        under = _below(table, root)
        repeated = [
            n
            for n in range(root, len(table))
            if under[n] and instances[n] > 1 and time[n] and not table.start_end[n] and expressions.get(table.key(n))
        ]
        kept.update(dict.fromkeys(sorted(repeated, key=lambda n: (-time[n], table.depth[n]))[:_TURNS_OF_A_REGION]))
    found = []
    for number in sorted(kept, key=lambda n: (-time[n], table.depth[n]))[:_TURNS_IN_ALL]:
        mine = np.flatnonzero(attribution.range_region == number)
        turn = _instance_numbers(timeline, mine, inside)
        turn[~_inside(attribution, number, len(kernels))[inside]] = 0
        # ncu counts the instances of a process; the processes of a job have as many each.
        count = int(np.bincount(timeline.ranges.process[mine]).max())
        found.append(Turns(table.key(number), turn, count))
    return found


def _inclusive_times(attribution: Attribution, inside: Int64s, duration: Int64s) -> Int64s:
    """GPU time of the launches in every region and below it."""
    table = attribution.table
    time = np.zeros(len(table), dtype=np.int64)
    for regions in attribution.kernels.by_domain:
        mine = regions[inside]
        known = mine != ROOT
        time += np.bincount(mine[known], weights=duration[known], minlength=len(table)).astype(np.int64)
    return add_up(time, *table.arrays())


def _instance_numbers(timeline: Timeline, instances: Int64s, inside: Int64s) -> Int64s:
    """For each launch the number of the last instance that its process had begun by then, from 1."""
    kernels, ranges = timeline.kernels, timeline.ranges
    number = np.zeros(len(inside), dtype=np.int64)
    for process in np.unique(ranges.process[instances]).tolist():
        starts = np.sort(ranges.start[instances[ranges.process[instances] == process]])
        mine = np.flatnonzero(kernels.process[inside] == process)
        number[mine] = np.searchsorted(starts, kernels.host_time[inside[mine]], side="right")
    return number
