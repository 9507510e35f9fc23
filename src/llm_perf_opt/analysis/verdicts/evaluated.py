"""A region as the fix rules see it (`analysis/rules`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import Factory, define

from llm_perf_opt.analysis.verdicts.communication_costs import Communication
from llm_perf_opt.analysis.verdicts.free import Free
from llm_perf_opt.analysis.verdicts.kernel_limits import KernelLimits
from llm_perf_opt.analysis.verdicts.launched import Launched
from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.rules import Facts, verdict_rules
from llm_perf_opt.metrics.hardware.limits import GpuHardware
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.model import FamilyTime, NCUProfileRegion, SpeedOfLight, TimeSplit, Verdict
from llm_perf_opt.regions.timing import Steps, Timing


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
    launched: Launched
    free: Free  # what no rule has spoken for yet
    gpu: GpuHardware | None = None  # None where there are several models, or none
    torch: bool = True  # is it, or may it be, a program of PyTorch?
    steps: Steps | None = None  # of a server: what its instances did
    phases: Mapping[str, Timing] = Factory(dict)  # of a server: its kinds of steps by name; empty for other programs
    copied: Mapping[Place, float] = Factory(dict)  # ns of copies between host and device, by the line that makes them

    @property
    def roofed(self) -> Roofed:
        return self.limits.roofed


def could_be_a_graph(region: NCUProfileRegion, split: TimeSplit) -> bool:
    """Would a CUDA graph save launches? Of a handful there is nothing to save."""
    return not from_graphs(region) and split.launches >= verdict_rules().thresholds["fewest_launches_of_a_graph"]


def from_graphs(region: NCUProfileRegion) -> bool:
    """Do most kernels come from CUDA graphs already?"""
    return region.graph_kernels >= 0.5 * max(region.inclusive.kernel_count, 1)
