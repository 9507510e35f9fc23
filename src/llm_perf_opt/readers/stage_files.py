"""What stage 1 leaves of its stages in a run directory: the few numbers that a report sets beside its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_perf_opt.untrusted import read_json

TIMINGS = "torch_profiler/metrics.json"  # in a run directory
FORMULA = "static_analysis/static_compute.json"
# Beside how often a stage repeats. Tensor cores: what they will do for the formula (tiles, masks).
_AMOUNTS = {"counter": ("count", "matrix_flops"), "tensor_cores": ("formula", "flops_tensor_cores")}


def read_stage_timings(path: Path) -> dict[str, float]:
    """Seconds of one run of each stage without a profiler, by its path, as in "generate/prefill"."""
    found = {}
    for stage in _stages(path, "timing", "stages"):
        if mean := _positive(stage, "milliseconds", "mean"):
            found[str(stage.get("path", ""))] = mean / 1e3
    return found


def read_formula(path: Path) -> dict[str, dict[str, float]]:
    """For each stage the FLOPs of one run and how often it repeats; where no formula is, those counted by operators."""
    found = {}
    for stage in _stages(path, "stages"):
        if flops := _positive(stage, "formula", "flops_needed") or _positive(stage, "count", "matrix_flops"):
            amounts = {name: _positive(stage, *place) for name, place in _AMOUNTS.items()}
            named = {"flops": flops, "repeats": _positive(stage, "repeats") or 1.0}
            found[str(stage.get("name", ""))] = named | {name: amount for name, amount in amounts.items() if amount}
    return found


def _stages(path: Path, *place: str) -> list[dict[str, Any]]:
    """The list of stages in a file; `ValueError` for a file of another kind."""
    stages = _inside(read_json(path), *place)
    if not isinstance(stages, list):
        raise ValueError("it has no stages")
    return [stage for stage in stages if isinstance(stage, dict)]


def _inside(value: Any, *place: str) -> Any:
    for name in place:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _positive(stage: dict[str, Any], *place: str) -> float | None:
    """A number above 0 that a float can hold."""
    value = _inside(stage, *place)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e300:
        return None
    return float(value)
