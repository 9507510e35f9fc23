"""The instances of each region for the script of `report.html`: how long they take, and each of them as a bar."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.detail import TREND_LEVELS, InstanceStrip, TimelineDetail
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.timing import Timing

_DIGITS = np.array(list(TREND_LEVELS))
_MANY = 4
_STEPS = len(_DIGITS) ** 2 - 1  # two digits a bar


def timing_columns(regions: list[NCUProfileRegion]) -> list[list[Any] | None]:
    """What `timing` says of each region, in the order in which the script takes it apart."""
    return [_timing(region.timing) if region.timing is not None else None for region in regions]


def _timing(timing: Timing) -> list[Any]:
    steady, warmup = timing.steady, timing.warmup
    measured = [timing.level_change, timing.profiled_median_ns, timing.disturbance]
    told: list[Any] = [int(timing.source == "undisturbed"), timing.instances]
    if timing.instances > 1 or warmup.total_ns or any(value is not None for value in measured):
        quantiles = _quantiles(steady.instances, steady.p10_ns, steady.median_ns, steady.p90_ns)
        told += [steady.instances, *quantiles, warmup.instances, warmup.total_ns, warmup.why, *measured]
    return _short(told)


def _quantiles(steady: int, low: int | None, median: int | None, high: int | None) -> list[int | None]:
    """The median, and where most of them lie: of a few instances that says nothing."""
    return [median, low, high] if steady >= _MANY else [median, None, None]


def _short(values: list[Any]) -> list[Any]:
    """Without the empty ones at the end: there are thousands of such lists."""
    while values and not values[-1]:
        values = values[:-1]
    return values


def strip_columns(detail: TimelineDetail, regions: list[NCUProfileRegion]) -> list[list[Any] | None]:
    """The strip of each region on the page, None where it ran once."""
    number = {detail.table.key(n): n for n in detail.strips}
    return [_packed(detail.strips[number[r.key]], r.timing) if r.key in number else None for r in regions]


def _packed(strip: InstanceStrip, timing: Timing | None) -> list[Any]:
    """Durations as two characters each, on a logarithmic scale from the shortest to the longest."""
    single = strip.alone == strip.instances
    values = [strip.median] if single else [strip.shortest, strip.median, strip.longest]
    low, high = max(int(strip.shortest.min()), 1), max(int(strip.longest.max()), 1)
    bars = _digits(np.stack(values, axis=1).reshape(-1), low, high)
    warm = np.flatnonzero(strip.warmup).tolist()
    own = _quantiles(strip.instances - len(warm), *(strip.steady or (None, None, None)))
    # The script takes the quantiles of `timing`, unless that is of other instances: undisturbed, or of more recordings.
    same = timing is not None and timing.source == "timeline" and timing.instances == strip.instances
    return _short([strip.instances, strip.alone, low, high, bars, warm, None if same else own])


def _digits(values: Int64s, low: int, high: int) -> str:
    scale = _STEPS / np.log(high / low) if high > low else 0.0
    level = np.rint(np.log(np.maximum(values, low) / low) * scale).astype(np.int64)
    pairs = np.stack([level // len(_DIGITS), level % len(_DIGITS)], axis=1).reshape(-1)
    return "".join(_DIGITS[pairs].tolist())
