"""Which line of the program launched each kernel, and in which lines the host was while the GPU was idle.

A launch belongs to the line its thread was in when it made the call; a kernel of a CUDA graph to the line it was captured
in. Where nothing says so (marks pause, samples are a millisecond apart), launches that are alike (same kernel, same
launch configuration, same region, after the same other launches) are taken to come from the same lines, in the same
proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.analysis.gaps import CAUSES, Gaps
from llm_perf_opt.analysis.gpu_side import inside_region
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.verdicts.launched import Origins
from llm_perf_opt.metrics.families import fused_operators
from llm_perf_opt.regions.attribution import Attribution, Membership
from llm_perf_opt.regions.code import Place, SpansByThread, parse_place
from llm_perf_opt.regions.columns import UNKNOWN, Bools, CodeSpans, Int64s, Timeline
from llm_perf_opt.regions.duration_clusters import context_of, queue_of
from llm_perf_opt.regions.fixes import IdleLine
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.operator_calls import operator_spans
from llm_perf_opt.regions.rollup import host_copies
from llm_perf_opt.regions.signatures import Signature, describe_signatures, distinct_rows
from llm_perf_opt.regions.table import RegionTable

_MOST_LINES = 40  # of idle time, listed of a region
_Shares = dict[int, list[tuple[int, int, float]]]  # by row: places, operators, and the part of the launches there


@define(frozen=True)
class LaunchedFrom:
    """Launches of one signature from one line, in one operator; shares of launches where lines were pooled."""

    place: Place | None  # None: not known
    operator: str  # `aten::linear 512×1024×3072`; empty where not known
    signature: Signature
    calls: float
    time_ns: float


@define(eq=False)
class CodeLines:
    """Of one timeline; nothing is computed before somebody asks. `None` of it where the recording tells of no code."""

    _warmth: SteadyTimeline
    _kernels: Bools | None = None  # those of a scope; None: all
    _known: _Launches | None = field(default=None, init=False)
    _numbers: dict[str, int] = Factory(dict)  # of regions, by key
    # Spans with a caller, and which of them are alike: one, once somebody has asked; scopes share it.
    _called: list[tuple[CodeSpans, Int64s, Int64s]] = Factory(list)

    @staticmethod
    def of(warmth: SteadyTimeline) -> CodeLines | None:
        timeline = warmth.timeline
        return CodeLines(warmth) if len(timeline.code) or len(timeline.calls) else None

    @property
    def source(self) -> str:
        return "functions" if self._warmth.timeline.lines_are_functions else "lines"

    def of_scope(self, kernels: Int64s) -> CodeLines:
        """The same of a scope that has these kernels."""
        every = self._warmth.timeline.kernels
        if len(kernels) == len(every):
            return self
        mask = np.zeros(len(every), dtype=np.bool_)
        mask[kernels] = True
        view = CodeLines(self._warmth, mask, numbers=self._numbers, called=self._called)
        view._known = self._launches()
        return view

    def launches(self, key: str) -> list[LaunchedFrom]:
        """The launches of a region's steady instances."""
        number = self._number(key)
        if number is None:
            return []
        attribution = self._warmth.lifted
        held = _held(attribution.kernels, number, len(self._warmth.timeline.kernels), attribution.table)
        if self._kernels is not None:
            held &= self._kernels
        return self._launches().summed(held)

    def origins(self, kernels: Int64s) -> Origins:
        """The lines that some kernels come from."""
        return self._launches().origins(kernels)

    def copies(self, key: str, processes: Collection[int] | None) -> dict[Place, float]:
        """How long copies between host and device take in a region's steady instances, by the line that makes them.

        `processes`: in which; None: in all.
        """
        number, timeline = self._number(key), self._warmth.timeline
        if number is None:
            return {}
        attribution, copies = self._warmth.lifted, timeline.copies
        held = _held(attribution.copies, number, len(copies), attribution.table)
        mine = host_copies(timeline)
        mine = mine[held[mine]]
        if processes is not None:
            mine = mine[np.isin(copies.process[mine], list(processes))]
        work = (copies.process[mine], copies.thread[mine], copies.host_time[mine])
        place = SpansByThread.of(timeline.code).place_at(*work)
        used, which = np.unique(place, return_inverse=True)
        time = np.bincount(which.reshape(-1), weights=(copies.end - copies.start)[mine], minlength=len(used))
        known = [parse_place(timeline.strings[number]) if number != UNKNOWN else None for number in used.tolist()]
        return {place: spent for place, spent in zip(known, time.tolist(), strict=True) if place is not None}

    def callers(self, key: str) -> dict[Place, Place]:
        """Of lines in models of libraries, the line of the user's own that led there for most of a region's time."""
        number, timeline = self._number(key), self._warmth.timeline
        if number is None:
            return {}
        if not self._called:
            chosen = timeline.code.chosen(timeline.code.caller != UNKNOWN)
            self._called.append((chosen, *distinct_rows([c.astype(np.int64) for c in (chosen.place, chosen.caller)])))
        ((spans, rows, first),) = self._called
        instances = (self._warmth.attribution.range_region == number) & ~self._warmth.instances.warmup
        windows = BusyTime.of(timeline.ranges.start[instances], timeline.ranges.end[instances])
        time = windows.within(spans.start, spans.end)
        spent = np.bincount(rows, weights=time, minlength=len(first))
        found: dict[Place, Place] = {}
        for at in np.argsort(spent, kind="stable").tolist():  # the longest comes last, and stays
            pair = [parse_place(timeline.strings[int(column[first[at]])]) for column in (spans.place, spans.caller)]
            if spent[at] > 0 and pair[0] is not None and pair[1] is not None:
                found[pair[0]] = pair[1]
        return found

    def _number(self, key: str) -> int | None:
        """Of a region; None where there is none."""
        table = self._warmth.lifted.table
        if not self._numbers:
            self._numbers.update((table.key(n), n) for n in range(len(table)))
        return self._numbers.get(key)

    def _launches(self) -> _Launches:
        if self._known is None:
            self._known = _Launches.of(self._warmth.timeline, self._warmth.attribution)
        return self._known


