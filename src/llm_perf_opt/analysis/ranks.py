"""Several ranks of one job: whose clock is how far off, who waits for whom in collectives, and who is late.

A collective ends on all its ranks at about the same time, whenever each of them came to it: its ends align the clocks,
and what is left of their differences says how well. Ranks of one recording have one clock, and it is not moved: what
sends may end some µs before what receives. A rank that comes early waits; the last one only transfers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.clocks import Clocks
from llm_perf_opt.analysis.matched_calls import Calls, MatchedCalls, match_calls
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

_BY_ORDER = " Only their order says which collectives are the same ones, and that they are of one job: the times between them are all alike, or few."
_TIMES = ("wall_ns", "gpu_idle_ns", "gpu_busy_ns", "collective_ns", "exposed_collective_ns", "instances", "timing")
_ALIKE = 0.9  # of the longest wall time
_NEVER = -(1 << 62)
# Of the waiting of a rank: from where on the late one is held up itself; and, where all are late by turns, what at most
# is for the one it waits for most, and how long that one waits at least.
_HELD_UP, _MOSTLY, _BY_TURNS = 0.5, 0.6, 0.5
_MOST_NAMED = 8
_COMMON = (
    " Times of regions in all ranks together are those of the rank that takes longest; counts and GPU time are of all."
)


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
    members: list[str] = Factory(list)  # which ones, by a name that all of them have for it; empty: nobody says

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
    members = attribution.kernels
    everywhere = [] if members.whole is None else [np.full(len(kernels), members.whole, dtype=np.int64)]
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
                regions=[lookup[regions[mine]] for regions in (*members.by_domain, *everywhere)],
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
    what, members, columns = list(names), [""] * len(names), np.full((2, len(kernels)), UNKNOWN, dtype=np.int64)
    place = {kernel: at for at, kernel in enumerate(kernels.tolist())} if len(messages) else {}
    for row, kernel in enumerate(messages.kernel.tolist()):
        if (at := place.get(kernel)) is not None:
            columns[:, at] = messages.bytes[row], messages.ranks[row]
            what[at] = timeline.strings[int(messages.what[row])]
            if (group := int(messages.group[row])) != UNKNOWN:
                members[at] = timeline.strings[group]
    return {"what": what, "bytes": columns[0], "group": columns[1], "members": members}


@define(eq=False)
class Skew:
    """What the collectives of several ranks say together."""

    ranks: list[RankCalls]
    matched: list[Int64s]  # of each rank, the calls that all of their group have
    waiting: list[Int64s]  # of each of those, how long the rank waited for the last one
    instance: list[Int64s]  # of each of those, which collective it is
    late: Int64s  # of each collective, which rank came last
    transfer: Int64s  # of each collective, how long it took once that one had come
    clocks: Clocks
    found: RankSkew
    _by_region: dict[int, Int64s] = Factory(dict)

    def late_for(self, rank: int) -> str:
        """The rank that this one waits for most; or whom that one waits for, in a group that this one is not in.

        Empty where that one waits as well, for others: all are late by turns.
        """
        whole, (late, caused) = float(self.waiting[rank].sum()), self._waits_for(rank)
        for _ in self.ranks:
            further, held_up = self._waits_for(late)
            if held_up < _HELD_UP * whole or further in (rank, late):
                break
            late = further
        by_turns = caused < _MOSTLY * whole and self.waiting[late].sum() >= _BY_TURNS * whole
        return "" if by_turns else self.ranks[late].label

    def _waits_for(self, rank: int) -> tuple[int, float]:
        waits = np.bincount(self.late[self.instance[rank]], weights=self.waiting[rank], minlength=len(self.ranks))
        return int(waits.argmax()), float(waits.max())

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


def common_times(scopes: Sequence[Scope], skew: Skew | None, table: RegionTable, why: Mapping[str, str]) -> CommonTimes:
    """`why`: what ranks do differently, by their labels. Also gives the regions of all ranks together their times: those of the slowest, not the sum.

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
        waits, own, late = skew.waiting_in(table, number), skew.ranks[number].label, skew.late_for(number)
        found.waiting[name] = {
            key: RankWaiting(own, late, nanoseconds(float(waits[keys[key]])), why.get(late, ""))
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


def compare_ranks(ranks: Sequence[RankCalls], kinds: Sequence[Sequence[str]]) -> Skew | list[Diagnosis]:
    """Or why not, where there are two ranks with collectives. `kinds`: of the calls of each."""
    recordings = {(rank.rank, id(rank.clock)) for rank in ranks if rank.rank is not None}
    if len(ranks) < 2 or len(recordings) > len({rank for rank, _ in recordings}):  # a rank is in several
        return []
    clocks = len({id(rank.clock) for rank in ranks})
    several = len(ranks) > 2 and clocks > 1
    keys = [_keys(rank, own, len(ranks), several) for rank, own in zip(ranks, kinds, strict=True)]
    matched = match_calls([Calls(r.start, r.end, own, r.clock) for r, own in zip(ranks, keys, strict=True)])
    if isinstance(matched, list):
        if not matched or any(set(own) <= {EXCHANGE} for own in kinds):
            return []
        return [diagnose("RANKS_NOT_ALIGNED", lost=_listed([ranks[n].label for n in matched]), first=ranks[0].label)]
    waits = _waits(ranks, matched)
    caused = np.bincount(waits.late, weights=waits.longest, minlength=len(ranks))
    odd, latest = int(waits.longest.argmax()), int(caused.argmax())
    times = [
        RankTime(
            rank=of.rank,
            label=of.label,
            source=of.source,
            clock_offset_ns=int(matched.clocks.offset[n]),
            clock_drift_ppm=round(float(matched.clocks.drift[n]) * 1e6, 3),
            collectives_ns=int((of.end[which] - of.start[which]).sum()),
            waiting_ns=int(waits.of_calls[n].sum()),
            caused_waiting_ns=int(caused[n]),
            longest_ns=int((of.end - of.start)[which[number == odd]].sum()),
        )
        for n, (of, which, number) in enumerate(zip(ranks, matched.calls, matched.instance, strict=True))
    ]
    holder = next(n for n, number in enumerate(matched.instance) if (number == odd).any())
    call = int(matched.calls[holder][matched.instance[holder] == odd][0])
    found = RankSkew(
        ranks=times,
        collectives=len(waits.late),
        clocks=clocks,
        residual_ns=round(float(np.percentile(waits.apart, 90))),
        transfer_ns=max(int(waits.shortest[number].sum()) for number in matched.instance),
        late=ranks[latest].label if caused[latest] else None,
        longest=short_kernel_name(ranks[holder].name[call]),
        by_order=matched.by_order,
    )
    return Skew(
        *(list(ranks), matched.calls, waits.of_calls, matched.instance),
        *(waits.late, waits.shortest, matched.clocks, found),
    )


@define(eq=False)
class _Waits:
    """What matched calls say of one another: of each rank, and of each collective."""

    of_calls: list[Int64s]  # of each rank: how long each of its calls waits for the last one
    late: Int64s  # which rank comes last
    longest: Int64s  # the longest wait
    shortest: Int64s  # the shortest call
    apart: Int64s  # of each end, how far it is from the middle one of its collective


def _waits(ranks: Sequence[RankCalls], matched: MatchedCalls) -> _Waits:
    size = 1 + max(int(own.max(initial=-1)) for own in matched.instance)
    latest, late, shortest = np.full(size, _NEVER), np.zeros(size, dtype=np.int64), np.full(size, -_NEVER)
    longest = np.zeros(size, dtype=np.int64)
    starts, ends, of_calls = [], [], []
    for n, (rank, which, number) in enumerate(zip(ranks, matched.calls, matched.instance, strict=True)):
        start, end = (matched.clocks.to_first(n, side[which]) for side in (rank.start, rank.end))
        starts.append(start)
        ends.append(end)
        later = start > latest[number]
        late[number[later]] = n
        latest[number] = np.maximum(latest[number], start)
        shortest[number] = np.minimum(shortest[number], end - start)
    for rank, which, number, start in zip(ranks, matched.calls, matched.instance, starts, strict=True):
        of_calls.append(np.minimum(latest[number] - start, rank.end[which] - rank.start[which]))
        longest[number] = np.maximum(longest[number], of_calls[-1])
    return _Waits(of_calls, late, longest, shortest, _apart(ends, matched.instance))


def ranks_not_given(ranks: Sequence[RankCalls]) -> list[Diagnosis]:
    """Collectives that more ranks take part in than there are recordings of. One rank alone knows little of others anyway."""
    here = {rank.rank for rank in ranks}
    size = max((int(rank.group.max(initial=UNKNOWN)) for rank in ranks), default=UNKNOWN)
    if None in here and len({id(rank.clock) for rank in ranks}) > 1:
        return [diagnose("RANKS_UNNAMED")]
    if len(here) < 2 or size <= len(here) or None in here:
        return []
    missing = [f"rank {rank}" for rank in range(size) if rank not in here]
    return [
        diagnose(
            "RANKS_NOT_GIVEN", size=size, missing=_listed(missing if len(missing) == size - len(here) else []) or "some"
        )
    ]


def _apart(ends: Sequence[Int64s], instance: Sequence[Int64s]) -> Int64s:
    """Of each end, how far it is from the middle one of its collective."""
    number, end = np.concatenate(instance), np.concatenate(ends)
    order = np.lexsort((end, number))
    number, end = number[order], end[order]
    first = np.flatnonzero(np.append(True, np.diff(number) > 0))
    count = np.diff(np.append(first, len(number)))
    middle = (end[first + (count - 1) // 2] + end[first + count // 2]) // 2
    found: Int64s = np.abs(end - np.repeat(middle, count))
    return found


def _listed(named: Sequence[str]) -> str:
    return ", ".join(named[:_MOST_NAMED]) + (
        f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    )


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
            times=(_BY_ORDER if skew.by_order else "") + (_COMMON if common.slowest else ""),
        )
    ]


def _keys(rank: RankCalls, kinds: Sequence[str], ranks: int, several: bool) -> list[tuple[str, str] | None]:
    """Group and kernel of its calls; None of those that only some ranks take part in, and nobody says which.

    A pipeline of several stages sends at regular intervals: each stage seems to send with the others by a clock that is
    off. So between clocks that are to be aligned, messages count only where they are between the only two ranks.
    """
    groups = rank.members or [""] * len(kinds)
    partial = (rank.group != UNKNOWN) & (rank.group < ranks) if len(rank.group) else np.zeros(len(kinds), bool)
    return [
        None if (some and not group) or (several and kind == EXCHANGE) else (group, name)
        for name, kind, group, some in zip(rank.name, kinds, groups, partial.tolist(), strict=True)
    ]
