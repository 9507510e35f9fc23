"""How far apart two sets of times are, and how sure that is: all statistics of comparisons.

Two levels of noise: instances within a run, and runs. Where both sides have several runs, the runs' medians are the
observations and Welch's interval of their logarithms is the answer. With one run, the instances give an interval that
knows nothing of how runs differ, so that it is widened by what is known of that (`run_room`).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from attrs import define

from llm_perf_opt.comparing.side import Floats, Times

RUNS, INSTANCES, NOTHING = "runs", "instances", "nothing"  # what an interval rests on
_PAIR = 2
SEVERAL = 3  # runs on each side, from which on their medians are compared
_FEW = 5  # instances: of fewer, one that was late is half of them
_UNKNOWN_RUNS = 0.05  # how far two runs of one program may be apart where nobody has looked
_NO_SPREAD = 0.35  # as a logarithm; taken where a region ran once or twice
_LEAST = 0.001  # relative standard error: nothing is measured better than this
_TWO_SIDED = 1.96  # standard deviations on each side, for 95 %
_CORRELATED = 0.5  # instances that go up and down together are compared pair by pair


@define(frozen=True)
class Difference:
    """By what factor times changed, as logarithms, with an interval."""

    change: float
    low: float
    high: float
    basis: str  # RUNS | INSTANCES | NOTHING

    @property
    def is_separated(self) -> bool:
        return self.low > 0 or self.high < 0

    def within(self, margin: float) -> bool:
        return self.low > -margin and self.high < margin


def difference(before: Times, after: Times, alpha: float = 0.01, room: float = 0.0) -> Difference:
    """From one set of times to another; the interval misses the truth in a part `alpha` of all comparisons.

    `room`: how far apart two runs of the same program may be, where there is but one of a side.
    """
    if min(len(before.runs), len(after.runs)) >= SEVERAL:
        return _of_runs(np.log(before.medians), np.log(after.medians), alpha)
    change = math.log(after.typical) - math.log(before.typical)
    if min(before.instances, after.instances) < _FEW:
        spread = max(_NO_SPREAD, room)
        return Difference(change, change - spread, change + spread, NOTHING)
    sure = NormalDist().inv_cdf(1 - alpha / 2)
    edges = []
    for moved, error in _changes(before, after):
        half = math.hypot(sure * max(error, _LEAST), room)
        edges.append((moved - half, moved + half))
    # Where half of the instances do something else, a median jumps from one kind to the other; the mean does not.
    return Difference(change, min(low for low, _ in edges), max(high for _, high in edges), INSTANCES)


def _changes(before: Times, after: Times) -> list[tuple[float, float]]:
    """By medians and by means of the instances: the change, and its standard error."""
    moved = math.log(after.typical) - math.log(before.typical)
    error = math.hypot(_standard_error(before), _standard_error(after))
    paired = _paired(before, after)
    by_median = (moved, error if paired is None else min(paired, error))
    if before.spread is not None or after.spread is not None:
        return [by_median]
    logs = [[_clipped(np.log(run)) for run in side.runs] for side in (before, after)]
    means = [float(np.mean([run.mean() for run in runs])) for runs in logs]
    errors = [math.sqrt(sum(run.var() / effective_count(run) for run in runs)) / len(runs) for runs in logs]
    if paired is not None and paired < error:
        return [by_median]
    return [by_median, (means[1] - means[0], math.hypot(*errors))]


def _clipped(logs: Floats) -> Floats:
    """Without what is far out: a single hiccup must not decide."""
    return np.clip(logs, *np.quantile(logs, [0.05, 0.95]))


def _of_runs(before: Floats, after: Floats, alpha: float) -> Difference:
    """Welch's interval for the difference of the means of some logarithms."""
    parts = [max(float(side.var(ddof=1)), _LEAST**2) / len(side) for side in (before, after)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (before, after), strict=True)
    )
    change = float(after.mean() - before.mean())
    half = student(1 - alpha / 2, freedom) * math.sqrt(sum(parts))
    return Difference(change, change - half, change + half, RUNS)


def run_spread(times: Times) -> float | None:
    """Standard deviation between runs, of logarithms; None where there are too few.

    Two say little, but never that runs differ by less than is usual.
    """
    if len(times.runs) < _PAIR:
        return None
    found = float(np.log(times.medians).std(ddof=1))
    return found if len(times.runs) >= SEVERAL else max(found, _UNKNOWN_RUNS / run_room(1.0))


def run_room(spread: float | None, alpha: float = 0.01) -> float:
    """How far apart two single runs of the same program may be, as a logarithm. `spread`: between runs, if known."""
    if spread is None:
        return _UNKNOWN_RUNS
    return NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt(2) * max(spread, _LEAST)


def _standard_error(times: Times) -> float:
    """Of the median of the instances, relative."""
    if times.spread is not None:
        return 1.2533 * times.spread / math.sqrt(max(times.instances, 1))
    errors = [_error_of(np.log(run)) for run in times.runs]
    return math.sqrt(sum(error**2 for error in errors)) / len(errors)


def _error_of(logs: Floats) -> float:
    """Standard error of a median; instances that follow each other are alike, and count for less than they are.

    From the spread, and from the values around the median: between two humps there are few, and it can be anywhere.
    """
    count, worth = len(logs), effective_count(logs)
    low, high = np.quantile(logs, [0.16, 0.84])
    usual = 1.2533 * float(high - low) / 2 / math.sqrt(worth)
    reach = _TWO_SIDED * count / math.sqrt(worth) / 2
    ordered = np.sort(logs)
    first, last = max(math.floor(count / 2 - reach), 0), min(math.ceil(count / 2 + reach), count - 1)
    return max(usual, float(ordered[last] - ordered[first]) / (2 * _TWO_SIDED))


def effective_count(values: Floats) -> float:
    """As many independent values as these are worth, from how alike neighbours are."""
    count = len(values)
    if count < 8 or float(values.std()) == 0:
        return float(count)
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    alike = float(np.clip(np.corrcoef(ranks[:-1], ranks[1:])[0, 1], 0.0, 0.95))
    return max(count * (1 - alike) / (1 + alike), 2.0)


def _paired(before: Times, after: Times) -> float | None:
    """Standard error of the change where the n-th instance of both does the same: a cache grows, a prompt is longer."""
    if len(before.runs) != 1 or len(after.runs) != 1 or len(before.runs[0]) != len(after.runs[0]):
        return None
    one, other = np.log(before.runs[0]), np.log(after.runs[0])
    if len(one) < 8 or not (one.std() and other.std()):
        return None
    return _error_of(other - one) if float(np.corrcoef(one, other)[0, 1]) > _CORRELATED else None


def student(probability: float, freedom: float) -> float:
    """Quantile of Student's t; by halving, as nobody waits for it."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if _student_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
        if high - low < 1e-9 * high:
            break
    return (low + high) / 2


def _student_cdf(t: float, freedom: float) -> float:
    """For t of 0 or more, by the incomplete beta function."""
    return 1 - 0.5 * _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    result = d
    for step in range(1, 300):
        twice = a + 2 * step
        for part in (
            step * (b - step) * x / ((twice - 1) * twice),
            -(a + step) * (a + b + step) * x / (twice * (twice + 1)),
        ):
            d, c = 1 + part * d, 1 + part / c
            d, c = 1 / (d if abs(d) > tiny else tiny), c if abs(c) > tiny else tiny
            result *= c * d
        if abs(1 - c * d) < 1e-12:
            break
    return front * result