def _held(members: Membership, region: int, count: int, table: RegionTable) -> Bools:
    held = np.zeros(count, dtype=np.bool_)
    for regions in members.by_domain:
        held |= inside_region(regions, region, table)
    held[members.pieces(region)] = True
    return held


@define(eq=False)
class _Launches:
    """All kernels of a timeline in groups: of one signature, and from one line and operator, or like others that are."""

    timeline: Timeline
    described: list[Signature]
    group: Int64s  # of each kernel
    signature: Int64s  # of each group
    place: Int64s  # of each group, as an index into the strings; UNKNOWN where nothing says
    operator: Int64s  # the same, into `operators`
    operators: list[str]
    alike: Int64s  # of each group without a place: the row of `known` for the launches it is like, or UNKNOWN
    known: _Shares  # of launches that are alike

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution) -> _Launches:
        signature, described = describe_signatures(timeline)
        place = launching_places(timeline, timeline.code.chosen(~timeline.code.sampled))
        spans, operators = operator_spans(timeline)
        operator = launching_places(timeline, spans)
        within, _ = distinct_rows([signature, *attribution.kernels.by_domain])
        if timeline.code.sampled.any():
            # A sample stands for a millisecond, and many launches: it counts where nothing else tells of like ones.
            known = np.zeros(int(signature.max(initial=-1)) + 1, dtype=np.bool_)
            known[signature[place != UNKNOWN]] = True
            place = np.where(known[signature], place, launching_places(timeline, timeline.code))
        # Like which others, best first: those that follow the same launches in their region, those of their region, all.
        after_same = context_of(signature, queue_of(timeline.kernels))
        levels = [distinct_rows([after_same, within])[0], within, signature]
        alike, like_them = _alike(levels, place, operator)
        group, first = distinct_rows([signature, place, operator, alike])
        rows = (signature[first], place[first], operator[first])
        return _Launches(timeline, described, group, *rows, operators, alike[first], like_them)

    def origins(self, kernels: Int64s) -> Origins:
        used, which = np.unique(self.group[kernels], return_inverse=True)
        places = []
        for at in used.tolist():
            parts: dict[Place, float] = {}
            for place, _, part in self._places_of(at):
                known = parse_place(self.timeline.strings[place]) if place != UNKNOWN else None
                if known is not None:
                    parts[known] = parts.get(known, 0.0) + part
            places.append(parts)
        return Origins(which.reshape(-1), places)

    def _places_of(self, group: int) -> list[tuple[int, int, float]]:
        """Places and operators of a group's launches, and the part of them that each has."""
        own = [(int(self.place[group]), int(self.operator[group]), 1.0)]
        return own if self.place[group] != UNKNOWN else self.known.get(int(self.alike[group]), own)

    def summed(self, held: Bools) -> list[LaunchedFrom]:
        kernels, texts = self.timeline.kernels, self.timeline.strings
        chosen = np.flatnonzero(held)
        group, time = self.group[chosen], (kernels.end - kernels.start)[chosen]
        calls = np.bincount(group, minlength=len(self.signature))
        spent = np.bincount(group, weights=time, minlength=len(self.signature))
        found: dict[tuple[int, int, int], tuple[float, float]] = {}
        for at in np.flatnonzero(calls).tolist():
            for place, operator, part in self._places_of(at):
                key = (int(self.signature[at]), place, operator)
                before = found.get(key, (0.0, 0.0))
                found[key] = before[0] + part * int(calls[at]), before[1] + part * float(spent[at])
        return [
            LaunchedFrom(
                parse_place(texts[place]) if place != UNKNOWN else None,
                self.operators[operator] if operator != UNKNOWN else fused_operators(self.described[signature].shown),
                self.described[signature],
                *sums,
            )
            for (signature, place, operator), sums in found.items()
        ]


