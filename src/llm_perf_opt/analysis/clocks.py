"""Clocks of several machines against each other: how far each is off, and how much faster it goes.

Two clocks differ by a constant, and on two machines they also run apart, by some millionths: a millisecond in a
quarter of an hour. Both are fitted to moments that were the same everywhere. Medians are taken throughout, for some
of those moments were not.
"""

from __future__ import annotations

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import Int64s

Floats = np.typing.NDArray[np.float64]
_FEWEST = 8  # moments from which a drift can be told
_MOST = 400  # that are looked at for it
_BETTER, _LEAST_NS = 0.7, 1_000  # a drift has to explain so much of what is left over
_FASTEST = 1e-3  # no clock of a computer is further off than that


@define(eq=False)
class Clocks:
    """Of each rank against the first."""

    offset: Int64s  # halfway through
    drift: Floats  # ns a ns
    middle: int  # by the clock of the first

    def at(self, moments: Int64s) -> Int64s:
        """How far off each clock is, at some moments by the clock of the first; one row a rank."""
        later = np.round(self.drift[:, None] * (moments - self.middle)[None, :]).astype(np.int64)
        found: Int64s = self.offset[:, None] + later
        return found

    def to_first(self, rank: int, moments: Int64s) -> Int64s:
        """What the clock of the first said at moments of the clock of another."""
        early, drift = moments - self.offset[rank], float(self.drift[rank])
        found: Int64s = early - np.round((early - self.middle) * (drift / (1 + drift))).astype(np.int64)
        return found


def clocks_of(moments: Int64s) -> Clocks:
    """From moments that were the same for all: one row a rank, each by its own clock."""
    apart = moments - moments[0]
    middle = int(np.median(moments[0]))
    offset, drift = np.median(apart, axis=1), np.zeros(len(moments))
    when = (moments[0] - middle).astype(np.float64)
    for rank in range(1, len(moments)):
        rest = apart[rank] - offset[rank]
        slope = _slope(when, rest)
        fitted = float(np.median(rest - slope * when))
        before, after = _spread(rest), _spread(rest - slope * when - fitted)
        if slope and after < _BETTER * before and before - after > _LEAST_NS:
            offset[rank], drift[rank] = offset[rank] + fitted, slope
    return Clocks(np.round(offset).astype(np.int64), drift, middle)


def _spread(rest: Floats) -> float:
    """Half of all lie within this of each other's middle: moments that were not the same do not count."""
    return float(np.median(np.abs(rest - np.median(rest))))


def _slope(when: Floats, rest: Floats) -> float:
    """The median of the slopes between moments that are far apart (Theil and Sen, by halves)."""
    if len(when) < _FEWEST:
        return 0.0
    order = np.argsort(when, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), _MOST)).astype(np.int64))]
    half = len(chosen) // 2
    first, last = chosen[:half], chosen[-half:]
    time = when[last] - when[first]
    if not (time > 0).all():
        return 0.0
    slope = float(np.median((rest[last] - rest[first]) / time))
    return slope if abs(slope) <= _FASTEST else 0.0
