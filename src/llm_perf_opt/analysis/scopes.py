"""Scopes of a timeline: each process, each device, each rank, and everything together."""

from __future__ import annotations

from collections import Counter

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import Bools, Int32s, Int64s, Timeline, Work
from llm_perf_opt.regions.rollup import Selection

AGGREGATE = "aggregate"


@define(eq=False)
class ScopePart:
    """One scope: its name, what it holds, and the process or device it stands for."""

    name: str
    selection: Selection
    process_id: int | None
    device: int | None
    devices: frozenset[int] = frozenset()  # of a process: those it used
    rank: int | None = None  # of a process


def timeline_scopes(timeline: Timeline, kernel_mask: Bools | None, aggregate: bool) -> list[ScopePart]:
    """All scopes of a timeline. `kernel_mask`: the kernels let through by the user's filter."""
    parts = []
    pairs = sorted({pair for work in timeline.work for pair in _pairs(work)})
    busy = sorted({process for process, _ in pairs})
    pids = Counter(timeline.processes[p].pid for p in busy)
    seen: Counter[int] = Counter()
    processes = busy or list(range(len(timeline.processes)))[:1]
    devices = sorted({device for _, device in pairs})
    only_device = devices[0] if len(devices) == 1 else None
    only_pid = timeline.processes[processes[0]].pid if len(processes) == 1 else None
    for process in processes:
        pid = timeline.processes[process].pid
        seen[pid] += 1
        # Two hosts may use the same process id.
        label = f"process:{pid}" if pids[pid] < 2 else f"process:{pid}#{seen[pid]}"
        on = frozenset(d for p, d in pairs if p == process)
        parts.append(
            ScopePart(
                label,
                _select(timeline, kernel_mask, {process}, None),
                pid,
                next(iter(on)) if len(on) == 1 else None,
                on,
                timeline.processes[process].rank,
            )
        )
    for device in devices:
        users = {p for p, d in pairs if d == device}
        pid_of = timeline.processes[next(iter(users))].pid if len(users) == 1 else None
        parts.append(ScopePart(f"device:{device}", _select(timeline, kernel_mask, users, device), pid_of, device))
    ranks: dict[int, set[int]] = {}
    for process in processes:
        rank = timeline.processes[process].rank
        if rank is not None:
            ranks.setdefault(rank, set()).add(process)
    for rank in sorted(ranks):
        only = timeline.processes[next(iter(ranks[rank]))].pid if len(ranks[rank]) == 1 else None
        parts.append(ScopePart(f"rank:{rank}", _select(timeline, kernel_mask, ranks[rank], None), only, None))
    if aggregate:
        everyone = set(range(len(timeline.processes)))
        parts.append(ScopePart(AGGREGATE, _select(timeline, kernel_mask, everyone, None), only_pid, only_device))
    return parts


def _pairs(work: Work) -> set[tuple[int, int]]:
    """Which processes used which devices."""
    if len(work) == 0:
        return set()
    process, device = work.process, work.device
    if (process == process[0]).all() and (device == device[0]).all():
        return {(int(process[0]), int(device[0]))}
    both = np.unique(process.astype(np.int64) << 32 | device)
    return {(pair >> 32, pair & 0xFFFFFFFF) for pair in both.tolist()}


def _select(timeline: Timeline, kernel_mask: Bools | None, processes: set[int], device: int | None) -> Selection:
    def chosen(work: Work) -> Int64s:
        mask = _in(work.process, processes, len(timeline.processes))
        if device is not None:
            on_device = work.device == device
            mask = on_device if mask is None else mask & on_device
        return everything[: len(work)] if mask is None or mask.all() else np.flatnonzero(mask)

    everything = np.arange(max(len(work) for work in timeline.work))

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
    return all(
        len(x) == len(y) and (x is y or bool((x == y).all()))
        for x, y in (
            (a.kernels, b.kernels),
            (a.scope_kernels, b.scope_kernels),
            (a.copies, b.copies),
            (a.graphs, b.graphs),
            (a.ranges, b.ranges),
        )
    )
