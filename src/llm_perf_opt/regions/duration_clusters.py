"""Duration clusters: launches of one signature that do different work, told apart by how long they take.

A signature (name, grid, block) does not tell everything: a kernel that keeps every multiprocessor busy has the same
grid whatever the size of its matrices, and the inner dimension of a product is in no grid at all. Such launches differ
in their duration, in steps: the durations of one signature fall into groups. The planner samples each group, and the
join gives each its own samples.

Durations also scatter by themselves, of short kernels by as much as two clusters may be apart. But a model repeats itself:
launches that come after the same other launches do the same. So it is their mean durations that are looked at first.
"""

from __future__ import annotations

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.regions.columns import Bools, Int64s, Work

Floats = NDArray[np.float64]

# Two groups of durations are two clusters where their means are at least this far apart, relatively and in ns, and this
# many times as far as durations scatter in them. Even durations cut in the middle would give 3.5, a bell 2.7. On an
# H200 launches that do the same scatter by less than the first two, in the timeline and under ncu.
_APART = 0.15
_APART_NS = 500
_APART_OVER_SCATTER = 4.0
_BEFORE = 3  # launches before one that make its context
_LEAST_ALIKE = 4  # launches of a signature in a context: of fewer, the mean scatters too


@define(eq=False)
class DurationClusters:
    """The clusters among some launches, numbered by signature and, within one, by duration."""

    of_launch: Int64s
    signature: Int64s  # of each cluster
    calls: Int64s
    total: Int64s  # duration of its launches, ns

    def __len__(self) -> int:
        return len(self.signature)

    def joined(self, into: Int64s) -> DurationClusters:
        """With some clusters as part of others of their signature; `into`: of each, the cluster it becomes part of."""
        kept, label = np.unique(into, return_inverse=True)
        label = label.astype(np.int64).reshape(-1)
        return DurationClusters(
            of_launch=label[self.of_launch] if len(self) else self.of_launch,
            signature=self.signature[kept],
            calls=np.bincount(label, weights=self.calls, minlength=len(kept)).astype(np.int64),
            total=np.bincount(label, weights=self.total, minlength=len(kept)).astype(np.int64),
        )

    @property
    def mean(self) -> Floats:
        """Duration of a launch, ns."""
        return np.asarray(self.total / np.maximum(self.calls, 1))


def queue_of(work: Work) -> Int64s:
    """A number for each piece of work, equal for those of one process and device."""
    return work.process.astype(np.int64) << 32 | work.device.astype(np.int64)


def context_of(signature: Int64s, queue: Int64s) -> Int64s:
    """A number for each launch, equal for those of one signature that come after the same launches of their queue.

    Launches in the order in which they run, or were made.
    """
    order = np.argsort(queue, kind="stable")
    ordered, of = signature[order].astype(np.int64), queue[order]
    label = ordered
    for back in range(1, _BEFORE + 1):
        before = np.full(len(order), -1, dtype=np.int64)
        before[back:] = np.where(of[back:] == of[:-back], ordered[:-back], -1)
        width = int(ordered.max(initial=0)) + 2
        label = np.unique(label * width + before + 1, return_inverse=True)[1].astype(np.int64).reshape(-1)
    context = np.empty(len(order), dtype=np.int64)
    context[order] = label
    return context


def split_by_duration(
    signature: Int64s, duration: Int64s, divisible: Bools | None = None, context: Int64s | None = None
) -> DurationClusters:
    """The clusters of launches. `divisible`: of each signature, may it have several; all may unless told.

    `context`: see `context_of`; where it is not given, all durations are taken as they are.
    """
    if context is None:
        return _split(signature, duration, duration, divisible)
    # First by what is usual in a context, then each part by the durations themselves.
    usual = _split(signature, duration, _usual(signature, duration, context), divisible)
    parts_divisible = None if divisible is None else divisible[usual.signature]
    clusters = _split(usual.of_launch, duration, duration, parts_divisible)
    clusters.signature = usual.signature[clusters.signature]
    return clusters


