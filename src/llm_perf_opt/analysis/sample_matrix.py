"""ncu's results as a matrix, and how results add up: sums add, extremes stay, the rest is weighted by time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from attrs import define
from numpy.typing import NDArray

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.catalogue import TIME as TIME  # for all of analysis, from one place
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo
from llm_perf_opt.regions.model import MetricValue, RuleFinding

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_MOST_RULES = 50  # findings kept per region
# A sum over less than this part of the region's GPU time says nothing about the region.
LEAST_HELD = 0.5
# A rate whose parts ncu took in different passes may come out above all there is: a little is rounding, more says nothing.
_MOST_OF_A_RATE = 102.0
_RATE = "_rate.pct"


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
        rates = [i for i, name in enumerate(metrics) if name.endswith(_RATE)]
        values[:, rates] = np.where(values[:, rates] > _MOST_OF_A_RATE, np.nan, values[:, rates])
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

    @cached_property
    def rollups(self) -> dict[str, Bools]:
        """Which metrics combine in which way: "sum", "max", "min"; the others are weighted by time."""
        names = [self.info[name].rollup for name in self.metrics]
        return {
            rollup: np.array([name == rollup for name in names], dtype=np.bool_) for rollup in ("sum", "max", "min")
        }

    def typical(self, rows: Sequence[int]) -> Floats:
        """Of each metric, what one of these results is like: sums are a mean of them. NaN where none has it."""
        values = self.values[list(rows)]
        if len(rows) < 2:
            return values[0] if len(rows) else np.full(len(self.metrics), np.nan)
        known = ~np.isnan(values)
        weights = np.where(self.rollups["sum"], 1.0, self.weights[list(rows)][:, None]) * known
        with np.errstate(invalid="ignore"):  # of metrics that none has
            found = (np.where(known, values, 0.0) * weights).sum(axis=0) / weights.sum(axis=0)
        for rollup, pick in (("max", np.fmax), ("min", np.fmin)):
            columns = self.rollups[rollup]
            if columns.any():
                found[columns] = pick.reduce(values[:, columns], axis=0)
        return np.asarray(found, dtype=np.float64)

    def time_ns(self, rows: Sequence[int]) -> int | None:
        """Summed kernel durations as ncu measured them, of those that have one; None where none has.

        Ranges and graphs have none: under ncu their duration holds the gaps between kernels and the cost
        of replay, up to a hundred times the GPU time.
        """
        if any(self.actions[row].kind != "kernel" for row in rows):
            return None
        known = [t for row in rows if (t := self.actions[row].time_ns()) is not None]
        return round(sum(known)) if known else None

    def without_duration(self) -> int:
        """Kernels whose duration is missing though others have one."""
        kernels = [action for action in self.actions if action.kind == "kernel"]
        missing = sum(action.time_ns() is None for action in kernels)
        return missing if missing < len(kernels) else 0


def add_up_results(samples: Samples, rows: Sequence[int]) -> dict[str, MetricValue]:
    """Metrics over a set of results, each result standing for itself."""
    if not rows:
        return {}
    kinds = {samples.actions[row].kind for row in rows}
    source = "kernel replay" if kinds == {"kernel"} else "graph replay" if kinds == {"graph"} else "range replay"
    if len(kinds) > 1:
        source = "kernel replay"
    part = samples.values[list(rows)]
    counts = (~np.isnan(part)).sum(axis=0).tolist()
    typical = samples.typical(rows).tolist()
    result = {}
    for column, name in enumerate(samples.metrics):
        if counts[column]:
            info, value = samples.info[name], typical[column]
            if info.rollup == "sum" and counts[column] > 1:
                value = math.fsum(one for one in part[:, column].tolist() if one == one)
            result[name] = MetricValue(value, info.unit, info.rollup, source, counts[column])
    return result


def sum_of_parts(
    parts: Sequence[Mapping[str, MetricValue]], times: Sequence[int], whole_time: int
) -> dict[str, MetricValue]:
    """Counters of a region whose parts were measured as wholes: sums over parts that do not overlap.

    Of ranges inside each other ncu's range modes measure the outermost, so `generate` is left without counters where
    its stages were measured. What its parts did is what it did, as far as they hold its kernels.
    `times`: GPU time of each part; `whole_time`: of the region.
    """
    summed: dict[str, MetricValue] = {}
    if not whole_time:
        return summed
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [(part[name], time) for part, time in zip(parts, times, strict=True) if name in part]
        held = sum(time * (1.0 if value.coverage is None else value.coverage) for value, time in values) / whole_time
        first = values[0][0]
        # Only sums add up: the occupancy of a region is not that of its parts together.
        if first.rollup == "sum" and held >= LEAST_HELD:
            sources = {value.source for value, _ in values}
            summed[name] = MetricValue(
                value=sum(value.value for value, _ in values),
                unit=first.unit,
                rollup="sum",
                source=sources.pop() if len(sources) == 1 else "extrapolated",
                samples=sum(value.samples for value, _ in values),
                launches=sum(value.launches or 0 for value, _ in values),
                coverage=min(held, 1.0),
            )
    return summed


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


def impossible_rates(counter_sets: Sequence[CounterSet]) -> list[Diagnosis]:
    """What `Samples` leaves out, named."""
    results, names = 0, Counter[str]()
    for action in (action for counters in counter_sets for action in counters.actions):
        above = [n for n, value in action.metrics.items() if n.endswith(_RATE) and value > _MOST_OF_A_RATE]
        results += bool(above)
        names.update(above)
    return [diagnose("RATES_LEFT_OUT", results=results, rates=", ".join(sorted(names)))] if names else []
