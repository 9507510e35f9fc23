"""Sampled counters joined to a timeline: which samples describe which launches, and what they add up to.

Results are matched to launches by signature: kernel name (mangled, else demangled, else the simplified
form ncu prints) and launch configuration (grid and block). One signature may still do different work in
different places (a matrix product's inner dimension is in neither), so each region's own launches take
the samples nearest to that region, and parents add up their children. Nothing is filled in for a
signature without a sample: the value's coverage says how much of the region's GPU time it speaks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.samples import Floats, Samples, combine
from llm_perf_opt.regions.columns import Action, Bools, Int64s, Timeline
from llm_perf_opt.regions.model import Coverage, MetricValue
from llm_perf_opt.regions.names import printed_form, short_kernel_name

Config = tuple[tuple[int, ...], tuple[int, ...]]
Place = tuple[str, bool, tuple[str, ...]]  # domain, is a start/end range, path: a region as samples know it
Stack = tuple[str, ...]
NO_SAMPLES = 0  # the group of launches whose signature was never sampled
_NAMED = 20  # how many unmatched things are named one by one


@define(eq=False)
class LaunchRows:
    """Launches of one region by label (a signature, or a group of samples): which, how many, how long."""

    label: Int64s
    calls: Int64s
    total: Int64s

    @staticmethod
    def empty() -> LaunchRows:
        none = np.zeros(0, dtype=np.int64)
        return LaunchRows(none, none, none)

    def plus(self, label: int, calls: int, total: int) -> LaunchRows:
        return LaunchRows(np.append(self.label, label), np.append(self.calls, calls), np.append(self.total, total))


@define(eq=False)
class _Samples:
    """Samples of one signature by the place they were taken in."""

    rows: list[int] = Factory(list)
    inside: dict[Place, list[int]] = Factory(dict)  # every region a sample was taken in, however deep
    by_last: dict[tuple[str, str], dict[Stack, list[int]]] = Factory(dict)  # innermost name -> stacks
    by_first: dict[tuple[str, str], dict[Stack, list[int]]] = Factory(dict)  # outermost name -> stacks

    def add(self, row: int, action: Action) -> None:
        self.rows.append(row)
        for place in places_of(action):
            self.inside.setdefault(place, []).append(row)
        for domain, names in action.push_pop.items():
            stack = tuple(names)
            self.by_last.setdefault((domain, stack[-1]), {}).setdefault(stack, []).append(row)
            self.by_first.setdefault((domain, stack[0]), {}).setdefault(stack, []).append(row)

    def nearest(self, place: Place) -> tuple[list[int], bool]:
        """The samples that describe launches in a region best, and whether they were taken in it.

        Those taken in the region or below it; else in regions that end in the same names (another layer's
        `attention`), nearest in the tree first; else any: the same kernel on the same shape.
        """
        if rows := self.inside.get(place):
            return rows, True
        domain, _, path = place
        for stacks in (self.by_last.get((domain, path[-1])), self.by_first.get((domain, path[0]))):
            if stacks:
                best = max(_likeness(stack, path) for stack in stacks)
                return [row for stack, rows in stacks.items() if _likeness(stack, path) == best for row in rows], False
        return self.rows, False


def places_of(action: Action) -> list[Place]:
    """All regions a result was taken in."""
    places: list[Place] = []
    for domain, names in action.push_pop.items():
        places += [(domain, False, tuple(names[:length])) for length in range(1, len(names) + 1)]
    for domain, names in action.start_end.items():
        places += [(domain, True, (name,)) for name in dict.fromkeys(names)]
    return places


def _likeness(stack: Stack, path: Stack) -> tuple[int, int]:
    """Names two stacks share at the inner end, and at the outer one."""
    limit = min(len(stack), len(path))
    ending = next((i for i in range(limit) if stack[-1 - i] != path[-1 - i]), limit)
    outside = next((i for i in range(limit) if stack[i] != path[i]), limit)
    return ending, outside


@define(eq=False)
class Join:
    """Signatures of a timeline, the samples of each, and groups of samples with their statistics."""

    samples: Samples
    names: list[str]  # of each signature of the timeline
    by_signature: list[_Samples]
    unmatched: list[int]  # results that describe nothing in the timeline
    wholes: dict[Place, list[int]] = Factory(dict)  # ranges measured as a whole
    graphs: dict[Place, list[int]] = Factory(dict)  # CUDA graphs measured as a whole, by the regions around them
    groups: list[list[int]] = Factory(lambda: [[]])  # number NO_SAMPLES is the empty one
    taken_there: list[bool] = Factory(lambda: [False])  # of each group: from the region it is used for
    _numbers: dict[tuple[tuple[int, ...], bool], int] = Factory(dict)
    _statistics: tuple[Floats, Floats] | None = None

    def group_for(self, place: Place, signature: int) -> int:
        """The group of samples for a signature's launches in a region."""
        found = self.by_signature[signature]
        return self.group(*found.nearest(place)) if found.rows else NO_SAMPLES

    def group(self, rows: Sequence[int], taken_there: bool) -> int:
        key = (tuple(rows), taken_there)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.groups)
            self.groups.append(list(rows))
            self.taken_there.append(taken_there)
            self._statistics = None
        return number

    def statistics(self) -> tuple[Floats, Floats]:
        """What one launch of each group is like, per metric, and the standard error of that."""
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
        typical, errors = (matrix[labels] for matrix in self.statistics())
        known = ~np.isnan(typical)
        values = _roll_up(samples, typical, known, counts, times)
        groups = [self.groups[label] for label in labels.tolist()]
        # A sample may stand for launches of several regions below this one: it is counted once.
        taken = (~np.isnan(samples.values[sorted({row for rows in groups for row in rows})])).sum(axis=0)
        covered_time, covered_calls = times @ known, counts @ known
        spread = np.sqrt(((counts[:, None] * np.nan_to_num(errors)) ** 2).sum(axis=0))
        has_spread = (~np.isnan(errors)).any(axis=0)
        # Measured, not extrapolated: every launch was sampled, and in this very region.
        exact = bool(sampled.all()) and all(
            len(self.groups[label]) == calls and self.taken_there[label]
            for label, calls in zip(labels.tolist(), counts.tolist(), strict=True)
        )
        result = {}
        for column in np.flatnonzero(known.any(axis=0)).tolist():
            name = samples.metrics[column]
            info, value = samples.info[name], float(values[column])
            whole = exact and bool(known[:, column].all())
            relative = None
            if info.rollup == "sum" and has_spread[column] and value:
                relative = float(spread[column]) / abs(value)
            result[name] = MetricValue(
                value=value,
                unit=info.unit,
                rollup=info.rollup,
                source="kernel replay" if whole else "extrapolated",
                samples=int(taken[column]),
                launches=int(covered_calls[column]),
                coverage=min(float(covered_time[column]) / region_time, 1.0) if region_time else None,
                spread=0.0 if whole else relative,
            )
        return result


