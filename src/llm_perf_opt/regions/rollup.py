"""Roll-up: from the attribution of single launches to columns of values per region, for one scope."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from attrs import define, fields

from llm_perf_opt.regions.attribution import Attribution, Membership
from llm_perf_opt.regions.blocks import blocks, blocks_of, taken
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int32s, Int64s, Timeline, Work
from llm_perf_opt.regions.communication import collective_times
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.intervals import BusyTime, overlapping, union_by_group
from llm_perf_opt.regions.kernel_rows import KernelRows, exclusive_rows, lift, rows_of_all
from llm_perf_opt.regions.merged_work import merged_work
from llm_perf_opt.regions.table import ROOT, add_up, levels_up


@define(eq=False)
class Sums:
    """Per-region sums of one kind of work."""

    count: Int64s
    time: Int64s
    bytes: Int64s


@define(eq=False)
class GpuWork:
    """All that regions had the GPU do."""

    kernels: Sums
    copies: Sums  # and fills
    graphs: Sums  # recorded as one block
    host_copies: Sums  # of the copies: between host and device
    device_copies: Sums  # of the copies: within a device
    uploads: Sums  # of those between host and device: to the device
    peers: Sums  # of those: from one device to another
    migrations: Sums  # of those: pages of unified memory
    pageable: Sums  # of those between host and device: from or to memory that is not pinned
    pinned: Sums  # of those between host and device: from or to pinned memory

    def converted(self, convert: Callable[[Int64s], Int64s]) -> GpuWork:
        """The same with other values, column by column."""
        kinds = (getattr(self, f.name) for f in fields(GpuWork))
        return GpuWork(*(Sums(convert(k.count), convert(k.time), convert(k.bytes)) for k in kinds))


@define(eq=False)
class RolledUp:
    """All values of a scope, one element per region of the table."""

    exclusive: GpuWork
    inclusive: GpuWork
    instances: Int64s  # of the range; for a region known through graphs only, launches of those graphs
    range_instances: Int64s  # of the range alone
    wall: Int64s
    idle: Int64s
    busy: Int64s
    collective: Int64s
    exposed: Int64s  # of the collectives' time, no other kernel ran on their device
    adopted: Int64s
    graph_kernels: Int64s
    graph_replays: Int64s  # launches of graphs whose kernels were recorded one by one
    kernel_rows: list[KernelRows]  # one per nesting level: inclusive rows of the regions at that level
    all_kernels: KernelRows  # region column is 0: the whole scope
    scope_busy: int
    present: Bools  # region has an instance or work in this scope


@define(eq=False)
class Selection:
    """What of a timeline a scope holds: index arrays, and the processes whose ranges count."""

    kernels: Int64s  # those counted: of the scope, and let through by the kernel filter
    scope_kernels: Int64s  # all of the scope: busy and idle time do not depend on the filter
    copies: Int64s
    graphs: Int64s
    ranges: Int64s

    def work(self, timeline: Timeline) -> list[tuple[Work, Int64s]]:
        """All that the GPU did in the scope, whatever the filter: columns, and which of their elements."""
        return list(zip(timeline.work, (self.scope_kernels, self.copies, self.graphs), strict=True))


def roll_up(timeline: Timeline, attribution: Attribution, selection: Selection) -> RolledUp:
    """Values of every region over the selected work."""
    table, kernels = attribution.table, timeline.kernels
    parent, depth = table.arrays()
    count = len(table)

    def inclusive(values: Int64s) -> Int64s:
        return add_up(values, parent, depth)

    def copies(chosen: Int64s) -> Sums:
        return _sums(timeline.copies, attribution.copies, chosen, count)

    own = GpuWork(
        kernels=_sums(kernels, attribution.kernels, selection.kernels, count),
        copies=copies(selection.copies),
        graphs=_sums(timeline.graphs, attribution.graphs, selection.graphs, count),
        **{kind: copies(chosen) for kind, chosen in copies_by_kind(timeline, selection).items()},
    )
    everything = own.converted(inclusive)
    region_of = attribution.range_region[selection.ranges]
    range_instances = np.bincount(region_of, minlength=count).astype(np.int64)
    wall, idle = _wall_and_idle(timeline, selection, region_of, count)
    chosen_mask = np.zeros(len(kernels), dtype=np.bool_)
    chosen_mask[selection.kernels] = True
    in_graph = chosen_mask & (kernels.graph_node != UNKNOWN)
    graph_replays = _graph_launches(kernels, attribution.kernels, np.flatnonzero(in_graph), parent, depth)
    collective = collective_times(timeline, attribution.kernels, selection.scope_kernels, parent, depth)
    instances = np.where(range_instances > 0, range_instances, graph_replays)
    all_kernels = rows_of_all(kernels, selection.kernels, kernels.name)
    has_work = [sums.count > 0 for sums in (everything.kernels, everything.copies, everything.graphs)]
    return RolledUp(
        exclusive=own,
        inclusive=everything,
        instances=instances,
        range_instances=range_instances,
        wall=wall,
        idle=idle,
        busy=_busy(timeline, attribution, selection, parent, depth),
        collective=collective.total,
        exposed=collective.exposed,
        adopted=inclusive(_tally(attribution.kernels, chosen_mask & attribution.kernels.adopted, count)),
        graph_kernels=inclusive(_tally(attribution.kernels, in_graph, count)),
        graph_replays=graph_replays,
        kernel_rows=lift(
            exclusive_rows(kernels, attribution, selection.kernels, kernels.name, all_kernels), attribution
        ),
        all_kernels=all_kernels,
        scope_busy=_device_busy(timeline, selection),
        present=np.logical_or.reduce([instances > 0, *has_work]),
    )


# `[memcpy Host-to-Device]` of nsys, `Memcpy HtoD (Pinned -> Device)` of PyTorch; unified memory migrates likewise, and
# copies between GPUs go over a link, too.
_HOST_COPY = re.compile(r"host-to-device|device-to-host|htod|dtoh|peer-to-peer|ptop", re.IGNORECASE)
_PEER_COPY = re.compile(r"peer-to-peer|ptop", re.IGNORECASE)
_UNIFIED = re.compile(r"memcpy unified ", re.IGNORECASE)
_MIGRATION = re.compile(r"memcpy unified [^,]*$", re.IGNORECASE)  # not those that were prefetched
_UPLOAD = re.compile(r"host-to-device|htod", re.IGNORECASE)
_DEVICE_COPY = re.compile(r"device-to-device|dtod", re.IGNORECASE)


def host_copies(timeline: Timeline) -> Int64s:
    """Which copies are between host and device, or from device to device over a link."""
    return np.flatnonzero(_called(_HOST_COPY, timeline, timeline.copies.name))


def copies_by_kind(timeline: Timeline, selection: Selection) -> dict[str, Int64s]:
    """Which of the selected copies go where, and between which memory, by the fields of `GpuWork`."""
    kinds = {"host_copies": _HOST_COPY, "device_copies": _DEVICE_COPY, "uploads": _UPLOAD}
    kinds |= {"peers": _PEER_COPY, "migrations": _MIGRATION}
    found = {kind: _copies_called(pattern, timeline, selection) for kind, pattern in kinds.items()}
    between, pageable = found["host_copies"], timeline.copies.pageable
    unified = _copies_called(_UNIFIED, timeline, selection)
    between = between[~np.isin(between, np.append(found["peers"], unified))]  # nobody pins those
    found["pageable"] = between[:0] if pageable is None else between[pageable[between]]
    found["pinned"] = between[:0] if pageable is None else between[~pageable[between]]
    return found


def _copies_called(pattern: re.Pattern[str], timeline: Timeline, selection: Selection) -> Int64s:
    """Which of the selected copies and fills have such a name."""
    return selection.copies[_called(pattern, timeline, timeline.copies.name[selection.copies])]


def _called(pattern: re.Pattern[str], timeline: Timeline, names: Int32s) -> Bools:
    return np.isin(names, [n for n in distinct(names).tolist() if n >= 0 and pattern.search(timeline.strings[n])])


def _graph_launches(kernels: Work, membership: Membership, inside: Int64s, parent: Int64s, depth: Int64s) -> Int64s:
    """How many graph launches each region had a part in."""
    result = np.zeros(len(parent), dtype=np.int64)
    if not len(inside):
        return result
    # A launch is known by its process and moment.
    moments = np.stack([kernels.process[inside], kernels.host_time[inside]], axis=1)
    launch = np.unique(moments, axis=0, return_inverse=True)[1].reshape(-1)
    width = len(inside) + 1
    for regions in membership.by_domain:
        mine = regions[inside]
        launches = launch[mine != ROOT]
        for current, here in levels_up(mine[mine != ROOT], parent, depth):
            pairs = np.unique(current[here] * width + launches[here])
            result += np.bincount(pairs // width, minlength=len(parent))
    if membership.start_end:
        region, members = membership.start_end_members(inside)
        numbered = np.full(len(kernels), UNKNOWN, dtype=np.int64)
        numbered[inside] = launch
        pairs = np.unique(region * width + numbered[members])
        result += np.bincount(pairs // width, minlength=len(parent))
    if membership.whole is not None:
        result[membership.whole] += int(launch.max()) + 1
    return result


def _sums(work: Work, membership: Membership, chosen: Int64s, count: int) -> Sums:
    """Count, time and bytes of each region's own work."""
    counts, times, sizes = np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count)
    if count == 0:
        return Sums(counts, counts.copy(), counts.copy())
    for which in blocks_of(chosen, len(work)):
        duration = work.end[which] - work.start[which]
        for regions in membership.by_domain:
            mine = regions[which] + 1  # ROOT is -1: bin 0 collects what is outside
            counts += np.bincount(mine, minlength=count + 1)[1:]
            times += np.bincount(mine, weights=duration, minlength=count + 1)[1:]
            if work.bytes is not None:
                sizes += np.bincount(mine, weights=work.bytes[which], minlength=count + 1)[1:]
        if membership.whole is not None:
            counts[membership.whole] += len(duration)
            times[membership.whole] += duration.sum()
            sizes[membership.whole] += 0 if work.bytes is None else work.bytes[which].sum()
    if membership.start_end:
        region, members = membership.start_end_members(chosen)
        counts += np.bincount(region, minlength=count)
        times += np.bincount(region, weights=work.end[members] - work.start[members], minlength=count)
        if work.bytes is not None:
            sizes += np.bincount(region, weights=work.bytes[members], minlength=count)
    return Sums(counts, times.astype(np.int64), sizes.astype(np.int64))