def _alike(levels: list[Int64s], place: Int64s, operator: Int64s) -> tuple[Int64s, _Shares]:
    """Of each launch without a place the row for those like it, by the first level that knows some; and these rows."""
    alike = np.full(len(place), UNKNOWN, dtype=np.int64)
    found: _Shares = {}
    left, rows_before = np.flatnonzero(place == UNKNOWN), 0
    for level in levels:
        asked = np.zeros(int(level.max(initial=-1)) + 1, dtype=np.bool_)
        asked[level[left]] = True
        related = np.flatnonzero(asked[level])
        shares = _shares(level[related], place[related], operator[related])
        has_some = np.zeros(len(asked), dtype=np.bool_)
        has_some[list(shares)] = True
        mine = left[has_some[level[left]]]
        alike[mine] = level[mine] + rows_before
        found |= {row + rows_before: parts for row, parts in shares.items()}
        left, rows_before = left[~has_some[level[left]]], rows_before + len(asked)
    return alike, found


def _shares(alike: Int64s, place: Int64s, operator: Int64s) -> _Shares:
    """Of launches that are alike and whose line is known: place, operator, and the part that each has of them."""
    known = np.flatnonzero(place != UNKNOWN)
    row, first = distinct_rows([alike[known], place[known], operator[known]])
    count, at = np.bincount(row, minlength=len(first)), known[first]
    whole = np.bincount(alike[known], minlength=1)
    found: _Shares = {}
    for number, where, of, calls in zip(
        *(c.tolist() for c in (alike[at], place[at], operator[at], count)), strict=True
    ):
        found.setdefault(number, []).append((where, of, calls / int(whole[number])))
    return found


def launching_places(timeline: Timeline, spans: CodeSpans) -> Int64s:
    """The place in which each kernel was launched or captured; UNKNOWN where nothing says."""
    work, nodes = timeline.kernels, timeline.graph_nodes
    where = SpansByThread.of(spans)
    found = where.place_at(work.process, work.thread, work.host_time)
    inside = np.flatnonzero(work.graph_node != UNKNOWN)
    if len(inside):
        node = work.graph_node[inside]
        captured = where.place_at(work.process[inside], nodes.thread[node], nodes.host_time[node])
        # The line that launches a graph says little, but more than nothing.
        found[inside] = np.where(captured != UNKNOWN, captured, found[inside])
    return found


# -- while the GPU is idle ---------------------------------------------------------------------------


