"""What ncu will most likely be asked for, before there is a timeline to decide by.

The program can then be started under ncu while nsys still writes. The guess is used only where it is, word for word,
what the plan asks for, so a wrong one costs nothing but the work of idle cores.
"""

from __future__ import annotations

import attrs

from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.planning.chosen_regions import excluded
from llm_perf_opt.planning.costs import RunFacts
from llm_perf_opt.planning.decision import chooses_launches
from llm_perf_opt.planning.launch_filter import LaunchFilter
from llm_perf_opt.planning.plan import PlannedCapture
from llm_perf_opt.planning.windows import FROM_START_OFF
from llm_perf_opt.request import ProfileRequest

_TYPES = ("bf16",)  # what most models compute in


def likely_capture(request: ProfileRequest, facts: RunFacts) -> PlannedCapture | None:
    """One capture in windows of all kernels; None where the plan will be another for certain."""
    asked = request.counters
    groups, unknown = groups_for(facts.compute_capability)
    if unknown or not (asked.windows and chooses_launches(request)) or asked.top_n_kernels is not None:
        return None
    metrics = asked.options.metrics or tuple(metric.name for metric in groups.of_level(asked.level, _TYPES))
    options = LaunchFilter((), launch_count=asked.launches).options(metrics, asked.options)
    return PlannedCapture(
        "run",
        attrs.evolve(
            options,
            nvtx_exclude=(*options.nvtx_exclude, *excluded(request)),
            extra_args=(*options.extra_args, *FROM_START_OFF),
        ),
    )
