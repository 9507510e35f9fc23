"""Sampled counters joined to a timeline: which samples describe which launches, and what they add up to.

Results are matched to launches by signature: kernel name (mangled, else demangled, else the simplified
form ncu prints) and launch configuration (grid and block). One signature may still do different work in
different places (a matrix product's inner dimension is in neither), so each region's own launches take
the samples nearest to that region, and parents add up their children. Where those were taken elsewhere, and
the timeline shows that launches there last much longer or shorter, they are scaled by that (`SAME_WORK`).
A signature without a sample takes those of the same kernel on a grid of nearly the same size, in proportion to the
blocks (`stands_in`). Nothing is filled in for any other: the value's coverage says how much of the region's GPU time
it speaks for. Where launches of a signature fall into duration clusters (`regions.duration_clusters`), each has its
own samples. One that has none is joined to the nearest: it may be launches that were held up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.sample_matrix import Floats, Samples
from llm_perf_opt.analysis.sampled_clusters import samples_of_clusters
from llm_perf_opt.metrics.catalogue import role_of
from llm_perf_opt.regions.columns import Action, Bools, Int64s
from llm_perf_opt.regions.duration_clusters import DurationClusters, split_by_duration
from llm_perf_opt.regions.model import Coverage, MetricValue
from llm_perf_opt.regions.names import printed_form, short_kernel_name
from llm_perf_opt.regions.signatures import NEIGHBOUR, SAME_WORK, Axes, Signature, stands_in

Config = tuple[tuple[int, ...], tuple[int, ...]]
Place = tuple[str, bool, tuple[str, ...]]  # domain, is a start/end range, path: a region as samples know it
Stack = tuple[str, ...]
NO_SAMPLES = 0  # the group of launches whose signature was never sampled
# Beyond SAME_WORK (mean duration of a region's launches over that of the launches where the samples were taken)
# counters are taken to grow with the time. In the recordings of the
# decoder a concatenation of fixed grid takes 14 µs in prefill and 1.8 µs in decode: unscaled, samples of the one
# put the L2 traffic of the other 9 % too high, scaled 1 % (benchmarks/results/join-accuracy.md).
# DRAM is written when the L2 cache evicts, in a launch that may be another's than the one whose data it was, and
# replay disturbs the order. Seen against range replay: 2 to 7 % off in prefill, where kernels are long, 5 to 49 %
# in decode. Samples do not show it, so it is added to their spread.
_SHORT_NS = 10_000
_WRITTEN_OFF_BY = {True: 0.5, False: 0.07}  # relative, for short kernels and for others
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
    stacks: dict[str, dict[Stack, list[int]]] = Factory(dict)  # by domain
    scale: float | None = None  # samples of a neighbour: blocks over those of its grid; None: its own
    neighbour: int | None = None  # the signature they are of

    def add(self, row: int, action: Action) -> None:
        self.rows.append(row)
        for place in places_of(action):
            self.inside.setdefault(place, []).append(row)
        for domain, names in action.push_pop.items():
            if names:
                self.stacks.setdefault(domain, {}).setdefault(tuple(names), []).append(row)

    def nearest(self, place: Place, stage_level: int = 0) -> tuple[list[int], bool]:
        """The samples that describe launches in a region best, and whether they were taken in it.

        Those taken in the region or below it; else in the same stage (the name at `stage_level`), there in
        regions that end in the same names (another layer's `attention`), nearest in the tree first; else in
        other stages in the same order; else any: the same kernel on the same shape.
        """
        if rows := self.inside.get(place):
            return rows, self.scale is None
        domain, _, path = place
        likeness = {stack: _likeness(stack, path, stage_level) for stack in self.stacks.get(domain, {})}
        best = max(likeness.values(), default=_UNLIKE)
        if best == _UNLIKE:
            return self.rows, False
        return [row for stack, rows in self.stacks[domain].items() if likeness[stack] == best for row in rows], False


_UNLIKE = (False, 0, 0)


def scale_of(duration: float, sampled: float | None) -> float:
    """How much more work launches do than the sampled ones, by how long the timeline has both."""
    if not sampled:
        return 1.0
    ratio = duration / sampled
    # More digits would say more than is known, and make a group of samples for every region.
    return 1.0 if SAME_WORK[0] <= ratio <= SAME_WORK[1] else float(f"{ratio:.2g}")


def places_of(action: Action) -> list[Place]:
    """All regions a result was taken in."""
    places: list[Place] = []
    for domain, names in action.push_pop.items():
        places += [(domain, False, tuple(names[:length])) for length in range(1, len(names) + 1)]
    for domain, names in action.start_end.items():
        places += [(domain, True, (name,)) for name in dict.fromkeys(names)]
    return places


def _likeness(stack: Stack, path: Stack, stage_level: int) -> tuple[bool, int, int]:
    """Is it the same stage, and how many names do two stacks share at the inner end, and at the outer one?"""
    limit = min(len(stack), len(path))
    ending = next((i for i in range(limit) if stack[-1 - i] != path[-1 - i]), limit)
    outside = next((i for i in range(limit) if stack[i] != path[i]), limit)
    return outside > stage_level, ending, outside


def stage_levels(places: Iterable[Place]) -> dict[str, int]:
    """Of each domain, at which place of a path the stages stand: 1 where one range holds all others, else 0."""
    first: dict[str, set[str]] = {}
    second: dict[str, set[str]] = {}
    for domain, start_end, path in places:
        if not start_end:
            first.setdefault(domain, set()).add(path[0])
            if len(path) > 1:
                second.setdefault(domain, set()).add(path[1])
    return {domain: int(len(names) == 1 and len(second.get(domain, ())) > 1) for domain, names in first.items()}


def _apart(one: float, other: float) -> float:
    return abs(math.log(max(one, 1.0) / max(other, 1.0)))


def _by_signature(clusters: DurationClusters, some: Iterable[int]) -> dict[int, list[int]]:
    """Some clusters, by their signature."""
    found: dict[int, list[int]] = {}
    for cluster in sorted(some):
        found.setdefault(int(clusters.signature[cluster]), []).append(cluster)
    return found


def _with_samples(clusters: DurationClusters, own: Collection[int], borrowing: Collection[int]) -> DurationClusters:
    """Clusters without samples joined to the nearest of their signature that has some. `own`: those that have.

    `borrowing`: signatures whose clusters have those of a neighbour, and stay as they are.
    """
    sampled = _by_signature(clusters, own)
    means = clusters.mean.tolist()
    target = list(range(len(clusters)))
    for cluster, signature in enumerate(clusters.signature.tolist()):
        if cluster not in own and signature in sampled and signature not in borrowing:
            target[cluster] = min(sampled[signature], key=lambda other: _apart(means[other], means[cluster]))
    return clusters.joined(np.array(target, dtype=np.int64))


@define(eq=False)
class Join:
    """Signatures of a timeline, the samples of each, and groups of samples with their statistics."""

    samples: Samples
    names: list[str]  # of each signature of the timeline
    by_signature: list[_Samples]
    unmatched: list[int]  # results that describe nothing in the timeline
    by_cluster: list[_Samples] = Factory(list)  # see `split_into_clusters`
    wholes: dict[Place, list[int]] = Factory(dict)  # ranges measured as a whole
    graphs: dict[Place, list[int]] = Factory(dict)  # CUDA graphs measured as a whole, by the regions around them
    groups: list[list[int]] = Factory(lambda: [[]])  # number NO_SAMPLES is the empty one
    taken_there: list[bool] = Factory(lambda: [False])  # of each group: from the region it is used for
    scales: list[float] = Factory(lambda: [1.0])  # of each group: what its counters are multiplied with
    stage_level: dict[str, int] = Factory(dict)  # see `stage_levels`
    whole: Place | None = None  # the region that stands for a recording without ranges: every sample was taken in it
    _numbers: dict[tuple[tuple[int, ...], bool, float], int] = Factory(dict)
    _statistics: tuple[Floats, Floats] | None = None

    def split_into_clusters(self, signature: Int64s, duration: Int64s, context: Int64s) -> DurationClusters:
        """The clusters that have samples of their own, and their samples. All columns are of each launch."""
        launches = np.bincount(signature, minlength=len(self.by_signature))
        # Where all were sampled there is nothing to split: that is exact as it is.
        timed = {n: rows for n, rows in self._timed().items() if len(self.by_signature[n].rows) < launches[n]}
        borrowing = {n for n, found in enumerate(self.by_signature) if found.neighbour in timed}
        divisible = np.zeros(len(self.by_signature), dtype=np.bool_)
        divisible[[*timed, *borrowing]] = True
        clusters = split_by_duration(signature, duration, divisible, context)
        own = samples_of_clusters(clusters, timed, self.samples.weights)
        clusters = _with_samples(clusters, own, borrowing)
        own = samples_of_clusters(clusters, timed, self.samples.weights)
        sampled = _by_signature(clusters, own)
        means = clusters.mean.tolist()
        self.by_cluster = []
        for number, mean in zip(clusters.signature.tolist(), means, strict=True):
            samples = self.by_signature[number]
            of = samples.neighbour if samples.neighbour in timed else number
            if len(sampled.get(of, [])) > 1:
                # A launch of the neighbour's takes as much less as it has fewer blocks.
                nearest = min(sampled[of], key=lambda other: _apart(means[other], mean / (samples.scale or 1.0)))
                samples = self._of_cluster(samples, own[nearest], timed[of])
            self.by_cluster.append(samples)
        return clusters

    def _timed(self) -> dict[int, list[int]]:
        """The samples with a duration of the signatures that have some of their own."""
        actions = self.samples.actions
        timed = {
            number: [row for row in found.rows if actions[row].time_ns()]
            for number, found in enumerate(self.by_signature)
            if found.scale is None
        }
        return {number: rows for number, rows in timed.items() if rows}

    def _of_cluster(self, of_signature: _Samples, own: Sequence[int], timed: Sequence[int]) -> _Samples:
        """The samples of one cluster; those of which nobody knows the cluster, for want of a duration, are of all."""
        others = set(timed) - set(own)
        samples = _Samples(scale=of_signature.scale, neighbour=of_signature.neighbour)
        for row in of_signature.rows:
            if row not in others:
                samples.add(row, self.samples.actions[row])
        return samples

    def nearest(self, place: Place, cluster: int) -> tuple[list[int], bool]:
        """The samples for launches of a cluster in a region, and whether they were taken in it."""
        if place == self.whole:
            return self.by_cluster[cluster].rows, self.by_cluster[cluster].scale is None
        return self.by_cluster[cluster].nearest(place, self.stage_level.get(place[0], 0))

    def taken_right_in(self, place: Place, signature: int) -> list[int]:
        """The samples of a signature that were taken in a region, and not below it."""
        domain, start_end, path = place
        samples = self.by_signature[signature]
        if start_end or samples.scale is not None:
            return []
        if place == self.whole:
            return samples.rows
        return samples.stacks.get(domain, {}).get(path, [])

    def group(self, rows: Sequence[int], taken_there: bool, scale: float = 1.0) -> int:
        key = (tuple(rows), taken_there, scale)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.groups)
            self.groups.append(list(rows))
            self.taken_there.append(taken_there)
            self.scales.append(scale)
            self._statistics = None
        return number

    def statistics(self) -> tuple[Floats, Floats]:
        """What one launch of each group is like, per metric, and the standard error of that."""
        if self._statistics is None:
            self._statistics = _per_group(self.samples, self.groups, self.scales)
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
        scatter = ~np.isnan(errors)
        shift = self._off_by(labels, times < _SHORT_NS * counts)
        # What is off in one direction in all samples alike does not average out.
        spread = np.hypot(spread, (counts[:, None] * shift * np.abs(np.nan_to_num(typical))).sum(axis=0))
        has_spread = (scatter | (shift > 0)).any(axis=0)
        # Measured, not extrapolated: every launch was sampled, and in this very region.
        exact = bool(sampled.all()) and all(
            len(self.groups[label]) == calls and self.taken_there[label] and self.scales[label] == 1
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

    def _off_by(self, labels: Int64s, short: Bools) -> Floats:
        """Relative error of each group and metric that the scatter of its samples does not show."""
        off_by = np.zeros((len(labels), len(self.samples.metrics)))
        written = [i for i, name in enumerate(self.samples.metrics) if role_of(name) == "dram_write"]
        off_by[:, written] = np.where(short, _WRITTEN_OFF_BY[True], _WRITTEN_OFF_BY[False])[:, None]
        scales = np.array([self.scales[label] for label in labels.tolist()])
        # A little larger: what does not grow with the blocks is off by that. Quite other work than was sampled: how
        # counters grow with the time is a guess.
        little = (scales >= 1 / NEIGHBOUR) & (scales <= NEIGHBOUR)
        return np.hypot(off_by, np.where(little, np.abs(scales - 1), 1.0)[:, None])


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


def _per_group(samples: Samples, groups: list[list[int]], scales: list[float]) -> tuple[Floats, Floats]:
    shape, sums = (len(groups), len(samples.metrics)), samples.rollups["sum"]
    typical, errors = np.full(shape, np.nan), np.full(shape, np.nan)
    for i, rows in enumerate(groups):
        typical[i] = samples.typical(rows)
        if len(rows) > 1:
            off = samples.values[rows] - typical[i]
            count = (~np.isnan(off)).sum(axis=0)
            several = sums & (count > 1)
            count, squares = count[several], np.nansum(off[:, several] ** 2, axis=0)
            errors[i, several] = np.sqrt(squares / (count - 1)) / np.sqrt(count) * scales[i]
        typical[i, sums] *= scales[i]
    return typical, errors


def join_samples(
    samples: Samples,
    described: Sequence[Signature],
    durations: Sequence[float],
    kernels_per_instance: Callable[[Place], float | None],
    has_graphs: bool,
    whole: Place | None = None,
) -> Join:
    """Find the samples of every signature, and the regions of results that measured a range as a whole.

    `durations`: of each signature, what a launch takes in the mean.
    `kernels_per_instance`: what the timeline has of a region; None for one it does not know.
    `has_graphs`: the timeline has whole-graph launches, which results of whole graphs describe.
    `whole`: see `Join`.
    """
    by_name: dict[tuple[str, Config], list[int]] = {}
    for row in samples.kernels:
        action = samples.actions[row]
        config: Config = (action.grid or (), action.block or ())
        for name in _names_of(action, samples.simplified):
            by_name.setdefault((name, config), []).append(row)
    by_signature: list[_Samples] = []
    matched: set[int] = set()
    for signature in described:
        config = (signature.grid or (), signature.block or ())
        forms = signature.names
        if samples.simplified:
            forms += [_PRINTED + printed_form(n) for n in (signature.name, signature.shown) if n]
        found = _Samples()
        for row in next((by_name[name, config] for name in forms if (name, config) in by_name), []):
            found.add(row, samples.actions[row])
        by_signature.append(found)
        matched.update(found.rows)
    _ask_neighbours(described, durations, by_signature, samples.actions)
    join = Join(samples, [s.shown or s.name for s in described], by_signature, [], whole=whole)
    for row in samples.wholes:
        action = samples.actions[row]
        if action.kind == "graph":
            for place in ([whole] if whole else places_of(action)) if has_graphs else ():
                if kernels_per_instance(place) is not None:
                    join.graphs.setdefault(place, []).append(row)
                    matched.add(row)
        elif (measured := measured_range(action, kernels_per_instance)) is not None:
            join.wholes.setdefault(measured, []).append(row)
            matched.add(row)
    join.unmatched = [row for row in (*samples.kernels, *samples.wholes) if row not in matched]
    return join


def _ask_neighbours(
    described: Sequence[Signature], durations: Sequence[float], found: Sequence[_Samples], actions: Sequence[Action]
) -> None:
    """Give signatures without samples those of the same kernel on the grid nearest in size, if it can stand in."""
    sampled: dict[tuple[str, Axes | None], list[int]] = {}
    for number, signature in enumerate(described):
        if found[number].rows and signature.blocks:
            sampled.setdefault((signature.name, signature.block), []).append(number)
    for number, signature in enumerate(described):
        blocks = signature.blocks
        if found[number].rows or not blocks:
            continue
        near = [
            (abs((described[other].blocks or 0) - blocks), other)
            for other in sampled.get((signature.name, signature.block), [])
            if stands_in(described[other], durations[other], signature, durations[number])
        ]
        if near:
            _, other = min(near)
            for row in found[other].rows:
                found[number].add(row, actions[row])
            found[number].scale = blocks / (described[other].blocks or blocks)
            found[number].neighbour = other


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
    samples = [join.by_signature[signature] for signature in launches.label.tolist()]
    found = np.array([bool(own.rows) for own in samples], dtype=np.bool_)
    scaled = np.array([own.scale is not None for own in samples], dtype=np.bool_)
    columns = (column[~found].tolist() for column in (launches.total, launches.calls, launches.label))
    missing = sorted(((total, calls, join.names[s]) for total, calls, s in zip(*columns, strict=True)), reverse=True)
    return Coverage(
        signatures=len(launches.label),
        signatures_matched=int(found.sum()),
        launches=int(launches.calls.sum()),
        launches_matched=int(launches.calls[found].sum()),
        gpu_time_ns=int(launches.total.sum()),
        gpu_time_matched_ns=int(launches.total[found].sum()),
        signatures_scaled=int(scaled.sum()),
        gpu_time_scaled_ns=int(launches.total[scaled].sum()),
        results=len(join.samples.actions),
        results_unmatched=len(join.unmatched),
        unmatched_signatures=[
            f"{short_kernel_name(name)}: {calls} {'launch' if calls == 1 else 'launches'}, {total / 1e6:.3f} ms"
            for total, calls, name in missing[:_NAMED]
        ],
        unmatched_results=[_described(join.samples.actions[row]) for row in join.unmatched[:_NAMED]],
    )


def _described(action: Action) -> str:
    if action.kind == "kernel":
        return f"{short_kernel_name(action.name)} grid {action.grid} block {action.block}"
    ranges = ["/".join(stack) for stack in action.push_pop.values()]
    return f"{action.kind} result of {', '.join(ranges) or 'no range'}"