def _roll_up(samples: Samples, typical: Floats, known: Bools, counts: Floats, times: Floats) -> Floats:
    """One value per metric from what one launch of each group is like."""
    rollups = np.array([samples.info[name].rollup for name in samples.metrics])
    values = np.full(len(rollups), np.nan)
    filled = np.where(known, typical, 0.0)
    for rollup in ("sum", "mean", "max", "min"):
        columns = np.flatnonzero((rollups == rollup) & known.any(axis=0))
        if rollup == "sum":
            values[columns] = counts @ filled[:, columns]
        elif rollup == "mean":
            values[columns] = (times @ filled[:, columns]) / (times @ known[:, columns])
        elif len(columns):
            pick = np.nanmax if rollup == "max" else np.nanmin
            values[columns] = pick(typical[:, columns], axis=0)
    return values


def _per_group(samples: Samples, groups: list[list[int]]) -> tuple[Floats, Floats]:
    shape = (len(groups), len(samples.metrics))
    typical, errors = np.full(shape, np.nan), np.full(shape, np.nan)
    rollups = [samples.info[name].rollup for name in samples.metrics]
    for i, rows in enumerate(groups):
        values = samples.values[rows]
        count = (~np.isnan(values)).sum(axis=0)
        for column in np.flatnonzero(count).tolist():
            present = ~np.isnan(values[:, column])
            own = values[present, column]
            if rollups[column] == "sum":
                typical[i, column] = own.mean()
                if len(own) > 1:
                    errors[i, column] = own.std(ddof=1) / np.sqrt(len(own))
            else:
                typical[i, column] = combine(rollups[column], own, samples.weights[rows][present])
    return typical, errors


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


