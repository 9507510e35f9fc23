"""Which regions matter most: one answer for the verdicts, the tables and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from llm_perf_opt.regions.model import NCUProfileRegion, RegionStats, ScopeTotals

K = TypeVar("K", int, str)  # what a region is known by


def gpu_time(values: RegionStats | ScopeTotals) -> int | None:
    """Time of kernels and of CUDA graphs recorded as one block; None where nothing was measured."""
    if values.gpu_time_ns is None:
        return None
    return values.gpu_time_ns + values.graph_time_ns


def weight(region: NCUProfileRegion) -> tuple[int, int]:
    """How much a region matters: the time it took on the host or kept the GPU busy, whichever is longer."""
    return max(region.wall_ns or 0, region.gpu_busy_ns or 0), gpu_time(region.inclusive) or 0


def heaviest(regions: list[NCUProfileRegion], count: int) -> list[NCUProfileRegion]:
    """The regions that matter most, each with the regions around it, in the order of the tree."""
    if len(regions) <= count:
        return regions
    known = {region.key: region.parent for region in regions}
    ordered = sorted(regions, key=weight, reverse=True)
    chosen = with_parents((r.key for r in ordered), lambda key: p if (p := known[key]) in known else None, count)
    return [region for region in regions if region.key in chosen]


def with_parents(ordered: Iterable[K], parent: Callable[[K], K | None], most: int) -> set[K]:
    """The first of some regions, each with all regions around it, until there would be too many."""
    chosen: set[K] = set()
    for region in ordered:
        line: list[K] = []
        at: K | None = region
        while at is not None and at not in chosen:
            line.append(at)
            at = parent(at)
        if len(chosen) + len(line) > most:
            break
        chosen.update(line)
    return chosen
