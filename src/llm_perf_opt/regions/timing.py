"""How long the instances of a region take: part of the finished result (`model.py`)."""

from __future__ import annotations

from attrs import define


@define(frozen=True)
class WarmupTime:
    """What a region took before the program was warm: its first instances, and those of regions inside it."""

    instances: int
    total_ns: int  # of those, and what warm-up inside steady instances took longer than it does once warm
    why: str | None  # "compilation" | "graph capture" | "first use" | "other"; None: there was none


@define(frozen=True)
class SteadyTime:
    """The instances of a region once the program is warm. The quantiles are None where there are none."""

    instances: int
    total_ns: int
    median_ns: int | None
    p10_ns: int | None
    p90_ns: int | None


@define(frozen=True)
class Timing:
    """How long the instances of a region take, warm-up told apart."""

    source: str  # "undisturbed" (no profiler) | "timeline" (of the profiled run)
    instances: int
    warmup: WarmupTime
    steady: SteadyTime
    profiled_median_ns: int | None = None  # of the timeline, where the times above are undisturbed
    disturbance: float | None = None  # that over the undisturbed median
    energy_j: float | None = None  # per steady instance, as what follows
    memory_peak_bytes: int | None = None
    memory_growth_bytes: int | None = None
    energy_interval_j: list[float] | None = None  # that the energy lies in, at 95 %
    run_medians_ns: list[int] | None = (
        None  # of the steady instances of each run, where the program was run several times
    )
    level_change: int | None = None  # the instance, counted from 0, from which on all take another time

    @property
    def runs(self) -> int:
        """How many runs its times are of, beside a recording, which is of one."""
        return len(self.run_medians_ns or [1]) if self.profiled_median_ns is not None else 1