def _usual(signature: Int64s, duration: Int64s, context: Int64s) -> Int64s:
    """The mean duration in the context of each launch; in a rare one, that of the context which is nearest to it."""
    calls = np.bincount(context)
    mean = (np.bincount(context, weights=duration) / np.maximum(calls, 1)).astype(np.int64)
    known = calls[context] >= _LEAST_ALIKE
    usual = np.where(known, mean[context], duration)
    width = int(duration.max(initial=0)) + 1
    if known.all() or not known.any() or width * (int(signature.max()) + 2) >= 2**62:
        return usual
    # One number for signature and mean: its neighbours in their order are the nearest means of the signature, if any.
    means = np.unique(signature[known] * width + usual[known])
    rare = np.flatnonzero(~known)
    wanted = signature[rare] * width + duration[rare]
    at = np.searchsorted(means, wanted)
    below, above = means[np.maximum(at - 1, 0)], means[np.minimum(at, len(means) - 1)]
    has_below, has_above = below // width == signature[rare], above // width == signature[rare]
    nearer = has_below & (~has_above | (np.abs(wanted - below) <= np.abs(above - wanted)))
    found = np.where(nearer, below, above) % width
    usual[rare] = np.where(has_below | has_above, found, duration[rare])
    return usual


def _split(signature: Int64s, duration: Int64s, by: Int64s, divisible: Bools | None) -> DurationClusters:
    """Clusters of each signature where `by` falls into groups."""
    order = np.lexsort((by, signature))
    labels, durations = signature[order], by[order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = np.diff(labels) != 0
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(order))[: len(starts)]
    # Where the longest is hardly longer than the shortest there is nothing to look for.
    low, high = durations[starts], durations[ends - 1]
    several = (high - low >= _APART_NS) & (high >= (1 + _APART) * low)
    if divisible is not None:
        several &= divisible[labels[starts]]
    for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
        begins[[start + cut for cut in _cuts(durations[start:end].astype(np.float64))]] = True
    of_launch = np.empty(len(order), dtype=np.int64)
    of_launch[order] = np.cumsum(begins) - 1
    count = int(begins.sum())
    return DurationClusters(
        of_launch=of_launch,
        signature=labels[begins].astype(np.int64),
        calls=np.bincount(of_launch, minlength=count).astype(np.int64),
        total=np.bincount(of_launch, weights=duration, minlength=count).astype(np.int64),
    )


def _cuts(ordered: Floats) -> list[int]:
    """Where durations in their order fall apart into groups: the place that divides best, then those on both sides."""
    found: list[int] = []
    open_parts = [(0, len(ordered))]
    while open_parts:
        start, end = open_parts.pop()
        cut = _best_cut(ordered[start:end])
        if cut:
            found.append(start + cut)
            open_parts += [(start, start + cut), (start + cut, end)]
    return found


def _best_cut(ordered: Floats) -> int:
    """The cut with the least scatter on both sides; 0 where what it parts is no two clusters."""
    count = len(ordered)
    if count < 2 or ordered[-1] - ordered[0] < _APART_NS:
        return 0
    left = np.arange(1, count)
    right = count - left
    sums, squares = np.cumsum(ordered), np.cumsum((ordered - ordered[0]) ** 2)
    means = sums[:-1] / left, (sums[-1] - sums[:-1]) / right
    # Sums of squared distances from the means, by the shifted values: large numbers would lose the small differences.
    shifted = means[0] - ordered[0], means[1] - ordered[0]
    scatter = squares[-1] - left * shifted[0] ** 2 - right * shifted[1] ** 2
    best = int(np.argmin(scatter))
    low, high = float(means[0][best]), float(means[1][best])
    typical = np.sqrt(max(float(scatter[best]), 0.0) / count)
    apart = high - low
    is_two = apart >= _APART_NS and apart >= _APART * low and apart >= _APART_OVER_SCATTER * typical
    return best + 1 if is_two else 0