def _tally(membership: Membership, mask: Bools, count: int) -> Int64s:
    """How many marked pieces each region holds itself."""
    result = np.zeros(count, dtype=np.int64)
    if count == 0 or not mask.any():
        return result
    for regions in membership.by_domain:
        mine = regions[mask]
        result += np.bincount(mine[mine != ROOT], minlength=count)
    for region, members in membership.start_end.items():
        result[region] += int(mask[members].sum())
    if membership.whole is not None:
        result[membership.whole] += int(mask.sum())
    return result


def _wall_and_idle(timeline: Timeline, selection: Selection, region_of: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Host time of the instances, and the part of it in which their process had the GPU do nothing."""
    ranges = timeline.ranges
    start, end = ranges.start[selection.ranges], ranges.end[selection.ranges]
    duration = ranges.duration[selection.ranges]
    active = np.zeros(len(duration), dtype=np.int64)
    process_of = ranges.process[selection.ranges]
    for process in distinct(process_of).tolist():
        if _is_whole(timeline, selection):
            busy = merged_work(timeline, process).busy
        else:
            parts = [(work.start[chosen], work.end[chosen]) for work, chosen in _all_work(timeline, selection, process)]
            busy = BusyTime.of(*(np.concatenate(side) for side in zip(*parts, strict=True)))
        mine = np.flatnonzero(process_of == process)
        active[mine] = busy.within(start[mine], end[mine])
    wall = np.bincount(region_of, weights=duration, minlength=count).astype(np.int64)
    idle = np.bincount(region_of, weights=duration - active, minlength=count).astype(np.int64)
    return wall, idle


def _is_whole(timeline: Timeline, selection: Selection) -> bool:
    """Does the scope hold all that the GPU did?"""
    return all(len(chosen) == len(work) for work, chosen in selection.work(timeline))


def _all_work(timeline: Timeline, selection: Selection, process: int) -> list[tuple[Work, Int64s]]:
    """The scope's work of one process, of every kind."""
    columns = selection.work(timeline)
    if len(timeline.processes) == 1:
        return columns
    return [(work, chosen[work.process[chosen] == process]) for work, chosen in columns]


def _busy(timeline: Timeline, attribution: Attribution, selection: Selection, parent: Int64s, depth: Int64s) -> Int64s:
    """Union of each region's own and nested work, processes added up."""
    total = np.zeros(len(parent), dtype=np.int64)
    memberships = attribution.memberships
    for process in range(len(timeline.processes)):
        columns = _all_work(timeline, selection, process)
        order: Int64s | None
        if _is_whole(timeline, selection):
            known = merged_work(timeline, process)
            start, end, order = known.start, known.end, known.order
        else:
            start, end = (
                np.concatenate([getattr(work, side)[chosen] for work, chosen in columns]) for side in ("start", "end")
            )
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        if len(start) == 0:
            continue
        # Work that runs alone adds its duration to every region around it. Only where work runs side
        # by side, seldom with one stream, does it matter that a union is not a sum.
        crowded = overlapping(start, end)
        alone = np.where(crowded, 0, end - start)
        if order is not None:  # regions are listed kind by kind
            in_order, alone = alone, np.empty_like(alone)
            alone[order] = in_order
        beside = np.flatnonzero(crowded)
        listed = beside if order is None else order[beside]
        for domain in range(len(timeline.domains)):
            own, regions = np.zeros(len(parent)), np.empty(len(beside), dtype=np.int64)
            begin = 0
            for (work, chosen), membership in zip(columns, memberships, strict=True):
                of_domain, time = membership.by_domain[domain], alone[begin : begin + len(chosen)]
                for part, which in zip(blocks(len(chosen)), blocks_of(chosen, len(work)), strict=True):
                    own += np.bincount(of_domain[which] + 1, weights=time[part], minlength=len(parent) + 1)[1:]
                mine = (listed >= begin) & (listed < begin + len(chosen))
                regions[mine] = of_domain[chosen[listed[mine] - begin]]
                begin += len(chosen)
            total += add_up(own.astype(np.int64), parent, depth)
            total += _busy_by_level(regions, start[beside], end[beside], parent, depth)
        total += _busy_start_end(columns, memberships, len(parent))
        if (whole := attribution.kernels.whole) is not None:
            everything = _is_whole(timeline, selection)
            busy = merged_work(timeline, process).busy if everything else BusyTime.of(start, end)
            total[whole] += busy.total
    return total


def _device_busy(timeline: Timeline, selection: Selection) -> int:
    """How long the devices were busy: a union on each, whoever used it, added up."""
    columns = selection.work(timeline)
    devices = distinct(*(taken(work.device, chosen) for work, chosen in columns)).tolist()
    if len(devices) == 1 and len(timeline.processes) == 1 and _is_whole(timeline, selection):
        return merged_work(timeline, 0).busy.total
    device, start, end = (
        np.concatenate([getattr(work, name)[chosen] for work, chosen in columns]) for name in ("device", "start", "end")
    )
    return sum(BusyTime.of(start[device == d], end[device == d]).total for d in devices)


def _busy_by_level(regions: Int64s, start: Int64s, end: Int64s, parent: Int64s, depth: Int64s) -> Int64s:
    """Unions of nested regions: level by level from the deepest, work moves up to its ancestor."""
    total = np.zeros(len(parent), dtype=np.int64)
    inside = regions != ROOT
    start, end = start[inside], end[inside]
    for current, here in levels_up(regions[inside], parent, depth):
        total += union_by_group(current[here], start[here], end[here], len(parent))
    return total


def _busy_start_end(columns: list[tuple[Work, Int64s]], memberships: tuple[Membership, ...], count: int) -> Int64s:
    """Unions of start/end regions, all at once."""
    if not any(membership.start_end for membership in memberships):
        return np.zeros(count, dtype=np.int64)
    groups, starts, ends = [], [], []
    for (work, chosen), membership in zip(columns, memberships, strict=True):
        region, members = membership.start_end_members(chosen)
        groups.append(region)
        starts.append(work.start[members])
        ends.append(work.end[members])
    group, start, end = (np.concatenate(parts) for parts in (groups, starts, ends))
    order = np.argsort(start, kind="stable")
    return union_by_group(group[order], start[order], end[order], count)
