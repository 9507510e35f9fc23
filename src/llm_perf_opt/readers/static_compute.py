"""FLOPs by formula: the few numbers of a run's `static_compute.json` that a report sets beside its counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_perf_opt.untrusted import read_json

PLACE = "static_analysis/static_compute.json"  # in a run directory
# What is set beside the formula: torch's own counter, and what tensor cores will do for it (tiles, masks).
_BESIDE = {"counter": ("count", "matrix_flops"), "tensor_cores": ("formula", "flops_tensor_cores")}


def read_formula(path: Path) -> dict[str, dict[str, float]]:
    """For each stage the FLOPs of one run and how often it repeats; raises ValueError for a file of another kind."""
    data = read_json(path)
    stages = data.get("stages") if isinstance(data, dict) else None
    if not isinstance(stages, list):
        raise ValueError("it has no stages")
    found = {}
    for stage in stages:
        flops = _flops(stage) if isinstance(stage, dict) else None
        if flops:
            repeats = _positive(stage.get("repeats")) or 1.0
            named = found[str(stage.get("name", ""))] = {"flops": flops, "repeats": repeats}
            for name, (part, key) in _BESIDE.items():
                value = stage[part].get(key) if isinstance(stage.get(part), dict) else None
                if (amount := _positive(value)) is not None:
                    named[name] = amount
    return found


def _flops(stage: dict[str, Any]) -> float | None:
    """By the formula; where the model has none, by the operators counted one by one."""
    formula, count = stage.get("formula"), stage.get("count")
    for source, key in ((formula, "flops_needed"), (count, "matrix_flops")):
        value = source.get(key) if isinstance(source, dict) else None
        if found := _positive(value):
            return found
    return None


def _positive(value: object) -> float | None:
    """A number above 0 that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e300:
        return None
    return float(value)
