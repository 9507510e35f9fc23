"""A plan: which captures, what they will take, what they cost, and what they leave out."""

from __future__ import annotations

import os
from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.metrics import PassCount
from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd
from llm_perf_opt.planning.costs import Costs
from llm_perf_opt.planning.filters import LaunchFilter
from llm_perf_opt.regions.signatures import Signature


@define(frozen=True)
class Capture:
    """One run of the program under ncu."""

    name: str  # of its report file
    why: str
    filter: LaunchFilter
    metrics: tuple[str, ...]
    passes: PassCount
    launches: int  # results to expect
    seconds: float

    def options(self, base: NcuOptions | None = None) -> NcuOptions:
        return self.filter.options(self.metrics, base)

    def argv(
        self, command: Sequence[str], *, ncu: str | os.PathLike[str] = "ncu", out: str | os.PathLike[str] | None = None
    ) -> list[str]:
        return build_ncu_cmd(out or self.name, list(command), ncu=ncu, options=self.options())


@define(frozen=True)
class PlannedSignature:
    """One kernel on one launch configuration, and what the plan does with it."""

    signature: Signature
    launches: int
    time_ns: int
    share: float  # of the GPU time in the chosen regions
    variation: float  # of its durations: standard deviation over mean
    planned: int  # launches that will be profiled
    wanted: int  # launches that would make the error smallest for as many results (Neyman's allocation)
    turns: tuple[str, ...] = ()  # instances of the repeated range the samples come from, as in "step 1 of 8"
    reason: str = ""  # why none of its launches is profiled


@define
class Plan:
    """What will be captured, at which price."""

    level: str | None  # None: metrics chosen by hand
    asked_level: str | None
    captures: list[Capture]
    signatures: list[PlannedSignature]  # most time first
    launches: int  # in the chosen regions
    time_ns: int
    program_s: float
    budget_s: float | None
    costs: Costs
    coverage: float  # share of the GPU time whose signatures will be sampled
    error: float | None  # expected relative error of totals, from the timeline's durations; None without samples
    data_types: tuple[str, ...] = ()
    least_budget_s: float | None = None  # where nothing fits: what would
    assumptions: list[str] = Factory(list)  # what the prediction takes for granted of ncu
    diagnostics: list[Diagnosis] = Factory(list)

    @property
    def seconds(self) -> float:
        return sum(capture.seconds for capture in self.captures)

    @property
    def results(self) -> int:
        return sum(capture.launches for capture in self.captures)

    @property
    def unsampled(self) -> list[PlannedSignature]:
        return [s for s in self.signatures if not s.planned]
