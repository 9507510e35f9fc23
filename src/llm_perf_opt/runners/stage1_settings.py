"""From a checked configuration to the settings of stage 1, and the static analysis it is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from llm_perf_opt.profiling.vendor.options import expressions
from llm_perf_opt.stage1.settings import DirectInferenceOptions, Stage1Settings, TorchProfilerOptions
from llm_perf_opt.workloads.options import DatasetOptions, InferOptions, ModelOptions, SamplingOptions
from llm_perf_opt.workloads.session import Session


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
        analyse=analyse_session,
    )


def analyse_session(session: Session[Any], folder: Path) -> Mapping[str, Any]:
    """Count the stages of a session on the meta device, write both files, and answer with the totals."""
    from llm_perf_opt.static_analysis.report import analyse, write_static_compute
    from llm_perf_opt.static_analysis.stage import StaticStage

    stages = [StaticStage(stage.name, stage.run, stage.repeats) for stage in session.static_stages()]
    result = analyse(stages, session.hf_config, dtype=session.options.dtype)
    files = write_static_compute(result, folder)
    return {
        "files": [file.name for file in files],
        "stages": {stage.name: attrs.asdict(stage.total) for stage in result.stages},
    }
