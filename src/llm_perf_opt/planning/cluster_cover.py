"""Which places of a program to profile in, so that every duration cluster is sampled and little else.

Where the program switches ncu on and off around its own ranges, launches are to be had by the range they lie in: the
launches of one range, but for those of ranges inside it, are an atom, taken together or not at all. Layers repeat, so
most atoms hold the same clusters as many others. Those are chosen that bring the most samples for the launches they cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.metrics.data_types import types_of_name
from llm_perf_opt.planning.accuracy import variation
from llm_perf_opt.planning.launch_filter import numbered
from llm_perf_opt.planning.launch_table import LaunchTable
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s
from llm_perf_opt.regions.duration_clusters import DurationClusters, split_by_duration
from llm_perf_opt.regions.signatures import Axes, stands_in

# Samples of a cluster, by the share it has of the GPU time of a stage: one tells what a launch does, more how much that
# scatters.
_SAMPLES = ((0.1, 4), (0.04, 2))
# Where long launches of one cluster take different times, they do different work (experts get more or fewer tokens): as
# many samples as bring the mean's error, as a share of the stage's time, down to this; and no more than so many.
_SCATTER_OF_STAGE = 0.002
_MOST_SAMPLES = 12
_LONG_NS = 20_000  # durations of shorter ones scatter by themselves
_LEAST_STAGE = 0.03  # share of the GPU time below which a stage is not looked at by itself
_NOT_WORTH_ONE = 0.0003  # unless its signature has no other, or it has more than the next of a stage
_NOT_WORTH_ONE_OF_STAGE = 0.001
_MOST_ATOMS = 200_000  # the first of them; a program has as many only where it repeats itself


# PyTorch's own kernels, mangled or not, and those of CUB; what is no product among them moves bytes.
_MOVERS = ("at::native::", "2at6native", "at_cuda_detail", "cub::", "3cub")


def only_moves_bytes(name: str) -> bool:
    """Is a kernel known to do no products? One of an unknown name may do anything."""
    return any(word in name for word in _MOVERS) and not types_of_name(name)


@define(eq=False)
class WantedSamples:
    """The clusters of some launches, and how many samples each should have."""

    clusters: DurationClusters
    samples: Int64s
    share: Sequence[float]  # of the GPU time

    @staticmethod
    def of(launches: LaunchTable) -> WantedSamples:
        clusters = split_by_duration(launches.signature, launches.duration, context=launches.context)
        share = clusters.total / max(launches.time_ns, 1)
        samples = np.ones(len(clusters), dtype=np.int64)
        of_stage = _largest_share(clusters, launches)
        for least, count in reversed(_SAMPLES):
            samples[of_stage >= least] = count
        samples = np.maximum(samples, _for_scatter(clusters, launches, of_stage))
        largest = np.zeros(len(clusters), dtype=np.bool_)
        order = np.lexsort((-clusters.total, clusters.signature))
        largest[order[np.unique(clusters.signature[order], return_index=True)[1]]] = True
        samples[(share < _NOT_WORTH_ONE) & (of_stage < _NOT_WORTH_ONE_OF_STAGE) & ~largest] = 0
        if launches.bytes_are_known:
            # What is left to find out are operations: of kernels that only move bytes, one sample tells the rest.
            moves = np.array([only_moves_bytes(s.name) for s in launches.signatures], dtype=np.bool_)
            samples[moves[clusters.signature]] = 0
            samples[moves[clusters.signature] & largest] = 1
        everything = np.ones(len(launches), dtype=np.bool_)
        samples[has_stand_in(launches, everything)[clusters.signature]] = 0
        return WantedSamples(clusters, np.minimum(samples, clusters.calls), share.tolist())

    def short(self, taken: Bools) -> int:
        """Samples that the taken launches lack of those wanted."""
        have = np.bincount(self.clusters.of_launch[taken], minlength=len(self.clusters))
        return int(np.maximum(self.samples - have, 0).sum())

    def missed(self, taken: Bools) -> float:
        """Share of the GPU time of the wanted clusters that have no sample among the taken launches."""
        sampled = np.bincount(self.clusters.of_launch[taken], minlength=len(self.clusters)) > 0
        return float(np.asarray(self.share)[(self.samples > 0) & ~sampled].sum())


def _for_scatter(clusters: DurationClusters, launches: LaunchTable, of_stage: NDArray[np.float64]) -> Int64s:
    """Samples of each cluster that its scatter asks for."""
    off = launches.duration - clusters.mean[clusters.of_launch]
    variance = np.bincount(clusters.of_launch, weights=off**2, minlength=len(clusters)) / np.maximum(clusters.calls, 1)
    relative = np.sqrt(variance) / np.maximum(clusters.mean, 1.0)
    needed = np.ceil((of_stage * relative / _SCATTER_OF_STAGE) ** 2)
    return np.where(clusters.mean >= _LONG_NS, np.minimum(needed, _MOST_SAMPLES), 0).astype(np.int64)


def _largest_share(clusters: DurationClusters, launches: LaunchTable) -> NDArray[np.float64]:
    """Of each cluster: the largest share it has of the time of a stage, which is what goes by the name of a range."""
    whole = np.bincount(launches.place, weights=launches.duration, minlength=len(launches.places))
    largest = np.zeros(len(clusters))
    for stage in np.flatnonzero(whole >= _LEAST_STAGE * max(launches.time_ns, 1)).tolist():  # 33 at the most
        mine = launches.place == stage
        time = np.bincount(clusters.of_launch[mine], weights=launches.duration[mine], minlength=len(clusters))
        largest = np.maximum(largest, time / max(whole[stage], 1))
    return largest


def cover(wanted: WantedSamples, atom: Int64s, *, early: bool) -> Bools:
    """Launches of the atoms to profile in. `atom`: of each launch, UNKNOWN for one in none.

    `early`: of atoms alike take the first; else the second sample comes from the last, far from the first.
    """
    known = np.flatnonzero(atom != UNKNOWN)
    alike = _alike(wanted.clusters.of_launch[known], atom[known])
    left = wanted.samples.copy()
    queue: list[tuple[float, int, int]] = []  # best first: gain of a launch, gain, number of the atoms alike

    def put(number: int) -> None:
        gain = int(np.minimum(left[alike[number].clusters], alike[number].counts).sum())
        if gain and alike[number].used < len(alike[number].atoms):
            heapq.heappush(queue, (-gain / alike[number].launches, -gain, number))

    for number in range(len(alike)):
        put(number)
    taken: list[tuple[int, _Alike]] = []
    while queue:
        before = heapq.heappop(queue)
        put(number := before[2])
        # What an atom brings only shrinks: one that is still the best when it is looked at again is the best.
        if not queue or queue[0] != before:
            continue
        heapq.heappop(queue)
        best = alike[number]
        taken.append((best.next(early), best))
        left[best.clusters] = np.maximum(left[best.clusters] - best.counts, 0)
        put(number)
    chosen = np.zeros(len(atom), dtype=np.bool_)
    chosen[known] = np.isin(atom[known], _without_needless(taken, wanted.samples))
    return chosen


@define(eq=False)
class _Alike:
    """Atoms that hold the same clusters of launches, in the order in which they run."""

    clusters: Int64s
    counts: Int64s  # launches of each cluster in one of them
    atoms: list[int] = Factory(list)
    used: int = 0

    @property
    def launches(self) -> int:
        return int(self.counts.sum())

    def next(self, early: bool) -> int:
        """The next to take: from the front, or from both ends in turn."""
        at, self.used = self.used, self.used + 1
        if early:
            return self.atoms[at]
        return self.atoms[at // 2] if at % 2 == 0 else self.atoms[-1 - at // 2]


def _alike(cluster: Int64s, atom: Int64s) -> list[_Alike]:
    ids, first = np.unique(atom, return_index=True)
    ids = ids[np.argsort(first, kind="stable")][:_MOST_ATOMS]
    order = np.lexsort((cluster, atom))
    clusters, atoms = cluster[order].astype(np.int64), atom[order]
    starts, ends = np.searchsorted(atoms, ids, "left"), np.searchsorted(atoms, ids, "right")
    found: dict[bytes, _Alike] = {}
    for number, start, end in zip(ids.tolist(), starts.tolist(), ends.tolist(), strict=True):
        held = clusters[start:end]
        group = found.get(held.tobytes())
        if group is None:
            group = found[held.tobytes()] = _Alike(*np.unique(held, return_counts=True))
        group.atoms.append(number)
    return list(found.values())


def _without_needless(taken: list[tuple[int, _Alike]], wanted: Int64s) -> list[int]:
    """The atoms without those whose clusters the others have enough of: what was best at first may be needless now."""
    have = np.zeros(len(wanted), dtype=np.int64)
    for _, group in taken:
        have[group.clusters] += group.counts
    kept = []
    for number, group in sorted(taken, key=lambda pair: -pair[1].launches):  # the dearest first
        if (have[group.clusters] - group.counts >= wanted[group.clusters]).all():
            have[group.clusters] -= group.counts
        else:
            kept.append(number)
    return kept


# -- launches that another stands in for -----------------------------------------------------------
# The same kernel on a grid of nearly the same size: the cache of a decoder grows with every token, and the kernels that
# go through it have another grid in every step, so that sampling each would need every step. The join takes such a
# neighbour's counters in proportion to the blocks (`regions.signatures.stands_in`), so one of them is enough. And of
# kernels that take next to no time one launch has to do, of those that always take as long two.

_WORTH_MORE_THAN_ONE = 0.002  # share of the GPU time
_STEADY = 0.1  # standard deviation of the durations over their mean

_Kernel = tuple[str, Axes | None, int | None, int]  # name, block, shared memory, region


def needed(launches: LaunchTable, taken: Bools) -> Bools:
    """Of the taken launches, those to open windows for."""
    wanted = ~has_stand_in(launches, taken)
    light = launches.times() < _WORTH_MORE_THAN_ONE * launches.time_ns
    most = np.where(light, 1, np.where(variation(launches) <= _STEADY, 2, np.iinfo(np.int64).max))
    few: Bools = numbered(launches, taken) <= most[launches.signature]
    return taken & wanted[launches.signature] & few


def stood_in_for(launches: LaunchTable, taken: Bools) -> Bools:
    """Of each signature: has it no sample, but one with samples that stands in for it? By the rule of the join."""
    sampled = launches.counts(taken) > 0
    durations = (launches.times() / np.maximum(launches.counts(), 1)).tolist()
    standing: dict[tuple[str, Axes | None], list[int]] = {}
    for number in np.flatnonzero(sampled).tolist():
        standing.setdefault((launches.signatures[number].name, launches.signatures[number].block), []).append(number)
    found = np.zeros(len(launches.signatures), dtype=np.bool_)
    for number in np.flatnonzero(~sampled).tolist():
        signature = launches.signatures[number]
        found[number] = any(
            stands_in(launches.signatures[other], durations[other], signature, durations[number])
            for other in standing.get((signature.name, signature.block), [])
        )
    return found


def has_stand_in(launches: LaunchTable, taken: Bools) -> Bools:
    """Of each sampled signature: could another do for it? One in another region stands in for nothing."""
    _, first = np.unique(launches.signature, return_index=True)
    lowest = np.full(len(launches.signatures), np.iinfo(np.int64).max)
    highest = np.full(len(launches.signatures), -1)
    np.minimum.at(lowest, launches.signature, launches.region)
    np.maximum.at(highest, launches.signature, launches.region)
    found = np.zeros(len(launches.signatures), dtype=np.bool_)
    sampled = launches.counts(taken) > 0
    durations = (launches.times() / np.maximum(launches.counts(), 1)).tolist()
    standing: dict[_Kernel, list[int]] = {}  # signatures that are sampled
    for number in launches.signature[np.sort(first)].tolist():  # in the order in which they first run
        signature = launches.signatures[number]
        if not sampled[number] or signature.blocks is None or lowest[number] != highest[number]:
            continue
        kernel = (signature.name, signature.block, signature.shared_memory, int(lowest[number]))
        others = standing.setdefault(kernel, [])
        if any(stands_in(launches.signatures[o], durations[o], signature, durations[number]) for o in others):
            found[number] = True
        else:
            others.append(number)
    return found
