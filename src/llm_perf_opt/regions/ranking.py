"""Which regions matter most: one answer for the verdicts, the tables and the page."""

from __future__ import annotations

from llm_perf_opt.regions.model import NCUProfileRegion, RegionStats, ScopeTotals


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
    by_key = {region.key: region for region in regions}
    chosen: set[str] = set()
    for region in sorted(regions, key=weight, reverse=True):
        line, at = [], region
        while at.key not in chosen:
            line.append(at.key)
            if at.parent is None or at.parent not in by_key:
                break
            at = by_key[at.parent]
        if len(chosen) + len(line) > count:
            break
        chosen.update(line)
    return [region for region in regions if region.key in chosen]
