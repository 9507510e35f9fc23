"""Counters per region: adding up ncu's results, and joining sampled results to a timeline.

Results are matched to launches by signature: kernel name (mangled, else demangled, else the simplified
form ncu prints) and launch configuration (grid and block). One signature may still do different work in
different places (a matrix product's inner dimension is in neither), so each region's own launches take
the samples nearest to that region, and parents add up their children. Nothing is filled in for a
signature without a sample: the value's coverage says how much of the region's GPU time it speaks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from attrs import Factory, define
from numpy.typing import NDArray

from llm_perf_opt.regions.columns import Action, CounterSet, Int64s, MetricInfo, Timeline
from llm_perf_opt.regions.model import Coverage, MetricValue, RuleFinding
from llm_perf_opt.regions.names import printed_form, short_kernel_name

Floats = NDArray[np.float64]
Config = tuple[tuple[int, ...], tuple[int, ...]]
TIME = "gpu__time_duration.sum"
_NAMED = 20  # how many unmatched things are named one by one


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


# -- counters alone --------------------------------------------------------------------------------


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
        value = _combine(info.rollup, part[known, column], weights[known])
        result[name] = MetricValue(value, info.unit, info.rollup, source, int(known.sum()))
    return result


def _combine(rollup: str, values: Floats, weights: Floats) -> float:
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
    return sorted(pooled.values(), key=lambda f: -(f.share_of_gpu_time or 0) * (f.estimated_speedup_percent or 1))[:50]


# -- joined to a timeline --------------------------------------------------------------------------

NO_SAMPLES = 0  # the group of launches whose signature was never sampled


@define(eq=False)
class LaunchRows:
    """Launches of one region by label (a signature, or a group of samples): which, how many, how long."""

    label: Int64s
    calls: Int64s
    total: Int64s


@define(eq=False)
class Join:
    """Signatures of a timeline, the samples of each, and groups of samples with their statistics."""

    samples: Samples
    names: list[str]  # of each signature of the timeline
    everywhere: list[list[int]]  # signature -> rows of samples, wherever they were taken
    groups: list[list[int]] = Factory(lambda: [[]])  # number NO_SAMPLES is the empty one
    _group_of_rows: dict[tuple[int, ...], int] = Factory(dict)
    _whole_rows: dict[tuple[str, tuple[str, ...]], list[int]] = Factory(dict)
    _statistics: tuple[Floats, Floats] | None = None

    def group_for(self, domain: str, path: Sequence[str], signature: int) -> int:
        """The samples that describe a signature's launches in a region best.

        Those taken in the region or below it; else in regions that end in the same names (another
        layer's `attention`), nearest in the tree first; else any: the same kernel on the same shape.
        """
        rows = self.everywhere[signature]
        if not rows:
            return NO_SAMPLES
        scores = [_nearness(self.samples.actions[row].push_pop.get(domain, []), path) for row in rows]
        best = max(scores)
        chosen = tuple(row for row, score in zip(rows, scores, strict=True) if score == best)
        number = self._group_of_rows.get(chosen)
        if number is None:
            number = self._group_of_rows[chosen] = len(self.groups)
            self.groups.append(list(chosen))
            self._statistics = None
        return number

    def whole_rows(self, domain: str, path: tuple[str, ...]) -> list[int]:
        """Range and graph results taken of exactly this region."""
        return self._whole_rows.get((domain, path), [])

    def statistics(self) -> tuple[Floats, Floats]:
        """Mean of each metric over each group's samples, and the standard error of that mean."""
        if self._statistics is None:
            self._statistics = _per_group(self.samples, self.groups)
        return self._statistics

    def estimate(self, launches: LaunchRows) -> dict[str, MetricValue]:
        """Metrics of a region from its launches, labelled by group, and the samples of those groups."""
        sampled = launches.label != NO_SAMPLES
        if not sampled.any():
            return {}
        samples = self.samples
        region_time = int(launches.total.sum())
        labels = launches.label[sampled]
        counts = launches.calls[sampled].astype(np.float64)
        times = np.maximum(launches.total[sampled], 1).astype(np.float64)
        means, errors = (matrix[labels] for matrix in self.statistics())
        groups = [self.groups[label] for label in labels.tolist()]
        # A sample may stand for launches of several regions below this one: it is counted once.
        taken = (~np.isnan(samples.values[sorted({row for rows in groups for row in rows})])).sum(axis=0)
        exact = bool(sampled.all()) and all(
            len(rows) == calls for rows, calls in zip(groups, counts.tolist(), strict=True)
        )
        result = {}
        for column, name in enumerate(samples.metrics):
            mean = means[:, column]
            known = ~np.isnan(mean)
            if not known.any():
                continue
            info = samples.info[name]
            if info.rollup == "sum":
                value = float((mean[known] * counts[known]).sum())
            else:
                value = _combine(info.rollup, mean[known], times[known])
            whole = exact and bool(known.all())
            result[name] = MetricValue(
                value=value,
                unit=info.unit,
                rollup=info.rollup,
                source="kernel replay" if whole else "extrapolated",
                samples=int(taken[column]),
                launches=int(counts[known].sum()),
                coverage=min(float(times[known].sum() / region_time), 1.0) if region_time else None,
                spread=0.0 if whole else _spread(info.rollup, value, counts[known], errors[known, column]),
            )
        return result


def _nearness(stack: Sequence[str], path: Sequence[str]) -> tuple[bool, int, int]:
    """How near a sample's stack is to a region: inside it, names shared at the end, names shared outside."""
    inside = len(stack) >= len(path) and list(stack[: len(path)]) == list(path)
    ending = 0
    while ending < min(len(stack), len(path)) and stack[-1 - ending] == path[-1 - ending]:
        ending += 1
    outside = 0
    while outside < min(len(stack), len(path)) and stack[outside] == path[outside]:
        outside += 1
    return (inside, 0, 0) if inside and len(path) else (False, ending, outside)


def _per_group(samples: Samples, groups: list[list[int]]) -> tuple[Floats, Floats]:
    shape = (len(groups), len(samples.metrics))
    means, errors = np.full(shape, np.nan), np.full(shape, np.nan)
    for i, rows in enumerate(groups):
        if not rows:
            continue
        values = samples.values[rows]
        count = (~np.isnan(values)).sum(axis=0)
        some = count > 0
        means[i, some] = np.nansum(values[:, some], axis=0) / count[some]
        several = count > 1
        if several.any():
            errors[i, several] = np.nanstd(values[:, several], axis=0, ddof=1) / np.sqrt(count[several])
    return means, errors


def _spread(rollup: str, value: float, counts: Floats, errors: Floats) -> float | None:
    """Relative standard error of an extrapolated sum; None where no group has two samples."""
    known = ~np.isnan(errors)
    if rollup != "sum" or not known.any() or value == 0:
        return None
    return float(np.sqrt(((counts[known] * errors[known]) ** 2).sum()) / abs(value))


def signatures(timeline: Timeline) -> tuple[Int64s, list[tuple[list[str], Config]]]:
    """Number of each kernel's signature, and for each signature its names (best first) and configuration."""
    kernels = timeline.kernels
    config = kernels.config
    if config is None:
        numbers, which = np.unique(kernels.name, return_inverse=True)
        return which.astype(np.int64).reshape(-1), [([timeline.strings[n]], ((), ())) for n in numbers.tolist()]
    columns = [config.mangled, kernels.name, config.short, *config.grid.T, *config.block.T]
    which, first = _distinct_rows([c.astype(np.int64) for c in columns])
    described = []
    for row in zip(*(c[first].tolist() for c in columns), strict=True):
        names = [timeline.strings[n] if n >= 0 else "" for n in row[:3]]
        described.append((names, (row[3:6], row[6:9])))
    return which, described


def _distinct_rows(columns: list[Int64s]) -> tuple[Int64s, Int64s]:
    """Number of each row's combination of values, and one row for each number.

    Columns are folded into one key, renumbered before it could overflow: much faster than comparing rows.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        low = int(column.min()) if len(column) else 0
        width = (int(column.max()) if len(column) else 0) - low + 1
        if size * width >= 2**62:
            values, key = np.unique(key, return_inverse=True)
            key, size = key.reshape(-1), len(values)
        key = key * width + (column - low)
        size *= width
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return which.astype(np.int64).reshape(-1), first


def join_samples(samples: Samples, described: list[tuple[list[str], Config]]) -> tuple[Join, list[int]]:
    """Find the samples of every signature. Also returned: results that no signature of the timeline has."""
    by_name: dict[tuple[str, Config], list[int]] = {}
    for row in samples.kernels:
        action = samples.actions[row]
        config: Config = (action.grid or (), action.block or ())
        for name in _names_of(action, samples.simplified):
            by_name.setdefault((name, config), []).append(row)
    everywhere: list[list[int]] = []
    matched: set[int] = set()
    for names, config in described:
        forms = [n for n in names if n]
        if samples.simplified:
            forms += [_PRINTED + printed_form(n) for n in names[:2] if n]
        rows = next((by_name[name, config] for name in forms if (name, config) in by_name), [])
        everywhere.append(rows)
        matched.update(rows)
    join = Join(samples, [names[1] if len(names) > 1 and names[1] else names[0] for names, _ in described], everywhere)
    for row in samples.wholes:
        for domain, stack in samples.actions[row].push_pop.items():
            join._whole_rows.setdefault((domain, tuple(stack)), []).append(row)
    return join, [row for row in samples.kernels if row not in matched]


_PRINTED = "printed:"  # keeps simplified forms apart from real names


def _names_of(action: Action, simplified: bool) -> Iterable[str]:
    names = dict.fromkeys(n for n in (action.mangled, action.demangled) if n)
    if simplified:
        names.setdefault(action.name)
        names.setdefault(_PRINTED + printed_form(action.name))
    return names


def coverage_of(join: Join, launches: LaunchRows, unmatched: list[int]) -> Coverage:
    """How much of a scope's launches the samples speak for, and what is left out, worst first."""
    found = np.array([bool(join.everywhere[s]) for s in launches.label.tolist()], dtype=np.bool_)
    missing = sorted(
        (
            (total, calls, join.names[signature])
            for signature, calls, total, ok in zip(
                launches.label.tolist(),
                launches.calls.tolist(),
                launches.total.tolist(),
                found.tolist(),
                strict=True,
            )
            if not ok
        ),
        reverse=True,
    )
    actions = join.samples.actions
    return Coverage(
        signatures=len(launches.label),
        signatures_matched=int(found.sum()),
        launches=int(launches.calls.sum()),
        launches_matched=int(launches.calls[found].sum()),
        gpu_time_ns=int(launches.total.sum()),
        gpu_time_matched_ns=int(launches.total[found].sum()),
        results=len(join.samples.kernels),
        results_unmatched=len(unmatched),
        unmatched_signatures=[
            f"{short_kernel_name(name)}: {calls} launches, {total / 1e6:.3f} ms"
            for total, calls, name in missing[:_NAMED]
        ],
        unmatched_results=[
            f"{short_kernel_name(actions[row].name)} grid {actions[row].grid} block {actions[row].block}"
            for row in unmatched[:_NAMED]
        ],
    )
