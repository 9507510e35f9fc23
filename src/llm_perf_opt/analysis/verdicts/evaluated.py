"""A region as the rules of fixes see it (`opportunities.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from llm_perf_opt.analysis.verdicts.communication_costs import Communication
from llm_perf_opt.analysis.verdicts.kernel_limits import KernelLimits
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.rules import Facts
from llm_perf_opt.regions.idle import IdleTime
from llm_perf_opt.regions.model import FamilyTime, NCUProfileRegion, SpeedOfLight, TimeSplit, Verdict


@define(frozen=True, eq=False)
class Evaluated:
    """A region, and all that was worked out about its steady instances: what rules look at."""

    region: NCUProfileRegion
    split: TimeSplit
    light: SpeedOfLight
    families: Sequence[FamilyTime]
    limits: KernelLimits
    communication: Communication
    verdict: Verdict
    facts: Facts  # numbers and words, which texts of fixes may use too
    graphable: bool = True  # a CUDA graph would save launches
    idle: IdleTime | None = None  # why the GPU waits, where a timeline tells

    @property
    def roofed(self) -> Roofed:
        return self.limits.roofed


def from_graphs(region: NCUProfileRegion) -> bool:
    """Do most kernels come from CUDA graphs already?"""
    return region.graph_kernels >= 0.5 * max(region.inclusive.kernel_count, 1)
