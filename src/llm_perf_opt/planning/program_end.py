"""How much of a long program has to be recorded: up to where every stage has been seen once it was warm.

A program that decodes for minutes does the same thing over and over. The measured run says how long each instance of
each range takes, so that it is known after which range the timeline has enough; there the program is ended. It is
recorded from its beginning and not in a window further on: whatever comes before has to run anyway, and ranges that
were opened before a recording begins are not in it. Pure: a measured timeline goes in, the range comes out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import define

from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.regions.attribution import Attribution, attribute
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.instances import Instances, find_instances
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT

# Ending early has to save so much, or the program runs to its end.
_LEAST_SAVED_S = 10.0
_LEAST_SAVED = 0.3  # of what it takes by itself
_SMALL = 0.02  # part of the time of a program: a stage of less is not waited for
# Of a stage: instances for this time, and no more than so many …
_ENOUGH_NS = 1_000_000_000
_MOST = 30
# … where more than one does not make the recording longer than by this, or this part of the program.
_LONGER_NS = 3_000_000_000
_LONGER = 0.1
_LONG_NS = 5_000_000_000  # an instance that takes longer is seen by the ranges in it …
_COVERED = 0.8  # … where these take this part of it


@define(frozen=True)
class EarlyEnd:
    """The range after which a program is ended."""

    domain: str
    name: str
    number: int  # among those of its name, from 1
    of: int  # how many there are
    saved_s: float
    not_reached: tuple[str, ...]  # keys of outermost regions that come later only

    @property
    def windows(self) -> CaptureWindows:
        return CaptureWindows({(self.domain, self.name): (self.number,)}, stop=True, switch=False)


def choose_end(measured: Timeline, program_s: float, instances: int | None = None) -> EarlyEnd | None:
    """Where to end the program; None: it runs to its end. `instances`: steady ones of each stage, as the user wants them."""
    ranges = measured.ranges
    if not len(ranges) or len(np.unique(ranges.process)) > 1:
        return None  # processes that wait for each other end together
    stages = _Stages(measured, instances)
    last = stages.last_needed()
    if last is None:
        return None
    end = int(ranges.end[last])
    saved_s = (int(ranges.end.max()) - end) / 1e9
    if saved_s < max(_LEAST_SAVED_S, _LEAST_SAVED * program_s):
        return None
    mine = np.flatnonzero((ranges.domain == ranges.domain[last]) & (ranges.name == ranges.name[last]))
    number = int((ranges.start[mine] <= ranges.start[last]).sum())
    return EarlyEnd(
        measured.domains[int(ranges.domain[last])],
        measured.strings[int(ranges.name[last])],
        number,
        len(mine),
        saved_s,
        tuple(stages.later_than(end)),
    )


class _Stages:
    """The regions of a measured run, and which of their instances have to be seen."""

    def __init__(self, measured: Timeline, instances: int | None) -> None:
        self.ranges, self.wanted = measured.ranges, instances
        self.attribution: Attribution = attribute(measured)
        self.found: Instances = find_instances(measured, self.attribution)
        order = np.argsort(self.ranges.start, kind="stable")
        of_region = self.attribution.range_region[order]
        self.members: dict[int, Int64s] = {
            region: order[part] for region, part in group_by(of_region) if region != ROOT
        }
        self.time = {region: int(self.found.duration[own].sum()) for region, own in self.members.items()}
        self.children: dict[int, list[int]] = {}
        for region in self.members:
            self.children.setdefault(self.attribution.table.parent[region], []).append(region)
        self.least = _SMALL * sum(self.time[region] for region in self.children.get(ROOT, ()))

    def last_needed(self) -> int | None:
        """The range that ends last of those that have to be seen."""
        needed = list(self._needed(ROOT))
        if not needed:
            return None
        end = self.ranges.end
        if self.wanted is not None:
            return int(max((own[min(self.wanted, len(own)) - 1] for own in needed), key=lambda one: end[one]))
        span = int(end.max() - self.ranges.start.min())
        limit = max(int(end[own[0]]) for own in needed) + max(_LONGER_NS, _LONGER * span)
        chosen = []
        for own in needed:
            median = max(float(np.median(self.found.duration[own])), 1.0)
            enough = own[: int(min(max(-(-_ENOUGH_NS // median), 1), _MOST))]
            chosen.append(int(enough[max(int((end[enough] <= limit).sum()), 1) - 1]))
        return max(chosen, key=lambda one: end[one])

    def _needed(self, around: int) -> Iterator[Int64s]:
        """Of each stage its steady instances, in order; a long one is seen by what is in it."""
        for region in self.children.get(around, ()):
            own = self.members[region]
            if self.time[region] < self.least:
                continue
            steady = own[~self.found.warmup[own]]
            steady = steady if len(steady) else own[-1:]
            inside = sum(self.time[child] for child in self.children.get(region, ()))
            long = float(np.median(self.found.duration[steady])) > _LONG_NS
            if long and inside >= _COVERED * self.time[region]:
                yield from self._needed(region)
            else:
                yield steady

    def later_than(self, end: int) -> Iterator[str]:
        """Keys of outermost regions that begin after the program was ended."""
        for region in self.children.get(ROOT, ()):
            if int(self.ranges.start[self.members[region][0]]) >= end:
                yield self.attribution.table.key(region)