def join_samples(
    samples: Samples,
    described: list[tuple[list[str], Config]],
    kernels_per_instance: Callable[[Place], float | None],
    has_graphs: bool,
) -> Join:
    """Find the samples of every signature, and the regions of results that measured a range as a whole.

    `kernels_per_instance`: what the timeline has of a region; None for one it does not know.
    `has_graphs`: the timeline has whole-graph launches, which results of whole graphs describe.
    """
    by_name: dict[tuple[str, Config], list[int]] = {}
    for row in samples.kernels:
        action = samples.actions[row]
        config: Config = (action.grid or (), action.block or ())
        for name in _names_of(action, samples.simplified):
            by_name.setdefault((name, config), []).append(row)
    by_signature: list[_Samples] = []
    matched: set[int] = set()
    for names, config in described:
        forms = [n for n in names if n]
        if samples.simplified:
            forms += [_PRINTED + printed_form(n) for n in names[:2] if n]
        found = _Samples()
        for row in next((by_name[name, config] for name in forms if (name, config) in by_name), []):
            found.add(row, samples.actions[row])
        by_signature.append(found)
        matched.update(found.rows)
    names_shown = [names[1] if len(names) > 1 and names[1] else names[0] for names, _ in described]
    join = Join(samples, names_shown, by_signature, [])
    for row in samples.wholes:
        action = samples.actions[row]
        if action.kind == "graph":
            around = [place for place in places_of(action) if kernels_per_instance(place) is not None]
            for place in around if has_graphs else []:
                join.graphs.setdefault(place, []).append(row)
            if around and has_graphs:
                matched.add(row)
        elif (measured := measured_range(action, kernels_per_instance)) is not None:
            join.wholes.setdefault(measured, []).append(row)
            matched.add(row)
    join.unmatched = [row for row in (*samples.kernels, *samples.wholes) if row not in matched]
    return join


def measured_range(action: Action, kernels_per_instance: Callable[[Place], float | None]) -> Place | None:
    """The region a range result measured. ncu tells the ranges open around it in every domain, not which it was.

    So of several, the one whose kernels in the timeline are as many as the result holds; where that does
    not decide, the deepest.
    """
    candidates: list[Place] = [(domain, False, tuple(stack)) for domain, stack in action.push_pop.items()]
    if not candidates:
        candidates = [(domain, True, (name,)) for domain, names in action.start_end.items() for name in names]
    known = [(place, count) for place in candidates if (count := kernels_per_instance(place)) is not None]
    if not known:
        return None
    if action.kernels_inside:
        fitting = [p for p, count in known if abs(count - action.kernels_inside) <= 0.02 * action.kernels_inside]
        if len(fitting) == 1:
            return fitting[0]
    return max(known, key=lambda pair: (len(pair[0][2]), pair[0][0] != ""))[0]


_PRINTED = "printed:"  # keeps simplified forms apart from real names


def _names_of(action: Action, simplified: bool) -> Iterable[str]:
    names = dict.fromkeys(n for n in (action.mangled, action.demangled) if n)
    if simplified:
        names.setdefault(action.name)
        names.setdefault(_PRINTED + printed_form(action.name))
    return names


def coverage_of(join: Join, launches: LaunchRows) -> Coverage:
    """How much of some launches the samples speak for, and what is left out, worst first."""
    found = np.array([bool(join.by_signature[s].rows) for s in launches.label.tolist()], dtype=np.bool_)
    columns = (launches.label.tolist(), launches.calls.tolist(), launches.total.tolist(), found.tolist())
    missing = [(total, calls, join.names[s]) for s, calls, total, ok in zip(*columns, strict=True) if not ok]
    missing.sort(reverse=True)
    return Coverage(
        signatures=len(launches.label),
        signatures_matched=int(found.sum()),
        launches=int(launches.calls.sum()),
        launches_matched=int(launches.calls[found].sum()),
        gpu_time_ns=int(launches.total.sum()),
        gpu_time_matched_ns=int(launches.total[found].sum()),
        results=len(join.samples.actions),
        results_unmatched=len(join.unmatched),
        unmatched_signatures=[
            f"{short_kernel_name(name)}: {calls} launches, {total / 1e6:.3f} ms"
            for total, calls, name in missing[:_NAMED]
        ],
        unmatched_results=[_described(join.samples.actions[row]) for row in join.unmatched[:_NAMED]],
    )


def _described(action: Action) -> str:
    if action.kind == "kernel":
        return f"{short_kernel_name(action.name)} grid {action.grid} block {action.block}"
    ranges = ["/".join(stack) for stack in action.push_pop.values()]
    return f"{action.kind} result of {', '.join(ranges) or 'no range'}"
