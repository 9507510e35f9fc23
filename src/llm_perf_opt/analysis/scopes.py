"""Scopes of a timeline: each process, each device, each rank, and everything together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from attrs import define, fields

from llm_perf_opt.regions.columns import Bools, Int32s, Int64s, Timeline, Work
from llm_perf_opt.regions.rollup import Selection

AGGREGATE = "aggregate"
T = TypeVar("T")


@define(frozen=True)
class ProcessUse:
    """A process and the devices it used."""

    pid: int
    rank: int | None
    devices: frozenset[int]


@define(frozen=True)
class ScopeName:
    """One scope of a report, before anything is in it."""

    name: str
    members: list[int]  # the processes in it, as indices
    process_id: int | None  # where there is but one
    device: int | None


@define(eq=False)
class ScopePart:
    """One scope of a timeline: its name, what it holds, and the process or device it stands for."""

    name: str
    selection: Selection
    process_id: int | None
    device: int | None
    process: ProcessUse | None = None  # in the scope of a process


def name_scopes(processes: Sequence[ProcessUse], ranks: Iterable[int], aggregate: bool) -> list[ScopeName]:
    """All scopes of some processes, in the order of a report."""

    def scope(name: str, members: Iterable[int], device: int | None) -> ScopeName:
        chosen = list(members)
        return ScopeName(name, chosen, processes[chosen[0]].pid if len(chosen) == 1 else None, device)

    found = []
    pids = Counter(process.pid for process in processes)
    seen: Counter[int] = Counter()
    for number, process in enumerate(processes):
        seen[process.pid] += 1
        # Two hosts may use the same process id.
        label = f"process:{process.pid}" + (f"#{seen[process.pid]}" if pids[process.pid] > 1 else "")
        found.append(scope(label, [number], only(process.devices)))
    devices = sorted({device for process in processes for device in process.devices})
    for device in devices:
        found.append(scope(f"device:{device}", (i for i, p in enumerate(processes) if device in p.devices), device))
    for rank in sorted(ranks):
        found.append(scope(f"rank:{rank}", (i for i, p in enumerate(processes) if p.rank == rank), None))
    if aggregate:
        found.append(scope(AGGREGATE, range(len(processes)), only(devices)))
    return found


def only(values: Iterable[T]) -> T | None:
    """The one value there is; None where there are several, or none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def timeline_scopes(timeline: Timeline, kernel_mask: Bools | None, aggregate: bool) -> list[ScopePart]:
    """All scopes of a timeline. `kernel_mask`: the kernels let through by the user's filter."""
    pairs = {pair for work in timeline.work for pair in _pairs(work)}
    numbers = sorted({process for process, _ in pairs}) or _without_work(timeline)
    processes = [
        ProcessUse(timeline.processes[n].pid, timeline.processes[n].rank, frozenset(d for p, d in pairs if p == n))
        for n in numbers
    ]
    parts = []
    everything = np.arange(max(len(work) for work in timeline.work))
    for scope in name_scopes(processes, {p.rank for p in processes if p.rank is not None}, aggregate):
        whole = scope.name == AGGREGATE
        members = set(range(len(timeline.processes))) if whole else {numbers[i] for i in scope.members}
        selection = _select(timeline, kernel_mask, members, None if whole else scope.device, everything)
        process = processes[scope.members[0]] if scope.name.startswith("process:") else None
        parts.append(ScopePart(scope.name, selection, scope.process_id, scope.device, process))
    return parts


def _without_work(timeline: Timeline) -> list[int]:
    """Of a program that was only timed: its ranks, or else the processes that opened ranges, or else the first."""
    ranks = [n for n, process in enumerate(timeline.processes) if process.rank is not None]
    return ranks or np.unique(timeline.ranges.process).tolist() or list(range(len(timeline.processes)))[:1]


def _pairs(work: Work) -> set[tuple[int, int]]:
    """Which processes used which devices."""
    if len(work) == 0:
        return set()
    process, device = work.process, work.device
    if (process == process[0]).all() and (device == device[0]).all():
        return {(int(process[0]), int(device[0]))}
    both = np.unique(process.astype(np.int64) << 32 | device)
    return {(pair >> 32, pair & 0xFFFFFFFF) for pair in both.tolist()}


def _select(
    timeline: Timeline, kernel_mask: Bools | None, processes: set[int], device: int | None, everything: Int64s
) -> Selection:
    """`everything`: 0, 1, … as far as needed, shared by scopes that hold all."""

    def chosen(work: Work) -> Int64s:
        mask = _in(work.process, processes, len(timeline.processes))
        if device is not None:
            on_device = work.device == device
            mask = on_device if mask is None else mask & on_device
        return everything[: len(work)] if mask is None or mask.all() else np.flatnonzero(mask)

    kernels = chosen(timeline.kernels)
    ranges = _in(timeline.ranges.process, processes, len(timeline.processes))
    return Selection(
        kernels=kernels if kernel_mask is None else kernels[kernel_mask[kernels]],
        scope_kernels=kernels,
        copies=chosen(timeline.copies),
        graphs=chosen(timeline.graphs),
        ranges=np.arange(len(timeline.ranges)) if ranges is None else np.flatnonzero(ranges),
    )


def _in(process: Int32s, wanted: set[int], total: int) -> Bools | None:
    """Mask of the wanted processes; None where that is everybody."""
    if len(wanted) >= total:
        return None
    return np.isin(process, sorted(wanted))


def same_selection(a: Selection, b: Selection) -> bool:
    """Two scopes that hold the same work need to be computed only once."""
    pairs = ((getattr(a, column.name), getattr(b, column.name)) for column in fields(Selection))
    return all(_same(x, y) for x, y in pairs)


def _same(x: Int64s, y: Int64s) -> bool:
    same_memory = len(x) == len(y) and x.ctypes.data == y.ctypes.data  # of all there is, in both
    return same_memory or np.array_equal(x, y)
