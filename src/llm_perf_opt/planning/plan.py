"""The result of planning: which captures ncu makes, or why it makes none, and what to expect of them.

There is one type for every way in which captures come about: chosen from the timeline, or by the user.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.inject import CaptureWindows
from llm_perf_opt.metrics.groups import PassCount
from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd
from llm_perf_opt.planning.costs import Costs
from llm_perf_opt.regions.signatures import Signature


@define(frozen=True)
class PlannedCapture:
    """One run of the program under ncu. `None` is not known, never zero."""

    name: str  # of its report file, without the ending
    options: NcuOptions
    expressions: tuple[str, ...] = ()  # for --nvtx-include; none: everything
    expected: int | None = None  # results the timeline lets expect
    seconds: float | None = None  # what it will take
    windows: CaptureWindows | None = None  # the program switches ncu on in these only
    alternatives: tuple[PlannedCapture, ...] = ()  # what to do where the windows give nothing
    passes: PassCount | None = None  # of each launch
    why: str = ""  # where it looks, for people
    no_windows: str = ""  # why the program does not switch ncu on and off
    program_s: float | None = None  # what the program runs before the last window closes, and so before it is ended

    def argv(self, command: Sequence[str], ncu: str = "ncu", folder: str = "ncu") -> list[str]:
        """The command, as it would be run in the run directory."""
        out = f"{folder}/{self.name}"
        return build_ncu_cmd(out, list(command), ncu=ncu, options=self.options, nvtx_include=self.expressions)


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


@define(frozen=True)
class SampleTable:
    """What samples that were chosen from the timeline will tell of it."""

    level: str | None  # None: metrics chosen by hand
    asked_level: str | None
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


@define(frozen=True)
class CounterPlan:
    """All captures of a run, or why there are none."""

    captures: list[PlannedCapture] = Factory(list)
    skipped: str = ""  # the reason, where there is nothing to capture
    nothing_matched: bool = False  # the reason is a name that no kernel has
    table: SampleTable | None = None  # where the launches were chosen from the timeline
    diagnostics: list[Diagnosis] = Factory(list)

    @property
    def seconds(self) -> float:
        return sum(capture.seconds or 0.0 for capture in self.captures)

    @property
    def results(self) -> int:
        return sum(capture.expected or 0 for capture in self.captures)
