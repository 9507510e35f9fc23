"""Energy of a measured program, shared out over its regions.

The GPU has one counter for all it does, with a new value every 100 ms. Each such interval used what the regions in it
draw, times how long each was there: a linear model with one power for each region (for what it does itself, without
regions inside it) and one for no region, fitted over all intervals of all runs. Powers are not negative, and before
anything is known each is taken for the mean power of the run, give or take half of it. So regions that always come
together, as attention and MLP of a layer, keep a wide interval: nothing is said of them.

The fit says how an interval's energy divides, never how much it is: all regions and the rest add up to the counter.
"""

from __future__ import annotations

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import UNKNOWN, UNKNOWN_HERE, Bools, Int64s, Timeline
from llm_perf_opt.regions.gpu_samples import GpuSamples
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.stacks import group_by

Floats = NDArray[np.float64]
_LEAST_INTERVALS = 20  # that a region is in, to have a power of its own
_LEAST_TIMED = 0.95  # part of its instances whose time on the GPU is known
_MOST_REGIONS = 60
_PRIOR = 0.5  # of the mean power
_LEAST_NOISE = 0.02  # of the energy of an interval: no counter is read more exactly
_WIDEST = 0.25  # of the value: half of an interval that is still worth saying
_SURE = 1.96  # standard deviations, for 95 %


@define(eq=False)
class Energy:
    """What the ranges of a timeline used, in joules."""

    total: float  # the counter, over all runs
    no_region: float
    of_range: Floats  # with the regions inside it; NaN where that is not known
    half_width: dict[
        int, float
    ]  # region -> half of the 95 % interval, as a part of the value; not where it is too wide

    def of(self, region: int, ranges: Int64s) -> tuple[float | None, float | None]:
        """Of one of these instances of a region: the mean, and half of its interval."""
        width, found = self.half_width.get(region), self.of_range[ranges]
        if width is None or np.isnan(found).all():
            return None, None
        mean = float(np.nanmean(found))
        return mean, mean * width


@define(eq=False)
class _Intervals:
    """Between two values of the counter; in order, with gaps between runs."""

    start: Int64s
    end: Int64s
    used: Floats  # joules

    def overlap(self, start: Int64s, end: Int64s) -> Floats:
        """Seconds of each that some ranges were there, added up over ranges."""
        starts, ends = np.sort(start) / 1e9, np.sort(end) / 1e9
        sums = np.concatenate([[0.0], np.cumsum(starts)]), np.concatenate([[0.0], np.cumsum(ends)])

        def until(moment: Floats) -> Floats:
            begun, over = np.searchsorted(starts, moment), np.searchsorted(ends, moment)
            found: Floats = (begun * moment - sums[0][begun]) - (over * moment - sums[1][over])
            return found

        return until(self.end / 1e9) - until(self.start / 1e9)

    def integral(self, rate: Floats, moment: Int64s) -> Floats:
        """Of a rate that is constant in each interval and 0 in gaps, from the beginning to some moments."""
        edges = np.stack([self.start, self.end], axis=1).ravel().astype(np.float64)
        steps = np.zeros(len(edges))
        steps[1::2] = rate * (self.end - self.start) / 1e9
        found: Floats = np.interp(moment.astype(np.float64), edges, np.cumsum(steps))
        return found


def share_out(timeline: Timeline, attribution: Attribution) -> Energy | None:
    """None where no GPU was sampled, no counter moved, or the ranges did nothing on a GPU."""
    intervals, ranges = _intervals(timeline.gpus), timeline.ranges
    if intervals is None or ranges.gpu_start is None:
        return None
    known = ranges.gpu_start != UNKNOWN_HERE
    if not known.any():
        return None
    # From the first interval on: sums of times since the machine started would be coarse.
    origin = int(intervals.start[0])
    intervals = _Intervals(intervals.start - origin, intervals.end - origin, intervals.used)
    start = np.where(known, ranges.gpu_start, ranges.start) - origin
    end = start + ranges.duration
    chosen = _with_a_power(attribution, known, start, end, intervals)
    has_power = known & np.isin(attribution.range_region, chosen)
    around = _around(has_power, attribution)
    number = np.full(len(attribution.table) + 1, len(chosen), dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    column = number[attribution.range_region]
    time = _times(has_power, around, column, len(chosen), start, end, intervals)
    power, covariance = _fit(time, intervals.used)
    fitted = time @ power
    scale = np.divide(intervals.used, fitted, out=np.zeros_like(fitted), where=fitted > 0)
    spent = intervals.integral(scale, end) - intervals.integral(scale, start)  # seconds, stretched by the scale
    of_range = _inclusive(has_power, around, spent, power[column], attribution)
    total = float(intervals.used.sum())
    outer = has_power & (around == UNKNOWN)
    return Energy(
        total=total,
        no_region=total - float(of_range[outer].sum()),
        of_range=np.where(has_power, of_range, np.nan),
        half_width=_half_widths(chosen, attribution, time.sum(axis=0), power, covariance),
    )


def _intervals(gpus: list[GpuSamples]) -> _Intervals | None:
    """All intervals of all runs; several GPUs of a run together."""
    parts = []
    for _, mine in group_by(np.array([gpu.run for gpu in gpus], dtype=np.int64)):
        counters = [counter for n in mine.tolist() if len((counter := _moves(gpus[n]))[0]) > 1]
        if counters:
            at = counters[0][0]
            used = sum((np.diff(np.interp(at, *counter)) for counter in counters), start=np.zeros(len(at) - 1))
            parts.append(_Intervals(at[:-1], at[1:], used / 1e3))
    if not parts:
        return None
    parts.sort(key=lambda part: int(part.start[0]))
    start, end, used = (np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "end", "used"))
    good = (end > start) & (used >= 0)  # a counter of 32 bits may begin anew
    return _Intervals(start[good], end[good], used[good]) if good.any() else None


