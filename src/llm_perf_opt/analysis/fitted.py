"""Counters of regions fitted to what the GPU was seen to move.

Counters of launches added up are an estimate of a region's bytes; samples of the whole GPU (`traffic`) are its
bytes. Where a region has such a total, that is its value. What is inside it and too short for a total of its own
shares what is left in proportion to its estimate, so that the parts still add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from attrs import Factory, define, evolve

from llm_perf_opt.analysis.sampled_traffic import Moved
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.regions.model import MetricValue
from llm_perf_opt.regions.rollup import RolledUp
from llm_perf_opt.regions.table import ROOT, RegionTable
from llm_perf_opt.regions.traffic import SOURCE

_LEAST_REST = 0.02  # of an estimate: of less, the difference of two totals says nothing
_MOST_FACTOR = 10.0
WHOLE_SOURCES = (SOURCE, "range replay")  # measured as a whole, copies included


@define
class Fitted:
    """One counter of the regions of a scope."""

    values: dict[int, MetricValue] = Factory(dict)  # inclusive
    own: dict[int, float] = Factory(dict)  # exclusive: what is in no region below
    estimated: dict[int, float] = Factory(dict)  # what a region with a total had before, copies included


def copied_bytes(rolled: RolledUp, counter: str) -> Int64s:
    """What copies and fills of each region add to a counter of the memory: kernels' counters have it not."""
    work = rolled.inclusive
    downloads = work.host_copies.bytes - work.uploads.bytes
    read = work.device_copies.bytes + downloads
    if "read" in counter:
        return read
    written = work.copies.bytes - downloads
    return written if "write" in counter else read + written


def fit(
    table: RegionTable,
    estimates: Mapping[int, MetricValue],
    own: Mapping[int, float],
    moved: Mapping[int, Moved],
    copied: Int64s,
) -> Fitted:
    """Totals where there are some, and estimates brought in line with them, so that parts add up to their wholes.

    By region; `own`: the estimate of what is in no region below; `copied`: of all regions.
    """
    fitted = Fitted()
    totals = {
        number: _measured(estimates[number], known)
        for number, known in moved.items()
        if number in estimates and estimates[number].source not in WHOLE_SOURCES and known.is_measured()
    }
    if not totals:
        return fitted
    order = table.in_tree_order()
    # Of each region, what the nearest regions with totals below it hold: totals, estimates and copies.
    below = np.zeros((len(table), 3))
    for number in reversed(order):
        parent, known = table.parent[number], totals.get(number)
        if parent != ROOT and known is None:
            below[parent] += below[number]
        elif parent != ROOT and known is not None:
            below[parent] += (known.value, estimates[number].value, copied[number])
    factor: dict[int, float] = {}  # for what is in a region, and in no region with a total below it
    for number in order:
        factor[number] = factor.get(table.parent[number], 1.0)
        estimate, total = estimates.get(number), totals.get(number)
        if total is not None and estimate is not None:
            fitted.values[number] = total
            total_below, estimated_below, copied_below = below[number].tolist()
            whole = estimate.value + float(copied[number])
            # The estimate, with copies, of what is in no such region.
            rest = estimate.value - estimated_below + float(copied[number]) - copied_below
            fitted.estimated[number] = whole
            left = max(total.value - total_below, 0.0)
            # Where little is left to be shared it is not blown up: it is the region's own then.
            most = _MOST_FACTOR if rest > _LEAST_REST * whole else 1.0
            factor[number] = min(left / rest, most) if rest > 0 else 1.0
    # Of the nearest regions below that have the counter: what they have, and what they were estimated at.
    inside, estimated = [0.0] * len(table), [0.0] * len(table)
    for number in reversed(order):
        estimate = estimates.get(number)
        value, before = inside[number], estimated[number]
        if estimate is not None:
            value, before = estimate.value, estimate.value
            if number in totals:
                value = totals[number].value
                fitted.own[number] = max(value - inside[number], 0.0)
            elif estimate.source not in WHOLE_SOURCES:
                value = inside[number] + max(before - estimated[number], 0.0) * factor[number]
                fitted.values[number] = scaled(estimate, value)
                fitted.own[number] = own.get(number, 0.0) * factor[number]
        if table.parent[number] != ROOT:
            inside[table.parent[number]] += value
            estimated[table.parent[number]] += before
    return fitted


def scaled(value: MetricValue, to: float) -> MetricValue:
    """The same with another value, which makes it an estimate; how good one, is not known of what was exact before."""
    if math.isclose(to, value.value, rel_tol=1e-9):
        return value
    spread = value.spread if value.source == "extrapolated" else None
    return evolve(value, value=to, source="extrapolated", spread=spread)


def _measured(estimate: MetricValue, known: Moved) -> MetricValue:
    return evolve(
        estimate,
        value=known.value,
        source=SOURCE,
        samples=known.samples,
        coverage=1.0,
        spread=known.uncertain / known.value,
    )
