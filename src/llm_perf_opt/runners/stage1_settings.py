"""From a checked configuration to the settings of stage 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.nsight.option_values import expressions
from llm_perf_opt.stage1.settings import DirectInferenceOptions, Stage1Settings, TorchProfilerOptions
from llm_perf_opt.workloads.workload_options import DatasetOptions, InferOptions, ModelOptions, SamplingOptions


def stage1_settings(config: Mapping[str, Any], *, folder: Path, profiled: bool = False) -> Stage1Settings:
    """`folder`: where relative paths start. `profiled`: another profiler watches, so nothing else is measured."""
    pipeline = config["pipeline"]
    # Both need a pass of their own and change what they measure: only a deep run takes them.
    everything = config["run"]["mode"] == "deep" and not profiled
    profiler = dict(pipeline["torch_profiler"])
    direct = pipeline["direct_inference"]
    dataset = dict(config["dataset"])
    return Stage1Settings(
        model=ModelOptions(**config["model"], device=config["device"]),
        infer=InferOptions(**config["infer"]),
        dataset=DatasetOptions(
            root=dataset["root"],
            subset_filelist=dataset["subset_filelist"],
            prompts=expressions(dataset["prompts"]),
            sampling=SamplingOptions(**dataset["sampling"]),
        ),
        manifest=Path(config["inputs"]["manifest"]) if config["inputs"]["manifest"] else None,
        folder=folder,
        repeats=1 if profiled else config["repeats"],
        warmup=config["warmup"],
        torch_profiler=TorchProfilerOptions(**{**profiler, "enable": profiler["enable"] and everything}),
        direct_inference=DirectInferenceOptions(
            enable=direct["enable"] and not profiled, output=Path(direct["output"]["path"])
        ),
        static_analysis=pipeline["static_analysis"]["enable"] and everything,
        profiled=profiled,
    )
