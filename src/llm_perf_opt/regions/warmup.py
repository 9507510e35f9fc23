"""Which instances of a region came before the program was warm.

The first times a program does something, it also compiles, loads modules, captures graphs, plans and allocates.
Warm-up shows in the order and lengths of the instances alone: a few at the beginning take much longer than all
that follow, and the GPU does not work more in them. Pure functions over columns; whoever timed the instances
(a timeline, or the program itself) asks the same questions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.regions.columns import Bools, Int64s

# An instance is slow if it takes longer than the median of the later ones by this factor. With few instances
# nobody knows how far they usually differ, so that more is asked for.
_SLOW = ((4, 1.3), (2, 1.5), (1, 2.0))  # from so many later ones on
_AGAINST_ONE = 4.0  # … of two instances, against the only later one: the last is often shorter, too
_SPREADS = 6.0  # … and by so many times their usual distance from the median
_SHORTEST_NS = 50_000  # a range of microseconds may take any time: less than this too long is noise
_ALIKE = 0.7  # a later instance of this part of the length: such ones come again, whatever they are
_RARE = 0.02  # part of the later instances that may be hiccups of that length
_MOST = 1 / 3  # part of the instances that may be warm-up
_FEW = 2  # … or so many, where there are few instances
_IDLE = 0.5  # part of the excess in which the GPU does nothing more: else the instance had more work to do
_LEVEL = 1.5  # two levels differ by this factor
_LEVEL_SHARE = 0.2  # and hold at least this part of the instances each


@define(frozen=True)
class Split:
    """How the instances of a region, in the order they began, divide."""

    warmup: int = 0  # so many at the beginning
    level_change: int | None = None  # the instance from which on all take another time; None: there is none


def split(duration: Int64s, working: Int64s | None = None) -> Split:
    """`working`: of each duration, the part in which the GPU worked; None where that is not known."""
    count = len(duration)
    if count < 2:
        return Split()
    change = _level_change(duration)
    head = slice(0, change)  # what comes before another level is compared with its own level
    duration, working = duration[head], None if working is None else working[head]
    count = len(duration)
    most, warmup = max(int(count * _MOST), min(_FEW, count - 1)), 0
    while warmup < most:
        more = _leading(duration[warmup:], None if working is None else working[warmup:])
        if not more:
            break
        warmup = min(warmup + more, most)
    return Split(warmup, change)


def _leading(duration: Int64s, working: Int64s | None) -> int:
    """How many instances at the beginning are slow, of two or more; a fast one may be among them."""
    count = len(duration)
    if count < 2:
        return 0
    first_later = max(count // 2, 1)
    factor = next(factor for least, factor in _SLOW if count - first_later >= least)
    if count == 3 and duration[1] > 2 * duration[2]:
        first_later, factor = 2, _AGAINST_ONE
    later = np.arange(count) >= first_later
    usual = _median(duration[later])
    spread = 1.4826 * _median(np.abs(duration[later] - usual))
    slow = duration > usual + max((factor - 1) * usual, _SPREADS * spread, _SHORTEST_NS)
    if working is not None:
        more_work = working - _median(working[later])
        slow &= more_work <= (1 - _IDLE) * (duration - usual)
    among = np.cumsum(slow) * 2 >= np.arange(1, count + 1)
    found = np.flatnonzero(slow & among & ~later)
    # A length that comes again is part of what the region does: a prefill among decode steps, a checkpoint.
    for last in reversed(found.tolist()):
        rest = duration[last + 1 :]
        again = int((rest >= _ALIKE * duration[: last + 1][slow[: last + 1]].min()).sum())
        if again <= _RARE * len(rest):
            return last + 1
    return 0


def _level_change(duration: Int64s) -> int | None:
    """The one place after which all instances take another time than before; both parts are long and even."""
    count = len(duration)
    least = max(int(count * _LEVEL_SHARE), 4)
    if count < 2 * least:
        return None
    # Distances from the mean are least where the sequence is cut at the change.
    logs = np.log(np.maximum(duration, 1).astype(np.float64))
    cuts = np.arange(least, count - least + 1)
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    before = squares[cuts - 1] - sums[cuts - 1] ** 2 / cuts
    after = (squares[-1] - squares[cuts - 1]) - (sums[-1] - sums[cuts - 1]) ** 2 / (count - cuts)
    cut = int(cuts[np.argmin(before + after)])
    left, right = np.sort(duration[:cut]), np.sort(duration[cut:])
    low, high = sorted((left, right), key=_middle)
    apart = _quantile(low, 0.95) * 1.1 < _quantile(high, 0.05)
    below, above = _middle(low), _middle(high)
    return cut if apart and above > max(_LEVEL * below, below + _SHORTEST_NS) else None


def quantiles(values: Int64s) -> tuple[int, int, int]:
    """The 10 %, 50 % and 90 % quantile of what is not empty."""
    if len(values) == 1:  # most regions of a program that names each request
        return (int(values[0]),) * 3
    ordered = np.sort(values)
    low, middle, high = (_quantile(ordered, part) for part in (0.1, 0.5, 0.9))
    return round(low), round(middle), round(high)


def _quantile(ordered: Int64s, part: float) -> float:
    """What `np.quantile` says, without what that does for any number of axes and ways to do it."""
    at = part * (len(ordered) - 1)
    below = min(int(at), len(ordered) - 1)
    low, high = int(ordered[below]), int(ordered[min(below + 1, len(ordered) - 1)])
    rest = at - below
    return high - (high - low) * (1 - rest) if rest >= 0.5 else low + (high - low) * rest


def _median(values: NDArray[Any]) -> float:
    return _middle(np.sort(values))


def _middle(ordered: NDArray[Any]) -> float:
    """What `np.median` says, without what that does for any number of axes."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (float(ordered[half - 1]) + float(ordered[half])) / 2


def excess(duration: Int64s, warm: Bools) -> NDArray[np.int64]:
    """How much longer each warm-up instance took than the median of the steady ones; 0 for all others."""
    found = np.zeros(len(duration), dtype=np.int64)
    if warm.any() and not warm.all():
        found[warm] = np.maximum(duration[warm] - round(_median(duration[~warm])), 0)
    return found
