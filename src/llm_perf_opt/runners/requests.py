"""From a checked configuration to what the library is asked for. Nothing of it is lost on the way."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.nsight.option_values import listed
from llm_perf_opt.options import KEYS, flatten
from llm_perf_opt.request import MeasureRequest, ProfileRequest, profile_request

STAGE1 = "llm_perf_opt.runners.llm_profile_runner"
_WHAT_RUNS = ("model", "infer", "dataset", "inputs", "device", "repeats")  # parts of the configuration


def deep_request(config: Mapping[str, Any], run: Path, file: Path, folder: Path) -> ProfileRequest:
    """The request of a deep run.

    `run`: its directory. `file`: where the built-in workload finds its configuration, secrets and all.
    `folder`: where relative paths start.
    """
    what_runs = {key: config.get(key) for key in _WHAT_RUNS} | config["pipeline"]["workload"]
    return profile_request(
        {KEYS[key]: value for key, value in flatten(config) if key in KEYS},
        workload_command(config, run, file, folder),
        by_keys=True,
        timings=stage1_command(file, folder, run) if is_stage1(config) else [],
        measure=MeasureRequest(enable=False),  # stage 1 has done so
        # The command names files of this run alone; what is run follows from these.
        known_as=[json.dumps(what_runs, default=str)],
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
    options = ("--resolved", str(config.resolve()), "--folder", str(folder.resolve()), "--out", str(out.resolve()))
    return [sys.executable, "-m", STAGE1, *options]
