"""What captures cost whose launches the user chose: nothing is planned there, but the price can be told."""

from __future__ import annotations

import tomllib
from importlib import resources

from attrs import define

from llm_perf_opt.metrics import MetricGroups, PassCount
from llm_perf_opt.nsight.ncu.argv import NcuOptions
from llm_perf_opt.planning.costs import TIME_ONLY, Costs

_ONE_LAUNCH_A_PASS = ("application", "app-range")  # of the whole program


@define(frozen=True)
class Forecast:
    """The price of one capture. `None` is not known, never zero."""

    launches: int | None
    passes: PassCount | None
    seconds: float | None


def forecast(
    options: NcuOptions, launches: int | None, program_s: float, groups: MetricGroups, costs: Costs
) -> Forecast:
    """`launches`: results the timeline lets expect. `program_s`: how long the program runs by itself."""
    passes = passes_of(options, groups)
    if passes is None or launches is None:
        return Forecast(launches, passes, None)
    time_only = {m.partition(".")[0] for m in options.metrics} <= set(TIME_ONLY) and not (
        options.set or options.sections
    )
    if options.replay_mode in _ONE_LAUNCH_A_PASS:
        seconds = passes.passes * costs.capture_s(program_s, launches, 1, time_only=time_only)
    else:
        seconds = costs.capture_s(program_s, launches, passes.passes, time_only=time_only)
    return Forecast(launches, passes, seconds)


def passes_of(options: NcuOptions, groups: MetricGroups) -> PassCount | None:
    """Passes of each launch; None where sections are asked for whose passes nobody has counted."""
    if options.sections:
        return None
    of_set = _sets().get(options.set or "", 0)
    if options.set and not of_set:
        return None
    if not options.metrics:
        return PassCount(of_set, "measured") if of_set else None
    of_metrics = groups.passes_of(options.metrics)
    return PassCount(of_set + of_metrics.passes, "estimated") if of_set else of_metrics


def _sets() -> dict[str, int]:
    raw = tomllib.loads(resources.files(__package__).joinpath("costs.toml").read_text(encoding="utf-8"))
    return {str(name): int(passes) for name, passes in raw["passes_of_sets"].items()}
