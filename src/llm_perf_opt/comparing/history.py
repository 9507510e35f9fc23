"""The regions of many runs over time, and where they changed for good."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.comparing.exact import compare_counts, describe_exact
from llm_perf_opt.comparing.side import RegionSide, Side, sources_of

_LEAST_CHANGE = math.log1p(0.02)
_LEAST_NOISE = 0.003  # of a time, between runs
_PENALTY = 8.0  # in standard deviations between runs: what values have to gain by a level of their own
_MOST_RUNS = 200  # the last ones, of which changes are looked for
_MOST_CHANGES = 12  # of a region


@define(frozen=True)
class Point:
    """A region in one run."""

    run: str
    at: str
    time_ns: float


@define(frozen=True)
class Change:
    """From this run on, a region takes another time, or does something else."""

    run: str
    before: float | None  # medians of the runs before and from there on; None: only counts changed
    after: float | None
    counts: list[str] = Factory(list)

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after / self.before - 1


@define(frozen=True)
class RegionHistory:
    """One region of one program, in the order of time."""

    key: str
    source: str
    points: list[Point]
    changes: list[Change]
    weight_ns: float

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "source": self.source,
            "points": [{"run": p.run, "at": p.at, "time_ns": round(p.time_ns, 1)} for p in self.points],
            "changes": [
                {"run": c.run, "before_ns": c.before, "after_ns": c.after, "change": c.change, "counts": c.counts}
                for c in self.changes
            ],
        }


@define(frozen=True)
class ProgramHistory:
    """Runs of one command on one kind of GPU: others cannot be compared with them."""

    command: tuple[str, ...]
    gpus: tuple[str, ...]
    runs: list[str]
    regions: list[RegionHistory]

    def as_json(self) -> dict[str, Any]:
        regions = [region.as_json() for region in self.regions]
        return {"command": list(self.command), "gpus": list(self.gpus), "runs": self.runs, "regions": regions}


def histories(sides: Sequence[Side]) -> list[ProgramHistory]:
    """`sides`: the runs, oldest first. Programs with most runs first."""
    programs: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Side]] = {}
    for side in sides:
        programs.setdefault((side.command, side.gpus), []).append(side)
    found = []
    for (command, gpus), runs in programs.items():
        keys = dict.fromkeys(key for side in runs for key in side.regions)
        regions = [history for key in keys if (history := _region(key, runs)) is not None]
        regions.sort(key=lambda region: -region.weight_ns)
        found.append(ProgramHistory(command, gpus, [side.label for side in runs], regions))
    return sorted(found, key=lambda program: -len(program.runs))


def _region(key: str, sides: Sequence[Side]) -> RegionHistory | None:
    """Of the kind of times that most runs have."""
    there = [(side, side.regions[key]) for side in sides if key in side.regions]
    source = max(
        sources_of([region for _, region in there]),
        key=lambda source: sum(source in region.times for _, region in there),
    )
    known = [(side, region) for side, region in there if source in region.times]
    if not known:
        return None
    points = [Point(side.label, side.made_at, region.times[source].typical) for side, region in known]
    weight = max(region.weight_ns for _, region in known)
    return RegionHistory(key, source, points, _changes(points, [region for _, region in known]), weight)


def _changes(points: Sequence[Point], regions: Sequence[RegionSide]) -> list[Change]:
    counted = {}
    for number, (old, now) in enumerate(itertools.pairwise(regions), start=1):
        changed = [describe_exact(change) for change in compare_counts(old, now) if change.changed]
        if changed:
            counted[number] = changed
    logs = np.log([point.time_ns for point in points])
    found = change_points(logs)
    edges = [0, *found, len(points)]
    levels = [math.exp(float(np.median(logs[a:b]))) for a, b in itertools.pairwise(edges)]
    changes = {
        at: Change(points[at].run, before, after, counted.get(at, []))
        for at, before, after in zip(found, levels[:-1], levels[1:], strict=True)
    }
    for at, texts in counted.items():
        changes.setdefault(at, Change(points[at].run, None, None, texts))
    return [changes[at] for at in sorted(changes)][-_MOST_CHANGES:]


def change_points(logs: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    """Where a series steps to another level and stays there: numbers of the first values of each new level.

    The levels for which values lie nearest to their medians, each level costing `_PENALTY`: found for the whole series
    at once, since a level in the middle of two alike shows in no single cut. One slow run makes no level, but at the
    end, where it has to stand out all the more.
    """
    first = max(len(logs) - _MOST_RUNS, 0)
    values = logs[first:] / _noise(logs)
    count = len(values)
    best, cut = [0.0] + [math.inf] * count, [0] * (count + 1)
    for end in range(1, count + 1):
        for start in range(end):
            alone = end - start == 1 and count > 1
            if alone and not (end == count and start):
                continue
            cost = best[start] + _unrest(values[start:end]) + _PENALTY * (2.0 if alone else 1.0)
            if cost < best[end]:
                best[end], cut[end] = cost, start
    edges, at = [], count
    while at > 0:
        edges.append(at)
        at = cut[at]
    edges = [0, *reversed(edges)]
    return [first + b for a, b, c in zip(edges, edges[1:], edges[2:], strict=False) if _steps(logs[first:], a, b, c)]


def _steps(logs: np.ndarray[Any, np.dtype[np.float64]], start: int, middle: int, end: int) -> bool:
    return abs(float(np.median(logs[middle:end]) - np.median(logs[start:middle]))) > _LEAST_CHANGE


def _unrest(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """How far some values are from their median, added up."""
    return float(np.abs(values - np.median(values)).sum())


def _noise(logs: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Between runs, from what neighbours differ by: a step is one difference of many."""
    if len(logs) < 3:
        return 4 * _LEAST_NOISE
    steps = np.abs(np.diff(logs))
    return max(1.4826 * float(np.median(steps)) / math.sqrt(2), _LEAST_NOISE)
