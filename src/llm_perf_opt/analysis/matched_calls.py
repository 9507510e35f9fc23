"""Which collectives of several ranks are the same ones, and how far their clocks are apart.

Ranks of a group end a collective at about the same time. So the times between its ends are the same on all of them,
by whatever clock: where one rank was recorded later, or lacks some steps, these say which call is which. Groups need
not hold all ranks: a clock is aligned with any that shares a group with it, and with the others by way of that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import define

from llm_perf_opt.analysis.clocks import Clocks, clocks_of
from llm_perf_opt.regions.columns import Int64s

_FEWEST = 2  # collectives in common from which clocks can be aligned
# Ends of one collective lie together: within this, or within this part of its longest duration.
_TOGETHER_NS, _TOGETHER_SHARE = 50_000, 0.1
_LAGS, _SAMPLES = 2_000, 256  # calls by which a recording may begin later; intervals that are compared for each
_TRIED, _MOST_OF = 5, 0.4  # of those, how many are tried; how much of a rank's calls have to be on the other one
_CLEARLY, _LEAST_NS = 2.0, 500  # so many times better, and more than this: another order of calls is the right one
_ALIKE = 3.0  # within this, nobody can say which order is
_Key = tuple[str, str]  # group and kernel


@define(eq=False)
class Calls:
    """The collectives of one rank that may be compared, in order of start."""

    start: Int64s
    end: Int64s
    keys: Sequence[_Key | None]  # of each, its group ("": all ranks) and kernel; None: it is not to be compared
    clock: object  # the same one for all that are in one recording


@define(eq=False)
class MatchedCalls:
    """Those that all ranks of their group have."""

    clocks: Clocks
    calls: list[Int64s]  # of each rank, which of its calls
    instance: list[Int64s]  # of each of those, the number of the collective
    by_order: bool  # nothing but their order says that they are the same ones: steps take equally long, or are few


@define(eq=False)
class _Fit:
    clocks: Clocks  # of two
    by_order: bool


def match_calls(ranks: Sequence[Calls]) -> MatchedCalls | list[int]:
    """Or else the ranks whose clocks cannot be aligned with that of the first; empty: there is nothing in common."""
    groups = _groups([_by_key(rank) for rank in ranks])
    linear, by_order = _aligned(ranks, groups)
    if lost := [n for n, rank in enumerate(ranks) if id(rank.clock) not in linear]:
        return lost
    middle = int(np.median(ranks[0].end)) if len(ranks[0].end) else 0
    found = MatchedCalls(_together([linear[id(rank.clock)] for rank in ranks], middle), [], [], by_order)
    ends = [found.clocks.to_first(n, rank.end) for n, rank in enumerate(ranks)]
    calls: list[list[Int64s]] = [[] for _ in ranks]
    numbers: list[list[Int64s]] = [[] for _ in ranks]
    count = 0
    for members in groups.values():
        for kernel in set.union(*(set(of) for of in members.values())):
            same = _on_all({n: of[kernel] for n, of in members.items() if kernel in of}, ends, ranks)
            size = len(next(iter(same.values()), ()))
            for n, which in same.items():
                calls[n].append(which)
                numbers[n].append(np.arange(count, count + size))
            count += size
    if count < _FEWEST:
        return []
    for own, number in zip(calls, numbers, strict=True):
        which = np.concatenate([np.zeros(0, dtype=np.int64), *own])
        order = np.argsort(which, kind="stable")
        found.calls.append(which[order])
        found.instance.append(np.concatenate([np.zeros(0, dtype=np.int64), *number])[order])
    return found


_Members = dict[int, dict[str, Int64s]]  # of each rank of a group, its calls by kernel


def _by_key(rank: Calls) -> dict[_Key, Int64s]:
    found: dict[_Key, list[int]] = {}
    for at, key in enumerate(rank.keys):
        if key is not None:
            found.setdefault(key, []).append(at)
    return {key: np.array(which, dtype=np.int64) for key, which in found.items()}


def _groups(ranks: Sequence[Mapping[_Key, Int64s]]) -> dict[str, _Members]:
    """The largest first. Of calls whose group nobody knows, those that all ranks have."""
    found: dict[str, _Members] = {}
    for n, keys in enumerate(ranks):
        for (group, kernel), which in keys.items():
            if group or all((group, kernel) in other for other in ranks):
                found.setdefault(group, {}).setdefault(n, {})[kernel] = which
    several = {group: members for group, members in found.items() if len(members) > 1}
    return dict(sorted(several.items(), key=lambda item: -len(item[1])))


@define(frozen=True)
class _Linear:
    """A clock against that of the first rank."""

    offset: int = 0  # at `middle` by the clock of the first
    drift: float = 0.0
    middle: int = 0

    def at(self, moment: int) -> int:
        return self.offset + round(self.drift * (moment - self.middle))


def _together(of_ranks: Sequence[_Linear], middle: int) -> Clocks:
    return Clocks(np.array([one.at(middle) for one in of_ranks]), np.array([one.drift for one in of_ranks]), middle)


def _aligned(ranks: Sequence[Calls], groups: Mapping[str, _Members]) -> tuple[dict[int, _Linear], bool]:
    """Every clock that shares groups with that of the first, be it by way of others."""
    known, by_order, missed = {id(ranks[0].clock): _Linear()}, False, True
    while missed:
        missed = False
        for members in groups.values():
            base = next((n for n in members if id(ranks[n].clock) in known), None)
            for n in members if base is not None else ():
                assert base is not None
                if (
                    id(ranks[n].clock) in known
                    or (fit := _fit(members[base], members[n], ranks[base], ranks[n])) is None
                ):
                    continue
                known[id(ranks[n].clock)] = _chained(known[id(ranks[base].clock)], fit.clocks)
                by_order, missed = by_order or fit.by_order, True
    return known, by_order


def _chained(known: _Linear, next_one: Clocks) -> _Linear:
    """A clock against the first, by way of one that is known."""
    middle = int(_together([known], known.middle).to_first(0, np.array([next_one.middle]))[0])
    drift = (1 + known.drift) * (1 + float(next_one.drift[1])) - 1
    return _Linear(known.at(middle) + int(next_one.offset[1]), drift, middle)


def _fit(one: Mapping[str, Int64s], other: Mapping[str, Int64s], a: Calls, b: Calls) -> _Fit | None:
    """Two clocks, by a kernel that both have many calls of; then by all calls that end together by these clocks."""
    shared = sorted((kernel for kernel in one if kernel in other), key=lambda k: -min(len(one[k]), len(other[k])))
    kernels = [kernel for kernel in shared if min(len(one[kernel]), len(other[kernel])) >= _FEWEST]
    found = next((fit for k in kernels if (fit := _by_times(one[k], other[k], a, b)) is not None), None)
    if found is None and shared and all(len(one[kernel]) == len(other[kernel]) for kernel in shared):
        left, right = (np.concatenate([own[k] for k in shared]) for own in (one, other))
        found = _Fit(clocks_of(np.stack([a.end[left], b.end[right]])), by_order=True) if len(left) >= _FEWEST else None
    if found is None:
        return None
    clocks = found.clocks
    for _ in range(2):
        pairs = [_paired(one[k], other[k], a.end, clocks.to_first(1, b.end), a, b) for k in shared]
        left, right = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        if len(left) < _FEWEST:
            return None
        clocks = clocks_of(np.stack([a.end[left], b.end[right]]))
    return _Fit(clocks, found.by_order)


def _by_times(one: Int64s, other: Int64s, a: Calls, b: Calls) -> _Fit | None:
    """The clocks by which the calls of a kernel end together: of those by which one rank's are some calls behind.

    If as many are on both, or the end of one is missing, they begin with the same one, unless others are clearly better.
    """
    fits: list[tuple[float, Clocks]] = []
    for lag in _lags(a.end[one], b.end[other]):
        early, late = max(0, -lag), min(len(one), len(other) - lag)
        left, right = one[early:late], other[early + lag : late + lag]
        for _ in range(2):
            clocks = clocks_of(np.stack([a.end[left], b.end[right]]))
            left, right = _paired(one, other, a.end, clocks.to_first(1, b.end), a, b)
            if len(left) < max(_FEWEST, _MOST_OF * min(len(one), len(other))):
                break
        else:
            rest = a.end[left] - clocks.to_first(1, b.end[right])
            fits.append((float(np.median(np.abs(rest - np.median(rest)))), clocks))
    if not fits:
        return None
    best = min(spread for spread, _ in fits)
    found = next(clocks for spread, clocks in fits if spread <= _CLEARLY * best + _LEAST_NS)
    apart = [
        int(clocks.at(a.end[one[:1]])[1, 0]) for spread, clocks in [(best, found), *fits] if spread <= _ALIKE * best
    ]
    return _Fit(found, len(one) <= _FEWEST or max(apart) - min(apart) > _TOGETHER_NS)


def _lags(first: Int64s, second: Int64s) -> list[int]:
    """How many calls of the second rank may come before the first one of the first: the usual ones, and those by which times between ends are most alike."""
    a, b = np.diff(first), np.diff(second)
    half = max(min(len(a), len(b)) // 2, 1)
    lags = np.arange(-min(len(a) - half, _LAGS), min(len(b) - half, _LAGS) + 1)
    usual = [0, len(second) - len(first)]
    early, late = np.maximum(0, -lags), np.minimum(len(a), len(b) - lags)
    at = early[:, None] + (late - early)[:, None] * np.arange(_SAMPLES) // _SAMPLES  # of a; one row a lag
    differ = np.median(np.abs(b[at + lags[:, None]] - a[at]), axis=1)  # half of them by less
    return list(dict.fromkeys([*usual, *lags[np.argsort(differ, kind="stable")[:_TRIED]].tolist()]))


def _on_all(which: dict[int, Int64s], ends: Sequence[Int64s], ranks: Sequence[Calls]) -> dict[int, Int64s]:
    """Of the calls of a kernel in a group, those that end together on all of its ranks; none where only one has any."""
    if len(which) < 2:
        return {}
    first, *others = which
    found = {first: which[first]}
    for n in others:
        left, right = _paired(found[first], which[n], ends[first], ends[n], ranks[first], ranks[n])
        stays = np.isin(found[first], left)
        found = {rank: own[stays] for rank, own in found.items()}
        found[n] = right
    return found


def _paired(
    one: Int64s, other: Int64s, one_ends: Int64s, other_ends: Int64s, a: Calls, b: Calls
) -> tuple[Int64s, Int64s]:
    """Calls that are each other's nearest by their ends, and end together."""
    if not len(one) or not len(other):
        return one[:0], other[:0]
    there, back = _nearest(one_ends[one], other_ends[other]), _nearest(other_ends[other], one_ends[one])
    mutual = np.flatnonzero(back[there] == np.arange(len(one)))
    left, right = one[mutual], other[there[mutual]]
    longest = np.maximum(a.end[left] - a.start[left], b.end[right] - b.start[right])
    together = np.abs(one_ends[left] - other_ends[right]) <= np.maximum(_TOGETHER_NS, _TOGETHER_SHARE * longest)
    return left[together], right[together]


def _nearest(of: Int64s, among: Int64s) -> Int64s:
    """For each, the index of the nearest; both need not be sorted."""
    order = np.argsort(among, kind="stable")
    after = np.clip(np.searchsorted(among[order], of), 1, max(len(among) - 1, 1))
    before = order[after - 1]
    after = order[np.minimum(after, len(among) - 1)]
    found: Int64s = np.where(np.abs(among[after] - of) < np.abs(of - among[before]), after, before)
    return found
