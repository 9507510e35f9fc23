"""Which region does each piece of GPU work belong to?

Work belongs to the ranges that were open when the host *launched* it, not when the GPU ran it:

- ``thread``: the push/pop ranges open on the launching thread, and start/end ranges begun by that
  thread. This is what ``nsys stats`` computes, to the nanosecond.
- ``process``: all ranges open in the launching process, merged into one stack by the rule of `stacks`.
- ``auto``: the launching thread's own push/pop ranges; where it has none open (autograd's thread,
  workers), those of the process. Such work is counted as adopted. Start/end ranges belong to the
  process, as ncu has it. Ranges that PyTorch's autograd engine opens on its threads (``emit_nvtx``)
  lie inside those of the thread that called backward: what was open in the process when they began.

Work inside a CUDA graph belongs to the ranges around the graph's launch and, below them, to the ranges
that were open when its node was captured (not with ``thread``: nsys does not look there). Names that
both paths begin with are not repeated: a graph captured inside the first ``decode_step`` and replayed
in later ones gives ``decode_step/layer0``, not ``decode_step/decode_step/layer0``.

A domain is a tree of its own: a kernel may be in a region of each domain, and in any number of
start/end regions, which have neither parents nor children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from attrs import Factory, define

from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int32s, Int64s, Timeline, Work
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.operators import engine_threads
from llm_perf_opt.regions.stacks import Stacks, build_stacks, group_by
from llm_perf_opt.regions.table import PUSH_POP, ROOT, START_END, RegionTable

Mode = Literal["auto", "thread", "process"]


@define(eq=False)
class Membership:
    """Regions of one column of work."""

    by_domain: list[Int64s]  # one array per domain: innermost push/pop region of each piece, or ROOT
    start_end: dict[int, Int64s]  # start/end region -> the pieces in it
    adopted: Bools
    whole: int | None = None  # the region of the whole recording, where it stands beside ranges: every piece is in it

    def unattributed(self) -> Bools:
        """Pieces that are in no range."""
        outside = np.ones(len(self.adopted), dtype=np.bool_)
        for regions in self.by_domain:
            outside &= regions == ROOT
        for members in self.start_end.values():
            outside[members] = False
        return outside

    def start_end_members(self, chosen: Int64s) -> tuple[Int64s, Int64s]:
        """Start/end regions and the chosen pieces in them, as two columns."""
        none = np.zeros(0, dtype=np.int64)
        if not self.start_end:
            return none, none
        is_chosen = np.zeros(len(self.adopted), dtype=np.bool_)
        is_chosen[chosen] = True
        region = np.repeat(np.array(list(self.start_end), dtype=np.int64), [len(m) for m in self.start_end.values()])
        members = np.concatenate([none, *self.start_end.values()])
        keep = is_chosen[members]
        return region[keep], members[keep]

    def pieces(self, region: int) -> Int64s:
        """Of a start/end region, or of the whole recording beside ranges; none of any other."""
        if region == self.whole:
            return np.arange(len(self.adopted))
        return self.start_end.get(region, np.zeros(0, dtype=np.int64))

    def beside_stacks(self) -> Iterator[tuple[int, Int64s]]:
        """Regions that are on no stack of ranges, and the pieces in each."""
        yield from self.start_end.items()
        if self.whole is not None:
            yield self.whole, self.pieces(self.whole)


@define(eq=False)
class Attribution:
    """The region table of a timeline, and the regions of all its work and range instances."""

    mode: Mode
    table: RegionTable
    kernels: Membership
    copies: Membership
    graphs: Membership
    range_region: Int64s  # region of each range instance
    range_parent: Int64s  # the range instance around each push/pop one; UNKNOWN where there is none

    @property
    def memberships(self) -> tuple[Membership, Membership, Membership]:
        """Of kernels, copies and graphs, as in `Timeline.work`."""
        return self.kernels, self.copies, self.graphs


# What is launched while many start/end ranges are open is in each of them: a thousand around a thousand launches make a
# million members. Beyond so many the others are one region.
_MEMBERS, _MEMBERS_A_LAUNCH = 3_000_000, 32


def attribute(timeline: Timeline, mode: Mode = "auto") -> Attribution:
    """Find the regions of everything in `timeline`."""
    return _Attributor(timeline, mode).run()


@define(eq=False)
class _Moments:
    """Host-side moments to be placed into stacks: launches of work, or captures of graph nodes."""

    time: Int64s
    thread: Int32s | Int64s
    process: Int32s | Int64s
    by_thread: dict[int, Int64s | slice]  # which are of each thread

    @staticmethod
    def of(time: Int64s, thread: Int32s | Int64s, process: Int32s | Int64s) -> _Moments:
        is_known = (thread != UNKNOWN) & (time != UNKNOWN)
        if not is_known.all():
            known = np.flatnonzero(is_known)
            return _Moments(time, thread, process, {key: known[part] for key, part in group_by(thread[known])})
        if len(used := distinct(thread)) == 1:
            return _Moments(time, thread, process, {int(used[0]): slice(None)})
        return _Moments(time, thread, process, dict(group_by(thread)))


@define(eq=False)
class _RegionStacks:
    """Stacks whose nodes are given regions, each when it is first met."""

    stacks: Stacks
    domain: str
    names: Int32s  # of all ranges, as indices into `strings`
    strings: list[str]
    table: RegionTable
    hosts: tuple[Int64s, Int64s] | None = None  # of all ranges: region and range around the outermost; None: nothing
    _regions: list[int] = Factory(list)
    _known: dict[tuple[int, int], int] = Factory(dict)
    _as_found: Int64s = Factory(lambda: np.zeros(0, dtype=np.int64))  # `_regions`

    def regions_at(self, moments: Int64s) -> Int64s:
        """The innermost region at each moment, ROOT where no range was open."""
        top = self.stacks.top_at(moments)
        return np.append(self._regions_of_nodes(), ROOT)[top]  # UNKNOWN is the last

    def ranges_at(self, moments: Int64s) -> Int64s:
        """The innermost range at each moment, UNKNOWN where none was open."""
        top = self.stacks.top_at(moments)
        return np.append(self.stacks.instance, UNKNOWN)[top]  # UNKNOWN is the last

    def is_hosted(self, moments: Int64s) -> Bools:
        """Does the outermost range open at each moment lie in a range of another thread?"""
        bottom, hosted = self._bottom(moments), np.zeros(len(moments), dtype=np.bool_)
        if self.hosts is not None:
            hosted[bottom >= 0] = self.hosts[0][bottom[bottom >= 0]] != ROOT
        return hosted

    def number_ranges(self, range_region: Int64s, range_parent: Int64s) -> None:
        """Write down region and parent of every range: those of the stack it was found in when it began."""
        nodes = self.stacks.nodes_of_ranges()
        instance = self.stacks.instance  # not before: a range that was never open gets its node only then
        range_region[instance[nodes]] = self._regions_of_nodes()[nodes]
        below = self.stacks.parent[nodes]
        outside = UNKNOWN if self.hosts is None else self.hosts[1][instance[nodes]]
        range_parent[instance[nodes]] = np.where(below == UNKNOWN, outside, instance[np.maximum(below, 0)])

    def bottom_start(self, moments: Int64s, starts: Int64s) -> Int64s:
        """When the outermost range open at each moment began; the moment itself where none was open."""
        bottom = self._bottom(moments)
        return np.where(bottom >= 0, starts[np.maximum(bottom, 0)], moments)

    def _bottom(self, moments: Int64s) -> Int64s:
        """The outermost range open at each moment, UNKNOWN where none was open."""
        node = self.stacks.top_at(moments)
        parent, instance = self.stacks.parent, self.stacks.instance
        bottom = np.full(len(moments), UNKNOWN, dtype=np.int64)
        climbing = np.flatnonzero(node >= 0)
        while len(climbing):
            below = parent[node[climbing]]
            done = below == UNKNOWN
            bottom[climbing[done]] = instance[node[climbing[done]]]
            climbing = climbing[~done]
            node[climbing] = below[~done]
        return bottom

    def _regions_of_nodes(self) -> Int64s:
        """Regions of all nodes there are by now; parents have lower numbers than their children."""
        self.table.simplified = self.table.simplified or self.stacks.simplified
        done = len(self._regions)
        instances = self.stacks.instance[done:]
        if not len(instances):
            return self._as_found
        outside = [ROOT] * len(instances) if self.hosts is None else self.hosts[0][instances].tolist()
        columns = (self.stacks.parent[done:].tolist(), self.names[instances].tolist(), outside)
        for below, name, host in zip(*columns, strict=True):
            key = (self._regions[below] if below >= 0 else host, name)
            number = self._known.get(key)
            if number is None:
                number = self._known[key] = self.table.intern(self.domain, PUSH_POP, key[0], self.strings[name])
            self._regions.append(number)
        self._as_found = np.array(self._regions, dtype=np.int64)
        return self._as_found


class _Attributor:
    """Holds what the steps of one attribution share."""

    def __init__(self, timeline: Timeline, mode: Mode) -> None:
        self.timeline = timeline
        self.mode = mode
        self.table = RegionTable(pools=timeline.pools, operators=set(timeline.operators))
        self.range_region = np.full(len(timeline.ranges), ROOT, dtype=np.int64)
        self.range_parent = np.full(len(timeline.ranges), UNKNOWN, dtype=np.int64)
        ranges = timeline.ranges
        self.push_pop = np.flatnonzero(~ranges.start_end & (ranges.thread != UNKNOWN))
        self.start_end = np.flatnonzero(ranges.start_end)
        self._thread_stacks: dict[int, list[_RegionStacks]] = {}
        self._process_stacks: dict[tuple[int, int], _RegionStacks] = {}
        self._engine = np.array(engine_threads(timeline) if mode == "auto" else [], dtype=np.int64)

    def run(self) -> Attribution:
        timeline = self.timeline
        owner = np.array(timeline.threads or [0], dtype=np.int64)
        nodes = timeline.graph_nodes
        columns = [_Moments.of(work.host_time, work.thread, work.process) for work in timeline.work]
        columns.append(_Moments.of(nodes.host_time, nodes.thread, owner[nodes.thread]))
        kernels, copies, graphs, captured = self._place(columns)
        if self.mode != "thread" and len(nodes.host_time):
            self._descend(timeline.kernels, kernels, captured.by_domain)
            self._descend(timeline.copies, copies, captured.by_domain)
        self._place_whole([kernels, copies, graphs])
        return Attribution(self.mode, self.table, kernels, copies, graphs, self.range_region, self.range_parent)

    def _place_whole(self, memberships: list[Membership]) -> None:
        """Ranges that stand for a whole recording hold all the work of their process (`whole_recording`)."""
        ranges = self.timeline.ranges
        for number in np.flatnonzero(ranges.thread == UNKNOWN).tolist():
            region = self.range_region[number] = self.table.intern_whole()
            for work, membership in zip(self.timeline.work, memberships, strict=True):
                membership.by_domain[ranges.domain[number]][work.process == ranges.process[number]] = region

    # -- push/pop ranges ------------------------------------------------------------------------

    def _place(self, columns: list[_Moments]) -> list[Membership]:
        """Membership of each column of moments."""
        domains = range(len(self.timeline.domains))
        found = [[np.full(len(c.time), ROOT, dtype=np.int64) for _ in domains] for c in columns]
        adopted = [np.zeros(len(c.time), dtype=np.bool_) for c in columns]
        ranges = self.timeline.ranges
        for domain in domains:
            mine = self.push_pop[ranges.domain[self.push_pop] == domain]
            if self.mode == "process":
                self._place_by_process(domain, mine, columns, found)
                continue
            groups = group_by(ranges.thread[mine])
            for thread, part in sorted(groups, key=lambda group: group[0] in self._engine):
                stacks = self._region_stacks(domain, mine[part])
                if thread in self._engine:
                    stacks.hosts = self._hosts(domain, mine[part])
                stacks.number_ranges(self.range_region, self.range_parent)
                self._thread_stacks.setdefault(thread, []).append(stacks)
                for column, result, mask in zip(columns, found, adopted, strict=True):
                    if (members := column.by_thread.get(thread)) is not None:
                        result[domain][members] = stacks.regions_at(column.time[members])
                        if stacks.hosts is not None:
                            mask[members] |= stacks.is_hosted(column.time[members])
        if self.mode == "auto":
            for column, result, mask in zip(columns, found, adopted, strict=True):
                self._adopt(column, result, mask)
        start_end = self._place_start_end(columns)
        return [Membership(*parts) for parts in zip(found, start_end, adopted, strict=True)]

    def _region_stacks(self, domain: int, instances: Int64s) -> _RegionStacks:
        ranges = self.timeline.ranges
        stacks = build_stacks(ranges.start, ranges.end, instances)
        return _RegionStacks(stacks, self.timeline.domains[domain], ranges.name, self.timeline.strings, self.table)

    def _hosts(self, domain: int, mine: Int64s) -> tuple[Int64s, Int64s] | None:
        """For ranges of an engine's thread, region and range that were open in the process when each began."""
        ranges = self.timeline.ranges
        stacks = self._stacks_of_process(domain, int(ranges.process[mine[0]]))
        if stacks is None:
            return None
        regions, around = (np.full(len(ranges), UNKNOWN, dtype=np.int64) for _ in range(2))
        regions[mine] = stacks.regions_at(ranges.start[mine])
        around[mine] = stacks.ranges_at(ranges.start[mine])
        return regions, around

    def _stacks_of_process(self, domain: int, process: int) -> _RegionStacks | None:
        """Stacks of all push/pop ranges of a process, threads merged but an engine's; None where it has none."""
        key = (domain, process)
        if key not in self._process_stacks:
            ranges = self.timeline.ranges
            mine = self.push_pop[(ranges.domain[self.push_pop] == domain) & (ranges.process[self.push_pop] == process)]
            mine = mine[~np.isin(ranges.thread[mine], self._engine)]
            if len(mine) == 0:
                return None
            self._process_stacks[key] = self._region_stacks(domain, mine)
        return self._process_stacks[key]

    def _place_by_process(self, domain: int, mine: Int64s, columns: list[_Moments], found: list[list[Int64s]]) -> None:
        for process, _ in group_by(self.timeline.ranges.process[mine]):
            stacks = self._stacks_of_process(domain, process)
            assert stacks is not None
            stacks.number_ranges(self.range_region, self.range_parent)
            for column, result in zip(columns, found, strict=True):
                members = np.flatnonzero((column.process == process) & (column.time != UNKNOWN))
                result[domain][members] = stacks.regions_at(column.time[members])

    def _adopt(self, column: _Moments, result: list[Int64s], adopted: Bools) -> None:
        """Give work of threads with no open range the ranges of their process.

        A thread that has ranges of other domains open (NCCL's around a collective of the backward pass)
        inherits, in a domain it never uses itself, the ranges that were open when its outermost range began.
        """
        ranges = self.timeline.ranges
        open_somewhere = np.zeros(len(column.time), dtype=np.bool_)
        for regions in result:
            open_somewhere |= regions != ROOT
        for domain, regions in enumerate(result):
            users = distinct(ranges.thread[self.push_pop[ranges.domain[self.push_pop] == domain]])
            if not len(users):
                continue  # there is nothing to be adopted by
            candidates = np.flatnonzero((column.time != UNKNOWN) & (regions == ROOT))
            outsider = ~np.isin(column.thread[candidates], users)
            candidates = candidates[outsider | ~open_somewhere[candidates]]
            for process, part in group_by(column.process[candidates]):
                members = candidates[part]
                owners = np.unique(ranges.thread[self.push_pop[ranges.process[self.push_pop] == process]])
                if len(owners) == 1:
                    # The only thread with ranges has no other to be adopted by.
                    members = members[column.thread[members] != owners[0]]
                stacks = self._stacks_of_process(domain, process) if len(members) else None
                if stacks is None:
                    continue
                since = column.time[members]
                inheriting = np.flatnonzero(open_somewhere[members])
                since[inheriting] = self._outermost_start(column, members[inheriting])
                found = stacks.regions_at(since)
                inside = found != ROOT
                regions[members[inside]] = found[inside]
                adopted[members[inside]] = True

    def _outermost_start(self, column: _Moments, members: Int64s) -> Int64s:
        """When the outermost range open on the own thread at each moment began."""
        since = column.time[members]
        for thread, part in group_by(column.thread[members]):
            for stacks in self._thread_stacks.get(thread, []):
                began = stacks.bottom_start(column.time[members[part]], self.timeline.ranges.start)
                since[part] = np.minimum(since[part], began)
        return since

    # -- start/end ranges -----------------------------------------------------------------------

    def _place_start_end(self, columns: list[_Moments]) -> list[dict[int, Int64s]]:
        """Members of every start/end region, for each column."""
        ranges, strings, domains = self.timeline.ranges, self.timeline.strings, self.timeline.domains
        memberships: list[dict[int, list[Int64s]]] = [{} for _ in columns]
        if len(self.start_end) == 0:
            return [{} for _ in columns]
        by_thread = self.mode == "thread"
        holder = (ranges.thread if by_thread else ranges.process)[self.start_end]
        left = _MEMBERS + _MEMBERS_A_LAUNCH * sum(len(column.time) for column in columns)
        for key, part in group_by(holder):
            instances = self.start_end[part]
            lookups = [_time_lookup(c, c.thread if by_thread else c.process, key) for c in columns]
            names = ranges.domain[instances].astype(np.int64) * len(strings) + ranges.name[instances]
            rest: dict[int, list[Int64s]] = {}  # of each domain
            for _, same in group_by(names):
                mine = instances[same]
                domain, name = int(ranges.domain[mine[0]]), strings[ranges.name[mine[0]]]
                region = self.table.intern(domains[domain], START_END, ROOT, name) if left > 0 else ROOT
                if region == ROOT or region in self.table.pooled:
                    # Placed together: what is launched in two of them is there once.
                    rest.setdefault(domain, []).append(mine)
                else:
                    left -= self._place_in(region, mine, lookups, memberships)
            for domain, parts in rest.items():
                region = self.table.intern_pooled(domains[domain], START_END, ROOT)
                self._place_in(region, np.concatenate(parts), lookups, memberships)
        return [{r: np.concatenate(parts) for r, parts in found.items()} for found in memberships]

    def _place_in(
        self,
        region: int,
        mine: Int64s,
        lookups: list[Callable[[BusyTime], Int64s]],
        memberships: list[dict[int, list[Int64s]]],
    ) -> int:
        """Everything that was launched in one of these ranges is in the region; how much that is."""
        ranges = self.timeline.ranges
        self.range_region[mine] = region
        windows = BusyTime.of(ranges.start[mine], ranges.end[mine])
        found = [lookup(windows) for lookup in lookups]
        for members, part in zip(memberships, found, strict=True):
            members.setdefault(region, []).append(part)
        return sum(map(len, found))

    # -- CUDA graphs ----------------------------------------------------------------------------

    def _descend(self, work: Work, membership: Membership, captured: list[Int64s]) -> None:
        """Move work of graphs from the region of the launch to the region of its capture below that."""
        inside = np.flatnonzero(work.graph_node != UNKNOWN)
        if len(inside) == 0:
            return
        for domain, regions in enumerate(membership.by_domain):
            capture = captured[domain][work.graph_node[inside]]
            found = capture != ROOT
            members = inside[found]
            pairs = np.stack([regions[members], capture[found]], axis=1)
            if len(pairs) == 0:
                continue
            unique, which = np.unique(pairs, axis=0, return_inverse=True)
            which = which.reshape(-1)
            merged = np.array([self._below(int(a), int(b), domain) for a, b in unique], dtype=np.int64)
            regions[members] = merged[which]

    def _below(self, launch: int, capture: int, domain: int) -> int:
        """Region of the capture path laid below the launch path, shared outer names taken once."""
        outer, inner = (self.table.path(r) if r != ROOT else [] for r in (launch, capture))
        shared = 0
        while shared < min(len(outer), len(inner)) and outer[shared] == inner[shared]:
            shared += 1
        return self.table.intern_path(self.timeline.domains[domain], outer + inner[shared:])


def _time_lookup(column: _Moments, holders: Int32s | Int64s, holder: int) -> Callable[[BusyTime], Int64s]:
    """A function from windows to the moments of one thread or process that lie inside them."""
    mine = np.flatnonzero((holders == holder) & (column.time != UNKNOWN))
    times = column.time[mine]
    order = np.argsort(times, kind="stable")
    mine, times = mine[order], times[order]

    def lookup(windows: BusyTime) -> Int64s:
        begin = np.searchsorted(times, windows.starts, side="left")
        finish = np.searchsorted(times, windows.ends, side="left")
        slices = [mine[a:b] for a, b in zip(begin.tolist(), finish.tolist(), strict=True) if b > a]
        return np.concatenate(slices) if slices else np.zeros(0, dtype=np.int64)

    return lookup
