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
class StepGroup:
    """Steps of a server of about one size, which replay CUDA graphs or do not: sizes reach to twice those before."""

    smallest: int  # of the batches, or of the tokens
    largest: int
    instances: int
    total_ns: int
    median_ns: int
    p90_ns: int
    tokens_per_step: float  # that go through the model
    in_graph: bool | None = None  # most of their kernels come from CUDA graphs; None where that is not known
    graphs: int | None = None  # how many different ones, where the recording tells them apart


@define(frozen=True)
class Steps:
    """What the steady instances of a region did, by their names: steps of a serving engine."""

    phase: str  # "prefill" | "decode_step" | "mixed_step" | "verify" | "draft" | "step" (it cannot be told, or several)
    instances: int
    batch_min: int  # requests in a step
    batch_max: int
    batch_mean: float
    tokens: int  # that went through the model
    new_tokens: int | None  # that came out; None where the engine did not say it of every step
    median_ns: int  # to the end of their work: of an engine that runs ahead of the GPU, more than their ranges take
    grouped_by: str  # "batch" (one token of each request) | "tokens"
    groups: list[StepGroup]  # smallest first

    @property
    def counted(self) -> tuple[float, str]:
        """Tokens of a step that a rate speaks of, and which those are: made where each request makes one, else read."""
        if self.grouped_by == "batch" and self.new_tokens is not None:
            return self.new_tokens / self.instances, "tokens made"
        return self.tokens / self.instances, "tokens through the model"


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
    steps: Steps | None = None  # of a serving engine, where the names of the instances say what each did

    @property
    def runs(self) -> int:
        """How many runs its times are of, beside a recording, which is of one."""
        return len(self.run_medians_ns or [1]) if self.profiled_median_ns is not None else 1
