"""FLOPs by formula: the few numbers of a run's `static_compute.json` that a report sets beside its counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLACE = "static_analysis/static_compute.json"  # in a run directory
# What is set beside the formula: torch's own counter, and what tensor cores will do for it (tiles, masks).
_BESIDE = {"counter": ("count", "matrix_flops"), "tensor_cores": ("formula", "flops_tensor_cores")}


def read_formula(path: Path) -> dict[str, dict[str, float]]:
    """For each stage the FLOPs of one run and how often it repeats; raises ValueError for a file of another kind."""
    data = json.loads(path.read_text(encoding="utf-8"))
    stages = data.get("stages") if isinstance(data, dict) else None
    if not isinstance(stages, list):
        raise ValueError("it has no stages")
    found = {}
    for stage in stages:
        flops = _flops(stage) if isinstance(stage, dict) else None
        if flops:
            named = found[str(stage.get("name", ""))] = {"flops": flops, "repeats": float(stage.get("repeats") or 1)}
            for name, (part, key) in _BESIDE.items():
                value = stage[part].get(key) if isinstance(stage.get(part), dict) else None
                if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                    named[name] = float(value)
    return found


def _flops(stage: dict[str, Any]) -> float | None:
    """By the formula; where the model has none, by the operators counted one by one."""
    formula, count = stage.get("formula"), stage.get("count")
    for source, key in ((formula, "flops_needed"), (count, "matrix_flops")):
        value = source.get(key) if isinstance(source, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None
