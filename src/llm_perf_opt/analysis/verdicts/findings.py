"""What the rules of fixes look at, and what they give: see `opportunities.py`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.analysis.verdicts.roofs import Roofed
from llm_perf_opt.analysis.verdicts.rules import Facts
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import FamilyTime, NCUProfileRegion, SpeedOfLight, TimeSplit, Verdict


@define(frozen=True, eq=False)
class Evaluated:
    """A region, and all that was worked out about its steady instances: what rules look at."""

    region: NCUProfileRegion
    split: TimeSplit
    light: SpeedOfLight
    families: Sequence[FamilyTime]
    roofed: Roofed
    verdict: Verdict
    facts: Facts  # numbers and words, which texts of fixes may use too

    @property
    def from_graphs(self) -> bool:
        """Do most kernels come from CUDA graphs already?"""
        return self.region.graph_kernels >= 0.5 * max(self.region.inclusive.kernel_count, 1)


@define(frozen=True)
class Found:
    """What a rule found: the cause, what it takes now, and what of that could be won back."""

    rule: str
    kind: str
    time: Quantity
    recoverable: Quantity
    family: str = ""
    words: dict[str, str] = Factory(dict)  # for its texts, beside `time`, `recoverable`, `now` and the region's facts
    kernels: Sequence[str] = ()
