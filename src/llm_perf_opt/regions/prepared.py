"""Recordings as regions are made of them: operators of operators left out, numbered names pooled, and a stage for
what has no ranges.

Whoever looks for the regions of a recording (report, plan, Python API) prepares it here, so that all find the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from llm_perf_opt.regions.attribution import Attribution, Mode, attribute
from llm_perf_opt.regions.columns import Action, Recording, Timeline
from llm_perf_opt.regions.operators import outer_names, without_inner_operators
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.regions.pooled_names import Pools, find_pools
from llm_perf_opt.regions.whole_recording import covered, with_whole_recording


def prepare(recordings: Sequence[Recording], chosen: RegionFilter) -> list[Recording]:
    """Recordings of one program. `chosen`: the patterns of the user; a range that they name is no other's."""
    outer = [_outer(recording, chosen) for recording in recordings]
    pools = find_pools([r for r in outer if isinstance(r, Timeline)] or outer, chosen)
    return [_named(recording, pools) for recording in outer]


def prepare_timeline(timeline: Timeline, chosen: RegionFilter) -> Timeline:
    """A recording of a program by itself."""
    outer = without_inner_operators(timeline, chosen.asks_for)
    return with_whole_recording(find_pools([outer], chosen).applied(outer))


def find_regions(timeline: Timeline, mode: Mode) -> tuple[Timeline, Attribution]:
    """The regions of a prepared timeline, with the whole recording where those hold too little of it.

    Not where somebody asks how nsys or ncu attribute: that is to be compared with them.
    """
    found = attribute(timeline, mode)
    return covered(timeline, found) if mode == "auto" else (timeline, found)


def _named(recording: Recording, pools: Pools) -> Recording:
    named = pools.applied(recording)
    return with_whole_recording(named) if isinstance(named, Timeline) else named


def _outer(recording: Recording, chosen: RegionFilter) -> Recording:
    if isinstance(recording, Timeline):
        return without_inner_operators(recording, chosen.asks_for)

    def outer(action: Action) -> Action:
        stacks = {domain: outer_names(names, chosen.asks_for) for domain, names in action.push_pop.items()}
        return action if stacks == action.push_pop else evolve(action, push_pop=stacks)

    return evolve(recording, actions=[outer(action) for action in recording.actions])
