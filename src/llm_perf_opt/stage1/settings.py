"""What stage 1 is asked for. Plain values again: the Hydra runner turns its configuration into these."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attrs import Factory, define, field

from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads.workload_options import DatasetOptions, InferOptions, ModelOptions, nearest, refuse

ACTIVITIES = ("cpu", "cuda")


def _to_activities(value: object) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Iterable):
        raise refuse("pipeline.torch_profiler.activities", value, "it has to be a list of cpu and cuda")
    chosen = tuple(dict.fromkeys(str(word).strip().lower() for word in words))
    for word in chosen:
        if word not in ACTIVITIES:
            raise UserError(
                f"pipeline.torch_profiler.activities does not know {word!r}.{nearest(word, ACTIVITIES)}",
                "Known are cpu and cuda.",
            )
    if "cpu" not in chosen:
        raise UserError(
            "pipeline.torch_profiler.activities without cpu would have no ranges to put kernels into.",
            "Write activities=[cpu,cuda].",
        )
    return chosen


@define(frozen=True, kw_only=True)
class TorchProfilerOptions:
    """PyTorch's own profiler, run apart from the timed passes because it slows them down."""

    enable: bool = True
    activities: tuple[str, ...] = field(default=ACTIVITIES, converter=_to_activities)
    record_shapes: bool = False
    profile_memory: bool = True
    with_stack: bool = False  # Python call stacks; large traces
    warmup_rounds: int = 1


@define(frozen=True, kw_only=True)
class DirectInferenceOptions:
    """The dataset through the model with nothing watching; one prediction a line."""

    enable: bool = False
    output: Path | None = None  # default: `predictions.jsonl` in the run directory


@define(frozen=True, kw_only=True)
class Stage1Settings:
    """All of stage 1."""

    model: ModelOptions = Factory(ModelOptions)
    infer: InferOptions = Factory(InferOptions)
    dataset: DatasetOptions = Factory(DatasetOptions)
    manifest: Path | None = None  # inputs.manifest; takes the place of the dataset
    folder: Path | None = None  # where relative paths start; default: the working directory
    repeats: int = 3  # timed passes over the inputs
    warmup: int = 1  # passes before them, neither timed nor marked
    torch_profiler: TorchProfilerOptions = Factory(TorchProfilerOptions)
    direct_inference: DirectInferenceOptions = Factory(DirectInferenceOptions)
    static_analysis: bool = True
    profiled: bool = False  # under nsys or ncu: its times are not those of the program
