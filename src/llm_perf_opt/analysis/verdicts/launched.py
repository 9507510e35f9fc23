"""What a region launched, one by one and in the order it ran: the evidence that fix rules look at.

An expert who looks for a known fault reads the kernels in their order, and at each the operator that launched it with
its shapes. `Launched` is that as columns, with one `LaunchKind` for launches that are alike. Where nothing but sums is
known (counters alone), launches of a kernel are one row, and there is no order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from llm_perf_opt.analysis.verdicts.launches import Launches
from llm_perf_opt.metrics.families import family_of
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.blocks import blocks
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s, Timeline
from llm_perf_opt.regions.stacks import Stacks, build_stacks, group_by
from llm_perf_opt.regions.table import ROOT, add_up
from llm_perf_opt.regions.tensors import Tensor, from_text

Floats = NDArray[np.float64]
# Launches of a region that are looked at: the last instances that have so many, and no more of a single one.
_ENOUGH, _MOST = 3_000, 20_000
_DEEPEST = 24  # operators around a launch
_LONG = 50_000  # ns: an operator without launches that takes less holds nobody up


@define(frozen=True)
class LaunchKind:
    """Launches that are alike."""

    kernel: str
    family: str
    operators: tuple[str, ...] = ()  # around the launch, outermost first; empty where that was not recorded
    inputs: tuple[Tensor | None, ...] = ()  # of the innermost operator that has some

    @property
    def tensors(self) -> list[Tensor]:
        return [one for one in self.inputs if one is not None]

    def under(self, *names: str) -> bool:
        """Is one of the operators around it called so?"""
        return any(name in names for name in self.operators)


@define(frozen=True)
class HostOperator:
    """Calls of an operator that launched nothing: it computed on the host."""

    name: str
    inputs: tuple[Tensor | None, ...]
    calls: int
    time_ns: int


@define(frozen=True, eq=False)
class HostGaps:
    """How long the host took from launch to launch, within instances."""

    ns: Int64s  # before each row, since the launch of anything
    total_ns: int  # of all launches, those of copies among them


@define(frozen=True, eq=False)
class Origins:
    """The lines that launches come from."""

    which: Int64s  # of each row an index into `places`; UNKNOWN: no line is known
    places: Sequence[Mapping[Place, float]]  # the lines, each with the part of such launches that it makes

    def times(self, time_ns: Floats) -> dict[Place, float]:
        """The sum of some times, one for each row, by line."""
        known = self.which != UNKNOWN
        sums = np.bincount(self.which[known], weights=time_ns[known], minlength=len(self.places))
        found: dict[Place, float] = {}
        for number in np.flatnonzero(sums).tolist():
            for place, part in self.places[number].items():
                found[place] = found.get(place, 0.0) + part * float(sums[number])
        return found

    @staticmethod
    def together(parts: Sequence[Origins | None], rows: Sequence[int]) -> Origins | None:
        """One behind the other; `rows`: of each."""
        if not any(part is not None for part in parts):
            return None
        which, places = [], list[Mapping[Place, float]]()
        for part, length in zip(parts, rows, strict=True):
            one = part or Origins(np.full(length, UNKNOWN, dtype=np.int64), [])
            which.append(np.where(one.which == UNKNOWN, UNKNOWN, one.which + len(places)))
            places += one.places
        return Origins(np.concatenate(which), places)


@define(eq=False)
class Launched:
    """Kernels of the steady instances of a region."""

    kinds: list[LaunchKind]
    which: Int64s  # kind of each row
    time_ns: Int64s
    calls: Int64s  # launches of each row: one, where they are in order
    instances: int = 1
    ordered: bool = True
    scale: float = 1.0  # of all launches of the region, what these stand for
    on_host: Sequence[HostOperator] = ()
    annotations: dict[str, int] = field(factory=dict)  # names of all operators while it ran -> calls
    host_gaps: HostGaps | None = None  # None where there are no operators, or no order
    origins: Origins | None = None  # None where the recording tells of no lines

    @staticmethod
    def of_sums(launches: Launches, places: Mapping[str, Mapping[Place, float]] | None = None) -> Launched:
        """The same from sums alone. `places`: of kernels by name, the lines and the part that each launches."""
        used, which = np.unique(launches.which, return_inverse=True)  # of all kinds of the scope, few are in a region
        kinds = [LaunchKind(launches.kinds[n].kernel_name, launches.kinds[n].family) for n in used.tolist()]
        which = which.reshape(-1)
        origins = Origins(which, [(places or {}).get(kind.kernel, {}) for kind in kinds]) if places else None
        return Launched(kinds, which, launches.time_ns, launches.calls, ordered=False, origins=origins)

    @staticmethod
    def together(parts: Sequence[Launched]) -> Launched:
        """Of several recordings, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part.kinds) for part in parts)]).tolist()
        recorded, whole = (
            sum(float(part.time_ns.sum()) * scale for part, scale in zip(parts, scales, strict=True))
            for scales in ([1.0] * len(parts), [part.scale for part in parts])
        )
        annotations: dict[str, int] = {}
        for part in parts:
            for name, count in part.annotations.items():
                annotations[name] = annotations.get(name, 0) + count
        return Launched(
            [kind for part in parts for kind in part.kinds],
            np.concatenate([part.which + offset for part, offset in zip(parts, before, strict=False)]),
            np.concatenate([part.time_ns for part in parts]),
            np.concatenate([part.calls for part in parts]),
            sum(part.instances for part in parts),
            scale=whole / recorded if recorded else 1.0,
            on_host=sorted((one for part in parts for one in part.on_host), key=lambda one: -one.time_ns),
            annotations=annotations,
            origins=Origins.together([part.origins for part in parts], [len(part) for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.which)

    @property
    def has_operators(self) -> bool:
        return bool(self.annotations) or any(kind.operators for kind in self.kinds)

    def fits(self, test: Callable[[LaunchKind], bool]) -> Bools:
        """Rows whose kind passes a test, which is asked once for each kind."""
        passing = [test(kind) for kind in self.kinds]
        return np.array(passing, dtype=np.bool_)[self.which] if any(passing) else np.zeros(len(self), dtype=np.bool_)

    def time(self, rows: Bools) -> float:
        """Of some rows, in ns, for all steady instances."""
        return float(self.time_ns[rows].sum()) * self.scale

    def lines(self, rows: Bools) -> dict[Place, float]:
        """The same by the line that each launch comes from, as far as that is known."""
        if self.origins is None:
            return {}
        return self.origins.times(np.where(rows, self.time_ns, 0) * self.scale)

    def sum(self, rows: Bools, value: Callable[[LaunchKind], float | None]) -> float | None:
        """A value of each kind added up over the launches of some rows; None where it is not known of one of them."""
        counts = np.bincount(self.which[rows], weights=self.calls[rows], minlength=len(self.kinds))
        total = 0.0
        for number in np.flatnonzero(counts).tolist():
            one = value(self.kinds[number])
            if one is None:
                return None
            total += one * counts[number] * self.scale
        return total


def _merged(parts: list[Int64s]) -> Int64s:
    """Kernels are numbered as they began."""
    return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))


