"""Which regions make up the run: the ones a reader asks about first, none inside another, none counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.regions.operator_names import is_operator
from llm_perf_opt.regions.whole_recording import COVERED, MOST_STAGES

_MUCH_LONGER = 1.5  # than what was recorded of it: the recording ended inside
# Parts that take longer than their whole run into each other: the work of one and the launches of the next.
_APART = 1.1
_FEW = 8  # a single outermost region with no more regions in it than this is a wrapper: its parts are the stages


def inside(
    regions: Sequence[NCUProfileRegion], wanted: Iterable[NCUProfileRegion]
) -> dict[str, list[NCUProfileRegion]]:
    """For each region, by key, those of the wanted that are below it."""
    by_key = {region.key: region for region in regions}
    below: dict[str, list[NCUProfileRegion]] = {}
    for region in wanted:
        parent = region.parent
        while parent is not None and parent in by_key:
            below.setdefault(parent, []).append(region)
            parent = by_key[parent].parent
    return below


def stages(regions: Sequence[NCUProfileRegion]) -> list[NCUProfileRegion]:
    """Outermost regions of one domain and kind: the one that holds most GPU time, of equal ones the one with fewer.

    Where no region has GPU work (a program timed by itself on a CPU), the one that takes longest. Those without GPU work are left out where others have some; of very many the longest are kept. Where ranges hold
    too little of a recording, it is the stage as a whole (`whole_recording`).
    """
    keys = {region.key for region in regions}
    groups: dict[tuple[str, str], list[NCUProfileRegion]] = {}
    for region in regions:
        if region.parent not in keys and not _is_operator(region):
            groups.setdefault((region.domain, region.range_kind), []).append(region)
    if not groups:
        return []

    def busy(region: NCUProfileRegion) -> int:
        return max(region.gpu_busy_ns or 0, region.inclusive.gpu_time_ns or 0)

    time = busy if any(busy(region) for group in groups.values() for region in group) else _time

    def weight(group: Sequence[NCUProfileRegion]) -> tuple[float, int]:
        # Rounded: two domains around the same kernels differ by a hair.
        return float(f"{sum(map(time, group)):.2g}"), -len(group)

    def kernels(group: Sequence[NCUProfileRegion]) -> int:
        return sum(r.inclusive.kernel_count for r in group)

    whole = groups.get(("", "recording"), [])
    if whole and all(kernels(group) <= kernels(whole) for group in groups.values()):
        return whole
    chosen = _working(max(groups.values(), key=weight))
    if len(chosen) == 1:
        parts = [r for r in regions if r.parent == chosen[0].key]
        working = _working(parts)
        if (
            len(working) >= 2
            and not any(map(_is_operator, working))
            and len(parts) <= _FEW
            and COVERED * _time(chosen[0]) <= sum(map(_time, working)) <= _APART * _time(chosen[0])
        ):
            return working
    longest = sorted(chosen, key=_time, reverse=True)
    kept = {id(region) for region in longest[:MOST_STAGES]}
    return [part for region in chosen if id(region) in kept for part in _seen_in(region, regions)]


def _seen_in(region: NCUProfileRegion, regions: Sequence[NCUProfileRegion]) -> list[NCUProfileRegion]:
    """A range that the recording ended in is seen in what repeats inside it, where that is most of it."""
    timing = region.timing
    if timing is None or timing.source != "undisturbed" or timing.instances != 1 or region.instances != 1:
        return [region]
    if timing.steady.total_ns + timing.warmup.total_ns <= _MUCH_LONGER * _time(region):
        return [region]
    parts = _working([r for r in regions if r.parent == region.key and (r.instances or 0) > 1])
    return parts if parts and sum(map(_time, parts)) >= COVERED * _time(region) else [region]


def _is_operator(region: NCUProfileRegion) -> bool:
    return region.range_kind == "operator" or is_operator(region.name)


def _time(region: NCUProfileRegion) -> int:
    return max(region.wall_ns or 0, region.gpu_busy_ns or 0, region.inclusive.gpu_time_ns or 0)


def _working(regions: list[NCUProfileRegion]) -> list[NCUProfileRegion]:
    busy = [r for r in regions if r.inclusive.kernel_count or r.inclusive.memory.count or r.inclusive.graph_launches]
    return busy or regions
