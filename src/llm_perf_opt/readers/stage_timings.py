"""Stage times without a profiler: the few numbers of a run's `metrics.json` that a report corrects its wall times with."""

from __future__ import annotations

import math
from pathlib import Path

from llm_perf_opt.untrusted import read_json

PLACE = "torch_profiler/metrics.json"  # in a run directory


def read_stage_timings(path: Path) -> dict[str, float]:
    """Seconds of one run of each stage, by its path, as in "generate/prefill"; ValueError for a file of another kind."""
    data = read_json(path)
    timing = data.get("timing") if isinstance(data, dict) else None
    stages = timing.get("stages") if isinstance(timing, dict) else None
    if not isinstance(stages, list):
        raise ValueError("it has no stage timings")
    found = {}
    for stage in stages:
        times = stage.get("milliseconds") if isinstance(stage, dict) else None
        mean = times.get("mean") if isinstance(times, dict) else None
        if isinstance(mean, int | float) and not isinstance(mean, bool) and math.isfinite(mean) and mean > 0:
            found[str(stage.get("path", ""))] = float(mean) / 1e3
    return found