class LaunchTable:
    """All kernels of a timeline with their operators; answers for many regions."""

    def __init__(
        self, timeline: Timeline, attribution: Attribution, origins: Callable[[Int64s], Origins] | None = None
    ) -> None:
        """`origins`: which lines some kernels come from; None where nothing tells."""
        self._timeline, self._attribution, self._origins = timeline, attribution, origins
        # Kernels of each region itself, domain by domain; those of regions inside it are asked for with it.
        groups = [group for regions in attribution.kernels.by_domain for group in group_by(regions)]
        self._own = [(region, part) for region, part in groups if region != ROOT]
        self._own_regions = np.array([region for region, _ in self._own], dtype=np.int64)
        self._parent, self._depth = attribution.table.arrays()
        self._known: dict[tuple[int, tuple[int, ...]], Launched | None] = {}
        self._kinds: dict[tuple[int, int], LaunchKind] = {}
        self._paths: dict[tuple[int, int, int], int] = {}
        self._path_list: list[tuple[tuple[str, ...], int]] = [((), UNKNOWN)]
        self._stacks: dict[int, tuple[Stacks, dict[int, int]] | None] = {}  # by thread: of operators, and their paths
        self._calls_in_order = np.argsort(timeline.calls.start, kind="stable")

    @cached_property
    def _launch_times(self) -> Int64s:
        return np.sort(np.concatenate([self._timeline.kernels.host_time, self._timeline.copies.host_time]))

    @cached_property
    def _times(self) -> Int64s:
        """Of all kernels in each region and below it, where it is one of a stack of ranges."""
        kernels, count = self._timeline.kernels, len(self._parent)
        own = np.zeros(count)
        for part in blocks(len(kernels)):
            duration = kernels.end[part] - kernels.start[part]
            for regions in self._attribution.kernels.by_domain:
                own += np.bincount(regions[part] + 1, weights=duration, minlength=count + 1)[1:]
        return add_up(own.astype(np.int64), self._parent, self._depth)

    def of(self, region: int, processes: Sequence[int], windows: tuple[Int64s, Int64s]) -> Launched | None:
        """Kernels of a region in some processes; None where there are none. `windows`: its instances on the host."""
        key = region, tuple(processes)
        if key not in self._known:  # scopes of the same processes ask for the same
            self._known[key] = self._of(region, processes, windows)
        return self._known[key]

    def _of(self, region: int, processes: Sequence[int], windows: tuple[Int64s, Int64s]) -> Launched | None:
        kernels = self._timeline.kernels
        parts = self._parts(region)
        if len(self._timeline.processes) > 1:
            parts = [part[np.isin(kernels.process[part], processes)] for part in parts]
        if not any(len(part) for part in parts):
            return None
        chosen = self._last(parts, windows[0], in_order=region not in self._attribution.kernels.start_end)
        if len(processes) > 1:
            chosen = chosen[np.argsort(kernels.process[chosen], kind="stable")]
        everything = len(self._timeline.processes) == 1 and not len(self._attribution.kernels.pieces(region))
        whole = self._times[region] if everything else sum((kernels.end[p] - kernels.start[p]).sum() for p in parts)
        time = kernels.end[chosen] - kernels.start[chosen]
        pairs = self._paths_of(chosen) * (len(self._timeline.strings) + 1) + kernels.name[chosen]
        used, which = np.unique(pairs, return_inverse=True)
        on_host, annotations = self._without_launches(windows)
        return Launched(
            [self._kind(*divmod(pair, len(self._timeline.strings) + 1)) for pair in used.tolist()],
            which.reshape(-1),
            time,
            np.ones(len(chosen), dtype=np.int64),
            len(windows[0]),
            scale=float(whole / time.sum()) if time.sum() else 1.0,
            on_host=on_host,
            annotations=annotations,
            host_gaps=self._host_gaps(kernels.host_time[chosen], np.sort(windows[0])) if annotations else None,
            origins=self._origins(chosen) if self._origins is not None else None,
        )

    def _last(self, parts: list[Int64s], starts: Int64s, *, in_order: bool) -> Int64s:
        """Kernels of the last instances, whole ones, that have enough of them. `in_order`: the parts are sorted."""
        if sum(map(len, parts)) <= _ENOUGH:
            return _merged(parts)
        starts, launched = np.sort(starts), self._timeline.kernels.host_time
        quick = in_order and self._ran_as_launched  # then the last of each part are enough to look at
        members = np.concatenate([part[-_ENOUGH:] for part in parts]) if quick else _merged(parts)
        times = launched[members]
        latest = np.partition(times, len(times) - _ENOUGH)[len(times) - _ENOUGH]  # before it are not enough
        first = int(np.searchsorted(starts, latest, side="right"))
        if not quick:
            return members[times >= starts[first - 1]][:_MOST] if first else members[:_MOST]
        begin = np.searchsorted(launched, starts[first - 1]) if first else 0
        return _merged([part[np.searchsorted(part, begin) :] for part in parts])[:_MOST]

    @cached_property
    def _ran_as_launched(self) -> bool:
        launched = self._timeline.kernels.host_time
        return bool((launched[1:] >= launched[:-1]).all())

    def _parts(self, region: int) -> list[Int64s]:
        """Kernels of a region in parts, none of them in two."""
        above = self._own_regions.copy()
        while len(deeper := np.flatnonzero(self._depth[above] > self._depth[region])):
            above[deeper] = self._parent[above[deeper]]
        parts = [self._own[number][1] for number in np.flatnonzero(above == region).tolist()]
        more = self._attribution.kernels.pieces(region)
        return [*parts, more] if len(more) else parts

    def _host_gaps(self, launched: Int64s, starts: Int64s) -> HostGaps:
        """`launched`: kernels in their order. `starts`: of the instances that they are in."""
        instance = np.searchsorted(starts, launched, side="right") - 1
        since_start = np.where(instance >= 0, launched - starts[instance], 0)
        before = np.searchsorted(self._launch_times, launched) - 1
        since_any = np.where(before >= 0, launched - self._launch_times[before], since_start)
        since_kernel = np.diff(launched, prepend=launched[:1])
        known = (launched != UNKNOWN) & (since_kernel >= 0)
        # Kernels of a graph are launched at once: its first has the gap.
        again = np.append(False, since_kernel[1:] == 0)
        gaps = np.where(known & ~again, np.clip(since_any, 0, since_start), 0)
        return HostGaps(gaps, int(np.where(known, np.minimum(since_kernel, since_start), 0).sum()))

    def _kind(self, path: int, name: int) -> LaunchKind:
        kind = self._kinds.get((path, name))
        if kind is None:
            operators, inputs = self._path_list[path]
            kernel = self._timeline.strings[name]
            kind = LaunchKind(kernel, family_of(kernel), operators, self._inputs(inputs))
            self._kinds[path, name] = kind
        return kind

    def _inputs(self, text: int) -> tuple[Tensor | None, ...]:
        return from_text(self._timeline.strings[text]) if text != UNKNOWN else ()

    def _paths_of(self, chosen: Int64s) -> Int64s:
        """Of some kernels, the operators around the launch of each as an index into `_path_list`."""
        kernels, calls = self._timeline.kernels, self._timeline.calls
        found = np.zeros(len(chosen), dtype=np.int64)
        # At the launch of a graph, the operators are not those that its kernels were captured in.
        single = (kernels.graph_node[chosen] == UNKNOWN) & (kernels.host_time[chosen] != UNKNOWN)
        for thread, mine in group_by(kernels.thread[chosen]):
            launches = mine[single[mine]]
            operators = self._operators_of(thread) if len(launches) else None
            if operators is None:
                continue
            stacks, known = operators
            tops, which = np.unique(stacks.top_at(kernels.host_time[chosen[launches]]), return_inverse=True)
            instance, parent = stacks.instance, stacks.parent
            for node in tops.tolist():
                above: list[int] = []
                while node not in known and len(above) < _DEEPEST:
                    above.append(node)
                    node = int(parent[node])
                path = known.get(node, 0)
                for one in reversed(above):
                    call = int(instance[one])
                    path = known[one] = self._path(path, int(calls.name[call]), int(calls.inputs[call]))
            found[launches] = np.array([known[top] for top in tops.tolist()], dtype=np.int64)[which.reshape(-1)]
        return found

    def _operators_of(self, thread: int) -> tuple[Stacks, dict[int, int]] | None:
        """Stacks of the operators of a thread, and the path of each node once it is known; None where it has none."""
        if thread not in self._stacks:
            calls = self._timeline.calls
            mine = np.flatnonzero(calls.thread == thread)
            self._stacks[thread] = (build_stacks(calls.start, calls.end, mine), {UNKNOWN: 0}) if len(mine) else None
        return self._stacks[thread]

    def _path(self, above: int, name: int, inputs: int) -> int:
        number = self._paths.get((above, name, inputs))
        if number is None:
            number = self._paths[above, name, inputs] = len(self._path_list)
            operators, given = self._path_list[above]
            self._path_list.append(((*operators, self._timeline.strings[name]), inputs if inputs != UNKNOWN else given))
        return number

    def _without_launches(self, windows: tuple[Int64s, Int64s]) -> tuple[list[HostOperator], dict[str, int]]:
        """Long operators in some windows that launched nothing, the outermost; and how often each name came."""
        calls = self._timeline.calls
        if not len(calls):
            return [], {}
        launched = self._launch_times
        starts, ends = (np.sort(side) for side in windows)
        first = np.searchsorted(calls.start, starts, sorter=self._calls_in_order)  # call of each window
        within = self._calls_in_order[first[0] if len(first) else len(calls) :]
        until = np.repeat(ends, np.diff(np.append(first, len(calls))))
        inside = within[calls.end[within] <= until]
        names = np.bincount(calls.name[inside])
        counted = {self._timeline.strings[n]: int(names[n]) for n in np.flatnonzero(names).tolist()}
        long = inside[calls.end[inside] - calls.start[inside] >= _LONG]
        first, last = (np.searchsorted(launched, side[long]) for side in (calls.start, calls.end))
        quiet = long[first == last]
        quiet = quiet[np.lexsort((-calls.end[quiet], calls.start[quiet]))]
        found: dict[tuple[int, int], list[int]] = {}
        over = -1
        for call in quiet.tolist():
            if calls.start[call] >= over:  # of those inside each other, the outermost
                over = int(calls.end[call])
                length = int(calls.end[call] - calls.start[call])
                found.setdefault((int(calls.name[call]), int(calls.inputs[call])), []).append(length)
        made = [
            HostOperator(self._timeline.strings[name], self._inputs(inputs), len(times), sum(times))
            for (name, inputs), times in found.items()
        ]
        return sorted(made, key=lambda one: -one.time_ns), counted
