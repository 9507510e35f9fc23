"""ncu's results as a matrix, and how results add up: sums add, extremes stay, the rest is weighted by time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.metrics.catalogue import TIME as TIME  # for all of analysis, from one place
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo
from llm_perf_opt.regions.model import MetricValue, RuleFinding

Floats = NDArray[np.float64]
_MOST_RULES = 50  # findings kept per region


@define(eq=False)
class Samples:
    """All results of the counter inputs, as a matrix of results by metrics, with their places."""

    actions: list[Action]
    info: dict[str, MetricInfo]
    metrics: list[str]
    values: Floats  # NaN: not collected for that result
    weights: Floats  # duration as ncu measured it; 1 where it was not collected
    sections: dict[str, list[str]]
    kernels: list[int]
    wholes: list[int]  # ranges and graphs
    simplified: bool

    @staticmethod
    def of(counter_sets: Sequence[CounterSet]) -> Samples:
        actions = [action for counters in counter_sets for action in counters.actions]
        info: dict[str, MetricInfo] = {}
        sections: dict[str, list[str]] = {}
        for counters in counter_sets:
            info.update(counters.metric_info)
            for section, names in counters.section_metrics.items():
                sections.setdefault(section, []).extend(n for n in names if n not in sections.get(section, []))
        metrics = sorted(info)
        column = {name: i for i, name in enumerate(metrics)}
        values = np.full((len(actions), len(metrics)), np.nan)
        for row, action in enumerate(actions):
            for name, value in action.metrics.items():
                values[row, column[name]] = value
        weights = np.array([action.time_ns() or 1.0 for action in actions], dtype=np.float64)
        return Samples(
            actions=actions,
            info=info,
            metrics=metrics,
            values=values,
            weights=weights,
            sections=sections,
            kernels=[i for i, a in enumerate(actions) if a.kind == "kernel"],
            wholes=[i for i, a in enumerate(actions) if a.kind != "kernel"],
            simplified=any(c.simplified_names for c in counter_sets),
        )

    def time_ns(self, rows: Sequence[int]) -> int | None:
        """Summed kernel durations as ncu measured them; None where one of the results has none.

        Ranges and graphs have none: under ncu their duration holds the gaps between kernels and the cost
        of replay, up to a hundred times the GPU time.
        """
        times = [self.actions[row].time_ns() if self.actions[row].kind == "kernel" else None for row in rows]
        known = [t for t in times if t is not None]
        return round(sum(known)) if len(known) == len(times) and times else None


def add_up_results(samples: Samples, rows: Sequence[int]) -> dict[str, MetricValue]:
    """Metrics over a set of results, each result standing for itself."""
    if not rows:
        return {}
    kinds = {samples.actions[row].kind for row in rows}
    source = "kernel replay" if kinds == {"kernel"} else "graph replay" if kinds == {"graph"} else "range replay"
    if len(kinds) > 1:
        source = "kernel replay"
    part = samples.values[list(rows)]
    weights = samples.weights[list(rows)]
    result = {}
    for column, name in enumerate(samples.metrics):
        known = ~np.isnan(part[:, column])
        if not known.any():
            continue
        info = samples.info[name]
        value = combine(info.rollup, part[known, column], weights[known])
        result[name] = MetricValue(value, info.unit, info.rollup, source, int(known.sum()))
    return result


def combine(rollup: str, values: Floats, weights: Floats) -> float:
    if rollup == "sum":
        return math.fsum(values.tolist())
    if rollup == "max":
        return float(values.max())
    if rollup == "min":
        return float(values.min())
    total = float(weights.sum())
    return float((values * weights).sum() / total) if total else float(values.mean())


def rules_of(samples: Samples, rows: Sequence[int], share: dict[int, float | None]) -> list[RuleFinding]:
    """ncu's findings for some results, those that matter for more time first; equal ones pooled."""
    pooled: dict[tuple[str, str], RuleFinding] = {}
    for row in rows:
        action = samples.actions[row]
        for rule in action.rules:
            key = (action.name, rule.rule)
            weight = share.get(row)
            known = pooled.get(key)
            if known is None:
                pooled[key] = RuleFinding(
                    action.name, rule.rule, rule.title, rule.message, rule.estimated_speedup_percent, weight
                )
            elif weight is not None:
                known.share_of_gpu_time = (known.share_of_gpu_time or 0.0) + weight
    return sorted(pooled.values(), key=lambda f: -(f.share_of_gpu_time or 0) * (f.estimated_speedup_percent or 1))[
        :_MOST_RULES
    ]