def _moves(gpu: GpuSamples) -> tuple[Int64s, Int64s]:
    """When the counter had a new value, and which."""
    known = np.flatnonzero(gpu.energy_mj >= 0)
    energy = gpu.energy_mj[known]
    new = known[np.concatenate([[True], energy[1:] != energy[:-1]])] if len(known) else known
    return gpu.time[new], gpu.energy_mj[new]


def _with_a_power(attribution: Attribution, known: Bools, start: Int64s, end: Int64s, intervals: _Intervals) -> Int64s:
    """Regions that were there often enough, and on the GPU; the rest is part of what is around it."""
    found = []
    for region, mine in group_by(attribution.range_region):
        timed = mine[known[mine]]
        if region == UNKNOWN or len(timed) < _LEAST_TIMED * len(mine):
            continue
        there = intervals.overlap(start[timed], end[timed])
        if int((there > 0).sum()) >= _LEAST_INTERVALS:
            found.append((float(there.sum()), region))
    return np.array(sorted(region for _, region in sorted(found)[-_MOST_REGIONS:]), dtype=np.int64)


def _around(has_power: Bools, attribution: Attribution) -> Int64s:
    """Of each range, the nearest around it that has a power; UNKNOWN: none."""
    parent_of = attribution.range_parent
    around = np.full(len(parent_of), UNKNOWN, dtype=np.int64)
    for _, level in group_by(_depth(attribution)):
        inside = level[parent_of[level] != UNKNOWN]
        parent = parent_of[inside]
        around[inside] = np.where(has_power[parent], parent, around[parent])
    return around


def _depth(attribution: Attribution) -> Int64s:
    return np.array([*attribution.table.depth, 0], dtype=np.int64)[attribution.range_region]


def _times(
    has_power: Bools, around: Int64s, column: Int64s, regions: int, start: Int64s, end: Int64s, intervals: _Intervals
) -> Floats:
    """Seconds of each interval that each region spent by itself; the last column is no region."""
    time = np.zeros((len(intervals.used), regions + 1))
    inside = has_power & (around != UNKNOWN)
    holder = np.where(inside, column[around], UNKNOWN)
    for place in range(regions):
        mine, within = has_power & (column == place), inside & (holder == place)
        time[:, place] = intervals.overlap(start[mine], end[mine]) - intervals.overlap(start[within], end[within])
    outer = np.flatnonzero(has_power & (around == UNKNOWN))
    order = outer[np.argsort(start[outer], kind="stable")]
    covered = BusyTime.of(start[order], end[order]).within(intervals.start, intervals.end)
    time[:, -1] = (intervals.end - intervals.start - covered) / 1e9
    return np.maximum(time, 0.0)


def _fit(time: Floats, used: Floats) -> tuple[Floats, Floats]:
    """Watts of each column, and their covariance."""
    mean = float(used.sum() / max(time.sum(), 1e-9))
    prior = 1 / (_PRIOR * mean) ** 2 if mean > 0 else 1.0
    least = (_LEAST_NOISE * float(used.mean())) ** 2 + 1e-12
    noise = float(np.var(used)) + least
    power: Floats = np.full(time.shape[1], mean)
    squares, products = time.T @ time, time.T @ used
    for _ in range(3):  # how noisy intervals are shows only when they are fitted
        matrix = squares / noise + prior * np.eye(len(power))
        power = _not_negative(matrix, products / noise + prior * mean, power)
        left = max(len(used) - time.shape[1], 1)
        noise = max(float(((used - time @ power) ** 2).sum() / left), least)
    matrix = squares / noise + prior * np.eye(len(power))
    return power, np.linalg.inv(matrix).astype(np.float64)


def _not_negative(matrix: Floats, right: Floats, begin: Floats) -> Floats:
    """The best fit without negative values: one value after the other, until none moves."""
    found = begin.copy()
    for _ in range(1000):
        moved = 0.0
        for n in range(len(found)):
            better = max(found[n] + (right[n] - matrix[n] @ found) / matrix[n, n], 0.0)
            moved, found[n] = max(moved, abs(better - found[n])), better
        if moved < 1e-6 * max(float(found.max()), 1e-9):
            break
    return found


def _inclusive(has_power: Bools, around: Int64s, spent: Floats, power: Floats, attribution: Attribution) -> Floats:
    """Joules of each range: what it used itself, and what those inside it did."""
    own = np.where(has_power, spent, 0.0)
    inside = np.flatnonzero(has_power & (around != UNKNOWN))
    np.subtract.at(own, around[inside], spent[inside])
    energy = np.where(has_power, own * power, 0.0)
    depth = _depth(attribution)
    for _, level in reversed(list(group_by(depth[inside]))):
        mine = inside[level]
        np.add.at(energy, around[mine], energy[mine])
    return energy


def _half_widths(
    chosen: Int64s, attribution: Attribution, seconds: Floats, power: Floats, covariance: Floats
) -> dict[int, float]:
    """Of the energy of each region with all inside it; too wide ones are left out."""
    parent, found = attribution.table.arrays()[0], {}
    for region in chosen.tolist():
        inside = np.zeros(len(power))
        for place, other in enumerate(chosen.tolist()):
            while other not in (region, UNKNOWN):
                other = int(parent[other])
            inside[place] = seconds[place] if other == region else 0.0
        energy = float(inside @ power)
        variance = max(float(inside @ covariance @ inside), 0.0)
        width = _SURE * variance**0.5 / energy if energy > 0 else 1.0
        if width <= _WIDEST:
            found[region] = width
    return found