@define(eq=False)
class IdleLines:
    """The gaps of a process cut at the lines in which the host was; summed for any windows."""

    _start: Int64s
    _end: Int64s
    _gap: Int64s  # that it is a part of; in order
    _cause: Int64s
    _place: Int64s
    _strings: list[str]
    _names: set[str] = Factory(set)

    @staticmethod
    def of(
        timeline: Timeline, process: int, gaps: Gaps, spans: CodeSpans | None = None, only: Int64s | None = None
    ) -> IdleLines | None:
        """Of the thread that launches and has most to tell; None where nothing is known of it.

        `spans`: instead of lines. `only`: some of the gaps, in order; None: all.
        """
        spans = timeline.code if spans is None else spans
        only = np.arange(len(gaps)) if only is None else only
        launching = np.unique(np.concatenate([work.thread[work.process == process] for work in timeline.work]))
        mine = np.flatnonzero((spans.process == process) & np.isin(spans.thread, launching))
        if not len(mine) or not len(only):
            return None
        thread = int(np.argmax(np.bincount(spans.thread[mine])))
        mine = mine[spans.thread[mine] == thread]
        mine = mine[np.argsort(spans.start[mine], kind="stable")]
        starts, ends = gaps.start[only], gaps.end[only]
        cuts = np.sort(np.concatenate([starts, ends, spans.start[mine], spans.end[mine]]))
        cuts = cuts[np.append(True, cuts[1:] > cuts[:-1])]
        begin, finish = cuts[:-1], cuts[1:]
        gap = np.searchsorted(starts, begin, side="right") - 1
        span = np.searchsorted(spans.start[mine], begin, side="right") - 1
        both = (gap >= 0) & (span >= 0)
        both &= (finish <= ends[np.maximum(gap, 0)]) & (finish <= spans.end[mine][np.maximum(span, 0)])
        place = spans.place[mine][span[both]].astype(np.int64)
        gap = only[gap[both]]
        return IdleLines(begin[both], finish[both], gap, gaps.cause[gap].astype(np.int64), place, timeline.strings)

    def names(self, name: Callable[[str], str]) -> set[str]:
        """What `name` makes of all lines; asked once."""
        if not self._names:
            self._names.update(name(self._strings[place]) for place in np.unique(self._place).tolist())
        return self._names

    def of_gaps(self, gaps: Int64s, windows: BusyTime) -> tuple[Int64s, Int64s, Int64s]:
        """The parts of some gaps, which are in order: to which of them each belongs, its line, and its time."""
        first, last = (np.searchsorted(self._gap, gaps, side=side) for side in ("left", "right"))
        counts = last - first
        part = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        time = windows.within(self._start[part], self._end[part])
        return np.repeat(np.arange(len(gaps)), counts), self._place[part], time

    def within(self, windows: BusyTime, causes: Callable[[str], bool], known: tuple[Int64s, Int64s]) -> list[IdleLine]:
        """Idle time by line and cause, most first.

        `causes`: which of them count. `known`: some gaps, in order, whose cause is another than it seems.
        """
        first = np.searchsorted(self._end, windows.starts[:1], side="right") if len(windows.starts) else [0]
        last = np.searchsorted(self._start, windows.ends[-1:], side="left") if len(windows.starts) else [0]
        part = slice(int(first[0]), int(last[0]))
        time = windows.within(self._start[part], self._end[part])
        gap, of_gap = self._gap[part], self._cause[part]
        gaps, better = known
        if len(gaps):
            nearest = np.minimum(np.searchsorted(gaps, gap), len(gaps) - 1)
            of_gap = np.where(gaps[nearest] == gap, better[nearest], of_gap)
        pairs, which = np.unique(self._place[part] * len(CAUSES) + of_gap, return_inverse=True)
        spent = np.bincount(which.reshape(-1), weights=time, minlength=len(pairs))
        found = []
        for at in np.argsort(-spent, kind="stable").tolist():
            place, cause = (
                parse_place(self._strings[int(pairs[at]) // len(CAUSES)]),
                CAUSES[int(pairs[at]) % len(CAUSES)],
            )
            if place is not None and spent[at] > 0 and causes(cause):
                found.append(IdleLine(place.file, place.line, place.function, cause, int(spent[at])))
        return found[:_MOST_LINES]
