"""From a checked configuration to what the library is asked for. Nothing of it is lost on the way."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.options import ReportOptions
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.nsight.nsys.argv import NsysOptions
from llm_perf_opt.nsight.nsys.gpu_metrics import DEFAULT_HZ
from llm_perf_opt.nsight.option_values import expressions, listed
from llm_perf_opt.planning import parse_seconds
from llm_perf_opt.request import AnnotateRequest, CounterRequest, ProfileRequest, TimelineRequest, bytes_of

STAGE1 = "llm_perf_opt.runners.llm_profile_runner"
_NOT_OF_NSYS = ("enable", "max_size", "timeout_s", "traffic_hz")  # keys of pipeline.nsys that are ours
_WHAT_RUNS = ("model", "infer", "dataset", "inputs", "device", "repeats")  # parts of the configuration


def profile_request(config: Mapping[str, Any], run: Path, file: Path, folder: Path) -> ProfileRequest:
    """The request of a deep run.

    `run`: its directory. `file`: where the built-in workload finds its configuration, secrets and all.
    `folder`: where relative paths start.
    """
    pipeline = config["pipeline"]
    ncu, nsys = pipeline["ncu"], pipeline["nsys"]
    cli = dict(ncu["ncu_cli"])
    nvtx = cli.pop("nvtx")
    as_given = ncu["strategy"] == "as_given"
    deep = config["run"]["mode"] == "deep"
    return ProfileRequest(
        command=workload_command(config, run, file, folder),
        report=ReportOptions(
            include=list(expressions(nvtx["include"])),
            exclude=list(expressions(nvtx["exclude"])),
            kernel_include=list(expressions(ncu["kernels"]["include"])),
            kernel_exclude=list(expressions(ncu["kernels"]["exclude"])),
            aggregate=ncu["aggregate"],
            top=max(config["run"]["top_n_kernels"], 1),
        ),
        timeline=TimelineRequest(
            enable=not as_given if nsys["enable"] is None else nsys["enable"],
            options=NsysOptions(**{k: v for k, v in nsys.items() if k not in _NOT_OF_NSYS}),
            timeout_s=nsys["timeout_s"],
            max_bytes=bytes_of(nsys["max_size"]),
            traffic_hz=nsys.get("traffic_hz", DEFAULT_HZ),  # runs of before have no such key, and may be resumed
        ),
        counters=CounterRequest(
            enable=deep if ncu["enable"] is None else ncu["enable"],
            options=NcuOptions(**cli, nvtx_push_pop_scope=nvtx["push_pop_scope"]),
            strategy=ncu["strategy"],
            gating_nvtx=ncu["gating_nvtx"],
            sample=str(ncu["sample"]),  # YAML reads 3 as a number
            level=ncu["level"],
            budget_s=None if ncu["budget"] is None else parse_seconds(str(ncu["budget"])),
            launches=ncu["launches"],
            top_n_kernels=config["run"]["top_n_kernels"] or None,
            fallback=ncu["fallback"],
            windows=ncu["windows"],
            run_to_end=ncu["run_to_end"],
            verify=ncu["verify"],
            timeout_s=ncu["timeout_s"],
        ),
        strict=ncu["strict"],
        by_keys=True,
        timings=stage1_command(file, folder, run) if is_stage1(config) else [],
        annotate=AnnotateRequest(**pipeline["annotate"]),
        # The command names files of this run alone; what is run follows from these.
        known_as=[json.dumps({key: config.get(key) for key in _WHAT_RUNS} | pipeline["workload"], default=str)],
    )


def is_stage1(config: Mapping[str, Any]) -> bool:
    """Is the built-in workload what is profiled?"""
    workload = config["pipeline"]["workload"]
    return not listed(workload["command"]) and workload["module"] == STAGE1


def workload_command(config: Mapping[str, Any], run: Path, file: Path, folder: Path) -> list[str]:
    """What runs under the profilers: any command, any module, or stage 1 with this very configuration."""
    workload = config["pipeline"]["workload"]
    if command := listed(workload["command"]):
        return list(command)
    if not is_stage1(config):
        return [sys.executable, "-m", str(workload["module"])]
    return [*stage1_command(file, folder, run / "workload"), "--profiled"]


def stage1_command(config: Path, folder: Path, out: Path) -> list[str]:
    """Stage 1 with a configuration, the folder where its relative paths start, and where it leaves its files."""
    paths = (str(path.resolve()) for path in (config, folder, out))
    return [
        sys.executable,
        "-m",
        STAGE1,
        *(w for pair in zip(("--resolved", "--folder", "--out"), paths, strict=True) for w in pair),
    ]
