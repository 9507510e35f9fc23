"""Several ranks of one job: whose clock is how far off, who waits for whom in collectives, and who is late.

A collective ends on all its ranks at about the same time, whenever each of them came to it: its ends align the clocks,
and what is left of their differences says how well. Ranks of one recording have one clock, and it is not moved: what
sends may end some µs before what receives. A rank that comes early waits; the last one only transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.clocks import Clocks, clocks_of
from llm_perf_opt.analysis.scopes import AGGREGATE
from llm_perf_opt.analysis.verdicts.communication_costs import RankWaiting
from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.collective_kinds import EXCHANGE
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline
from llm_perf_opt.regions.communication import collective_kernels
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.model import Scope
from llm_perf_opt.regions.names import short_kernel_name
from llm_perf_opt.regions.rank_skew import RankSkew, RankTime
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.table import ROOT, RegionTable, levels_up

_TIMES = ("wall_ns", "gpu_idle_ns", "gpu_busy_ns", "collective_ns", "exposed_collective_ns", "instances", "timing")
_ALIKE = 0.9  # of the longest wall time
# Of the waiting of one rank: what is for the rank it waits for most, and how long that one waits itself.
_MOSTLY, _BY_TURNS = 0.6, 0.5
_FEWEST = 2  # collectives in common from which clocks can be aligned
_COMMON = (
    " Times of regions in all ranks together are those of the rank that takes longest; counts and GPU time are of all."
)
# Ends of one collective lie together: within this, or within this part of its longest duration.
_TOGETHER_NS, _TOGETHER_SHARE = 50_000, 0.1


@define(eq=False)
class RankCalls:
    """The collectives of one process on one device, in order of start."""

    rank: int | None
    pid: int
    device: int
    source: str
    name: list[str]
    start: Int64s
    end: Int64s
    launched: Int64s  # on the host, where known; else as it started
    regions: list[Int64s]  # for each domain the innermost region, by the numbers of the common table
    exposed: Int64s  # of each, how long no other kernel runs on the device
    clock: object  # the same one for all that are in one recording
    what: list[str] = Factory(list)  # as the program called it, where known; else the kernel
    bytes: Int64s = Factory(lambda: np.zeros(0, dtype=np.int64))  # of each message; UNKNOWN where nobody says
    group: Int64s = Factory(lambda: np.zeros(0, dtype=np.int64))  # ranks that take part; UNKNOWN as well

    @property
    def label(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}, GPU {self.device}"

    @property
    def scope(self) -> str:
        return f"rank:{self.rank}" if self.rank is not None else f"process:{self.pid}"


def rank_calls(timeline: Timeline, attribution: Attribution, numbers: Int64s) -> list[RankCalls]:
    """Of every process and device of a timeline. `numbers`: of its regions in the common table."""
    kernels = timeline.kernels
    chosen = np.arange(len(kernels))
    chosen = chosen[collective_kernels(timeline, chosen)]
    found = []
    lookup = np.append(numbers, ROOT)  # ROOT is -1: the last element
    computing, clock = _computing(timeline, chosen), object()
    for owner, part in group_by(kernels.process[chosen].astype(np.int64) << 32 | kernels.device[chosen]):
        mine = chosen[part][np.argsort(kernels.start[chosen[part]], kind="stable")]
        hidden = computing[owner & 0xFFFFFFFF].within(kernels.start[mine], kernels.end[mine])
        process = timeline.processes[owner >> 32]
        names = [timeline.strings[n] for n in kernels.name[mine].tolist()]
        found.append(
            RankCalls(
                rank=process.rank,
                pid=process.pid,
                device=owner & 0xFFFFFFFF,
                source=timeline.source,
                name=names,
                start=kernels.start[mine],
                end=kernels.end[mine],
                launched=np.where(kernels.host_time[mine] != UNKNOWN, kernels.host_time[mine], kernels.start[mine]),
                regions=[lookup[regions[mine]] for regions in attribution.kernels.by_domain],
                exposed=kernels.end[mine] - kernels.start[mine] - hidden,
                clock=clock,
                **_messages_of(timeline, mine, names),
            )
        )
    return found


def _computing(timeline: Timeline, collectives: Int64s) -> dict[int, BusyTime]:
    """Of each device with collectives, when other kernels run on it."""
    kernels = timeline.kernels
    others = np.ones(len(kernels), dtype=bool)
    others[collectives] = False
    found = {}
    for device in np.unique(kernels.device[collectives]).tolist():
        there = others & (kernels.device == device)
        found[device] = BusyTime.of(kernels.start[there], kernels.end[there])
    return found


def _messages_of(timeline: Timeline, kernels: Int64s, names: list[str]) -> dict[str, Any]:
    """What the collectives were given: columns of `RankCalls`."""
    messages = timeline.messages
    what, columns = list(names), np.full((2, len(kernels)), UNKNOWN, dtype=np.int64)
    place = {kernel: at for at, kernel in enumerate(kernels.tolist())} if len(messages) else {}
    for row, kernel in enumerate(messages.kernel.tolist()):
        if (at := place.get(kernel)) is not None:
            columns[:, at] = messages.bytes[row], messages.ranks[row]
            what[at] = timeline.strings[int(messages.what[row])]
    return {"what": what, "bytes": columns[0], "group": columns[1]}


@define(eq=False)
class Skew:
    """What the collectives of several ranks say together."""

    ranks: list[RankCalls]
    matched: list[Int64s]  # of each rank, the calls that all have in common
    waiting: list[Int64s]  # of each of those, how long the rank waited for the last one
    late: Int64s  # of each of those, which rank came last
    clocks: Clocks
    found: RankSkew
    _by_region: dict[int, Int64s] = Factory(dict)

    def late_for(self, rank: int) -> str:
        """The rank that this one waits for most; empty where that one waits as well, for others: all are late by turns."""
        caused, whole = np.bincount(self.late, weights=self.waiting[rank]), self.waiting[rank].sum()
        late = int(caused.argmax())
        by_turns = caused[late] < _MOSTLY * whole and self.waiting[late].sum() >= _BY_TURNS * whole
        return "" if by_turns else self.ranks[late].label

    def waiting_in(self, table: RegionTable, rank: int) -> Int64s:
        """Of one rank, the waiting in every region of the common table."""
        if rank not in self._by_region:
            parent, depth = table.arrays()
            total = np.zeros(len(table), dtype=np.int64)
            for regions in self.ranks[rank].regions:
                inside = regions[self.matched[rank]]
                waits = self.waiting[rank][inside != ROOT]
                for current, here in levels_up(inside[inside != ROOT], parent, depth):
                    weights = np.bincount(current[here], weights=waits[here], minlength=len(table))
                    total += weights.astype(np.int64)
            self._by_region[rank] = total
        return self._by_region[rank]


@define(eq=False)
class CommonTimes:
    """The ranks of one job seen together: their common time is that of the rank that takes longest."""

    slowest: dict[str, str] = Factory(dict)  # region key -> scope of that rank
    waiting: dict[str, dict[str, RankWaiting]] = Factory(dict)  # scope -> region key


def common_times(scopes: Sequence[Scope], skew: Skew | None, table: RegionTable) -> CommonTimes:
    """Also gives the regions of all ranks together their times: those of the slowest, not the sum.

    Without collectives that all have in common (they were not recorded, or each rank sends to another, as the stages
    of a pipeline do) by the ranks' own times.
    """
    found = CommonTimes()
    by_name = {scope.scope: scope for scope in scopes}
    names = [name for name in by_name if name.startswith("rank:")]
    if skew is not None:
        names = [rank.scope for rank in skew.ranks if rank.scope in by_name]
    if len(set(names)) < 2 or (skew is not None and len(set(names)) < len(skew.ranks)):
        return found  # one process drives several GPUs: it has one time already
    keys = {table.key(number): number for number in range(len(table))}
    regions = {name: {region.key: region for region in by_name[name].regions} for name in names}
    for number, name in enumerate(names if skew is not None else ()):
        assert skew is not None
        waits, own = skew.waiting_in(table, number), skew.ranks[number].label
        found.waiting[name] = {
            key: RankWaiting(own, skew.late_for(number), nanoseconds(float(waits[keys[key]])))
            for key in regions[name]
            if waits[keys[key]]
        }
    together = by_name[AGGREGATE].regions if AGGREGATE in by_name else []
    for region in together:
        # The whole tree below an outermost region is that of one rank, so that its parts add up.
        above = found.slowest.get(region.parent or "")
        members = {name: of[region.key].wall_ns or 0 for name, of in regions.items() if region.key in of}
        if not members:
            continue
        exposed = {name: of[region.key].exposed_collective_ns or 0 for name, of in regions.items() if name in members}
        name = above if above in members else _slowest(members, exposed, region.key, found)
        found.slowest[region.key] = name
        for field in _TIMES:
            setattr(region, field, getattr(regions[name][region.key], field))
    return found


def _slowest(members: dict[str, int], exposed: dict[str, int], key: str, found: CommonTimes) -> str:
    """The rank that takes longest; of those that take about as long, for collectives keep them in step, the one that waits most.

    `exposed`: collectives that nothing hides, which stand for the waiting where that is not known.
    """
    longest = max(members.values())
    alike = [name for name, wall in members.items() if wall >= _ALIKE * longest]

    def waits(name: str) -> float:
        waiting = found.waiting.get(name, {}).get(key)
        return waiting.waiting.of("ns") if waiting is not None else 0.0

    return max(alike, key=lambda name: (waits(name), exposed[name], members[name]))


def compare_ranks(ranks: Sequence[RankCalls], kinds: Sequence[Sequence[str]]) -> Skew | None:
    """None where there are not two ranks with collectives in common. `kinds`: of the calls of each."""
    if len(ranks) < 2:
        return None
    calls = _in_common([_of_all(rank, own, ranks) for rank, own in zip(ranks, kinds, strict=True)])
    start, end = (
        np.stack([getattr(r, side)[c] for r, c in zip(ranks, calls, strict=True)]) for side in ("start", "end")
    )
    if start.shape[1] < _FEWEST:
        return None
    together = _ends_together(start, end, _clocks(ranks, end).at(end[0]))
    if together.sum() < _FEWEST:
        return None
    start, end, calls = start[:, together], end[:, together], [c[together] for c in calls]
    clocks = _clocks(ranks, end)
    offset = clocks.at(end[0])
    aligned = start - offset
    apart = np.abs(end - offset - np.median(end - offset, axis=0))
    duration = end - start
    waiting = np.minimum(aligned.max(axis=0) - aligned, duration)
    late = aligned.argmax(axis=0)
    caused = np.bincount(late, weights=waiting.max(axis=0), minlength=len(ranks))
    longest = int(waiting.max(axis=0).argmax())
    latest = int(caused.argmax())
    found = RankSkew(
        ranks=[
            RankTime(
                rank=of.rank,
                label=of.label,
                source=of.source,
                clock_offset_ns=int(clocks.offset[n]),
                clock_drift_ppm=round(float(clocks.drift[n]) * 1e6, 3),
                collectives_ns=int(duration[n].sum()),
                waiting_ns=int(waiting[n].sum()),
                caused_waiting_ns=int(caused[n]),
                longest_ns=int(duration[n, longest]),
            )
            for n, of in enumerate(ranks)
        ],
        collectives=start.shape[1],
        clocks=len({id(rank.clock) for rank in ranks}),
        residual_ns=round(float(np.percentile(apart, 90))),
        transfer_ns=int(duration.min(axis=0).sum()),
        late=ranks[latest].label if caused[latest] else None,
        longest=short_kernel_name(ranks[0].name[int(calls[0][longest])]),
    )
    return Skew(list(ranks), calls, list(waiting), late, clocks, found)


def _clocks(ranks: Sequence[RankCalls], end: Int64s) -> Clocks:
    """Of each rank: that of its recording, against that of the first."""
    own = {id(rank.clock): rank.clock for rank in ranks}
    which = np.array([list(own).index(id(rank.clock)) for rank in ranks])
    ends = np.stack([np.round(np.median(end[which == n], axis=0)).astype(np.int64) for n in range(len(own))])
    found = clocks_of(ends)
    return Clocks(found.offset[which], found.drift[which], found.middle)


def compared_ranks(skew: RankSkew | None, common: CommonTimes) -> list[Diagnosis]:
    """How well the clocks agree, who is late, and what the times of all ranks together are."""
    if skew is None:
        return []
    late = max(skew.ranks, key=lambda rank: rank.caused_waiting_ns)
    waits = max(skew.ranks, key=lambda rank: rank.waiting_ns)
    return [
        diagnose(
            "RANKS_COMPARED" if skew.clocks > 1 else "RANKS_COMPARED.one_clock",
            ranks=len(skew.ranks),
            collectives=skew.collectives,
            residual=shown(nanoseconds(skew.residual_ns)),
            late=late.label,
            waits=waits.label,
            waiting=shown(nanoseconds(waits.waiting_ns)),
            transfer=shown(nanoseconds(skew.transfer_ns)),
            times=_COMMON if common.slowest else "",
        )
    ]


def _of_all(rank: RankCalls, kinds: Sequence[str], ranks: Sequence[RankCalls]) -> list[str]:
    """The names of its calls; empty of those that only some ranks take part in, which end at other times elsewhere.

    A pipeline of several stages sends at regular intervals: each stage seems to send with the others by a clock that is
    off. So between clocks that are to be aligned, messages count only where they are between the only two ranks.
    """
    several = len(ranks) > 2 and len({id(one.clock) for one in ranks}) > 1
    partial = (rank.group != UNKNOWN) & (rank.group < len(ranks)) if len(rank.group) else np.zeros(len(kinds), bool)
    return [
        "" if some or (several and kind == EXCHANGE) else name
        for name, kind, some in zip(rank.name, kinds, partial.tolist(), strict=True)
    ]


def _in_common(names: Sequence[Sequence[str]]) -> list[Int64s]:
    """For each rank its calls in an order in which they are the same collectives on all.

    The n-th call of a kernel is the same everywhere, where all call it as often. `names`: of the kernels, of each rank.
    """
    counts = [Counter(own) for own in names]
    alike = {name for name, count in counts[0].items() if name and all(c[name] == count for c in counts)}
    order: list[Int64s] = []
    for own in names:
        seen: Counter[str] = Counter()
        keys = []
        for at, name in enumerate(own):
            if name in alike:
                keys.append((name, seen[name], at))
                seen[name] += 1
        order.append(np.array([at for _, _, at in sorted(keys)], dtype=np.int64))
    return order


def _ends_together(start: Int64s, end: Int64s, offset: Int64s) -> np.typing.NDArray[np.bool_]:
    """Calls that end at the same time everywhere: messages between two ranks do not."""
    ends = end - offset
    allowed = np.maximum(_TOGETHER_NS, _TOGETHER_SHARE * (end - start).max(axis=0))
    together: np.typing.NDArray[np.bool_] = ends.max(axis=0) - ends.min(axis=0) <= allowed
    return together
