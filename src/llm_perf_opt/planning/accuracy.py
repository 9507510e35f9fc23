"""How far off will the samples be, by the timeline: launches that take different times do different work.

A counter is estimated as the mean of samples times the number of launches, cluster by cluster
(`regions.duration_clusters`) and place by place: one signature may do different work in `attention` and in `mlp`, in
the prefill and in a decode step. Where a place has no sample of its own, the report takes those of the places most like
it, then those of another cluster, scaled where their time tells that the work is another, and that is where estimates
go wrong. Durations stand in for the counters, which nobody knows yet.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.planning.launch_table import LaunchTable
from llm_perf_opt.regions.columns import Bools, Int64s
from llm_perf_opt.regions.duration_clusters import split_by_duration

Floats = NDArray[np.float64]


@define(eq=False)
class Strata:
    """Launches of one cluster in places of one name, in one chosen region: what samples can speak for."""

    of_launch: Int64s
    signature: Int64s  # of each stratum
    region: Int64s
    count: Floats
    mean: Floats  # duration
    deviation: Floats
    in_region: Int64s  # labels of the strata, equal where signature and region are
    # Where to look for samples when a stratum has none, nearest first: labels of the strata, equal ones pooled.
    likeness: list[Int64s]

    @staticmethod
    def of(launches: LaunchTable) -> Strata:
        clusters = split_by_duration(launches.signature, launches.duration, context=launches.context)
        places = max(len(launches.places), 1)
        key = (launches.region * len(clusters) + clusters.of_launch) * places + launches.place
        seen, label = np.unique(key, return_inverse=True)
        label = label.astype(np.int64).reshape(-1)
        place = seen % places
        cluster = seen // places % max(len(clusters), 1)
        region = seen // places // max(len(clusters), 1)
        signature = clusters.signature[cluster]
        duration = launches.duration.astype(np.float64)
        count = np.bincount(label, minlength=len(seen)).astype(np.float64)
        mean = np.bincount(label, weights=duration, minlength=len(seen)) / np.maximum(count, 1)
        squares = np.bincount(label, weights=(duration - mean[label]) ** 2, minlength=len(seen))
        return Strata(
            of_launch=label,
            signature=signature,
            region=region,
            count=count,
            mean=mean,
            deviation=np.sqrt(squares / np.maximum(count - 1, 1)),
            in_region=_pooled(signature, region),
            likeness=[
                np.arange(len(seen)),
                _pooled(cluster, region),  # other places of this region
                _pooled(cluster, place),  # places of this name in other regions
                _pooled(cluster),
                _pooled(signature, region),  # other clusters
                _pooled(signature),
            ],
        )

    def __len__(self) -> int:
        return len(self.signature)


@define(eq=False)
class Accuracy:
    """What to expect of a set of samples."""

    time: Floats  # of each stratum, ns
    offset: Floats  # what the estimate of its time is off by, ns; NaN without any sample
    scatter: Floats  # standard error of that estimate, ns; NaN without any sample
    elsewhere: Bools  # its signature has samples in other regions only, or none

    @property
    def weight(self) -> Floats:
        """Of each stratum: what it may add to the error of a total, ns."""
        return np.nan_to_num(np.abs(self.offset) + self.scatter)

    @property
    def total(self) -> float:
        """Expected relative error of totals over what is sampled: offsets may add up, scatter averages out."""
        sampled = ~np.isnan(self.offset)
        time = float(self.time[sampled].sum())
        if not time:
            return 0.0
        offset = float(np.abs(self.offset[sampled]).sum())
        return (offset + math.sqrt(float((self.scatter[sampled] ** 2).sum()))) / time


def expected(strata: Strata, launches: LaunchTable, taken: Bools) -> Accuracy:
    """What samples of the taken launches let expect."""
    labels = strata.of_launch[taken]
    number = np.bincount(labels, minlength=len(strata)).astype(np.float64)
    total = np.bincount(labels, weights=launches.duration[taken], minlength=len(strata))
    mean = np.full(len(strata), np.nan)
    used = np.full(len(strata), np.nan)
    for pool in strata.likeness:
        pooled_number = np.bincount(pool, weights=number)[pool] if len(pool) else number
        pooled_total = np.bincount(pool, weights=total)[pool] if len(pool) else total
        fill = np.isnan(mean) & (pooled_number > 0)
        mean[fill] = pooled_total[fill] / pooled_number[fill]
        used[fill] = pooled_number[fill]
    # Without replacement: who samples all launches is certain.
    left = np.where(number > 0, np.maximum(1 / np.maximum(used, 1) - 1 / np.maximum(strata.count, 1), 0), 1 / used)
    time = strata.count * strata.mean
    return Accuracy(
        time=time,
        # Samples of launches that take much longer or shorter are scaled by that: what is off then is the guess
        # that counters grow with the time, and hardly more than all there is.
        offset=np.clip(strata.count * (mean - strata.mean), -time, time),
        scatter=np.where(np.isnan(mean), np.nan, strata.count * strata.deviation * np.sqrt(left)),
        elsewhere=np.bincount(strata.in_region, weights=number)[strata.in_region] == 0 if len(strata) else number > 0,
    )


def allocate(counts: Int64s, weights: Floats, samples: int) -> Int64s:
    """Neyman's allocation: samples in proportion to what a signature adds to the error, at least one each.

    `weights`: time times relative variation. No signature gets more samples than it has launches; where there
    are fewer samples than signatures, those with the most weight get one.
    """
    given = np.zeros(len(counts), dtype=np.int64)
    order = np.argsort(-weights, kind="stable")
    order = order[counts[order] > 0]
    given[order[: max(samples, 0)]] = 1
    left = samples - int(given.sum())
    while left > 0:
        room = counts - given
        worth = np.where(room > 0, weights, 0.0)
        if not worth.any():
            break
        exact = worth / worth.sum() * left
        extra = np.minimum(np.floor(exact).astype(np.int64), room)
        if not extra.any():
            # Less than one each: to those that come nearest.
            best = np.argsort(-exact, kind="stable")[:left]
            extra[best[worth[best] > 0]] = 1
        given += extra
        left -= int(extra.sum())
    return given


def variation(launches: LaunchTable) -> Floats:
    """Of each signature: standard deviation of its durations over their mean."""
    count = np.maximum(launches.counts(), 1).astype(np.float64)
    mean = np.maximum(launches.times() / count, 1.0)
    difference = launches.duration - mean[launches.signature]
    squares = np.bincount(launches.signature, weights=difference**2, minlength=len(count))
    return np.asarray(np.sqrt(squares / np.maximum(count - 1, 1)) / mean)


def _pooled(*columns: Int64s) -> Int64s:
    """Labels that are equal where all columns are."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1 if len(column) else 1) + column
    _, label = np.unique(key, return_inverse=True)
    return label.astype(np.int64).reshape(-1)
