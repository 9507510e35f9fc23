"""Which line of the program launched each kernel, and in which lines the host was while the GPU was idle.

A launch belongs to the line its thread was in when it made the call; a kernel of a CUDA graph to the line it was captured
in. Where nothing says so (marks pause, samples are a millisecond apart), launches that are alike (same kernel, same
launch configuration, same region) are taken to come from the same lines, in the same proportions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from llm_perf_opt.analysis.gaps import CAUSES, Gaps
from llm_perf_opt.analysis.gpu_side import inside_region
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.code import Place, SpansByThread, parse_place
from llm_perf_opt.regions.columns import UNKNOWN, Bools, CodeSpans, Int64s, Timeline
from llm_perf_opt.regions.fixes import IdleLine
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.operator_calls import operator_spans
from llm_perf_opt.regions.signatures import Signature, describe_signatures, distinct_rows

_MOST_LINES = 40  # of idle time, listed of a region


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
        if len(kernels) == len(every) or not len(self._warmth.timeline.code):
            return self
        mask = np.zeros(len(every), dtype=np.bool_)
        mask[kernels] = True
        view = CodeLines(self._warmth, mask)
        view._known = self._launches()
        return view

    def launches(self, key: str) -> list[LaunchedFrom]:
        """The launches of a region's steady instances."""
        if not len(self._warmth.timeline.code):  # operators alone are no lines
            return []
        attribution = self._warmth.lifted
        number = next((n for n in range(len(attribution.table)) if attribution.table.key(n) == key), None)
        if number is None:
            return []
        held = _held(attribution, number, len(self._warmth.timeline.kernels))
        if self._kernels is not None:
            held &= self._kernels
        return self._launches().summed(held)

    def _launches(self) -> _Launches:
        if self._known is None:
            self._known = _Launches.of(self._warmth.timeline, self._warmth.attribution)
        return self._known


def _held(attribution: Attribution, region: int, kernels: int) -> Bools:
    held = np.zeros(kernels, dtype=np.bool_)
    for regions in attribution.kernels.by_domain:
        held |= inside_region(regions, region, attribution.table)
    held[attribution.kernels.start_end.get(region, np.zeros(0, dtype=np.int64))] = True
    return held


@define(eq=False)
class _Launches:
    """All kernels of a timeline: where each was launched, or the launches that it is like."""

    timeline: Timeline
    described: list[Signature]
    signature: Int64s
    place: Int64s  # of each kernel, as an index into the strings; UNKNOWN where nothing says
    operator: Int64s  # the same, into `operators`
    operators: list[str]
    alike: Int64s  # number of the launches that each kernel is like
    rows: tuple[
        Int64s, Int64s, Int64s
    ]  # of the launches that are alike and known: number, place and operator, how many

    @staticmethod
    def of(timeline: Timeline, attribution: Attribution) -> _Launches:
        signature, described = describe_signatures(timeline)
        place = launching_places(timeline, timeline.code)
        spans, operators = operator_spans(timeline)
        operator = launching_places(timeline, spans)
        within, _ = distinct_rows([signature, *attribution.kernels.by_domain])
        known = place != UNKNOWN
        # Where no launch of a region is known, those of the same kernel elsewhere have to do.
        alone = np.zeros(int(within.max(initial=-1)) + 1, dtype=np.bool_)
        alone[within[known]] = True
        alike = np.where(alone[within], within, within.max(initial=0) + 1 + signature)
        both = np.concatenate([within[known], within.max(initial=0) + 1 + signature[known]])
        what = (place[known] + 1) * (len(operators) + 1) + operator[known] + 1
        pairs, count = np.unique(np.stack([both, np.tile(what, 2)], axis=1), axis=0, return_counts=True)
        rows = pairs[:, 0], pairs[:, 1], count
        return _Launches(timeline, described, signature, place, operator, operators, alike, rows)

    def summed(self, held: Bools) -> list[LaunchedFrom]:
        kernels, operators = self.timeline.kernels, len(self.operators) + 1
        chosen = np.flatnonzero(held)
        time = (kernels.end - kernels.start)[chosen].astype(np.float64)
        what = (self.place[chosen] + 1) * operators + self.operator[chosen] + 1
        known = self.place[chosen] != UNKNOWN
        found: dict[tuple[int, int], list[float]] = {}

        def add(signature: int, what: int, calls: float, time: float) -> None:
            row = found.setdefault((signature, what), [0.0, 0.0])
            row[0] += calls
            row[1] += time

        for signature, of, calls, spent in _grouped(self.signature[chosen[known]], what[known], time[known]):
            add(signature, of, calls, spent)
        rest = chosen[~known]
        number, places, count = self.rows
        for alike, signature, calls, spent in _grouped(self.alike[rest], self.signature[rest], time[~known]):
            first, last = np.searchsorted(number, alike), np.searchsorted(number, alike, side="right")
            if first == last:
                add(signature, 0, calls, spent)
                continue
            shares = count[first:last] / count[first:last].sum()
            for of, share in zip(places[first:last].tolist(), shares.tolist(), strict=True):
                add(signature, of, calls * share, spent * share)
        texts, described = self.timeline.strings, self.described
        rows = []
        for (signature, of), (calls, spent) in found.items():
            place, operator = of // operators - 1, of % operators - 1
            where = parse_place(texts[place]) if place >= 0 else None
            named = self.operators[operator] if operator >= 0 else ""
            rows.append(LaunchedFrom(where, named, described[signature], calls, spent))
        return rows


def _grouped(first: Int64s, second: Int64s, time: NDArray[np.float64]) -> list[tuple[int, int, float, float]]:
    """Number and time of the rows of each pair."""
    if not len(first):
        return []
    many = int(second.max()) + 1
    pairs, which = np.unique(first * many + second, return_inverse=True)
    count = np.bincount(which.reshape(-1), minlength=len(pairs))
    spent = np.bincount(which.reshape(-1), weights=time, minlength=len(pairs))
    columns = (pairs // many, pairs % many, count, spent)
    return list(zip(*(column.tolist() for column in columns), strict=True))


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
    _cause: Int64s
    _place: Int64s
    _strings: list[str]

    @staticmethod
    def of(timeline: Timeline, process: int, gaps: Gaps) -> IdleLines | None:
        """Of the thread that launches and has most to tell; None where nothing is known of it."""
        spans = timeline.code
        launching = np.unique(np.concatenate([work.thread[work.process == process] for work in timeline.work]))
        mine = np.flatnonzero((spans.process == process) & np.isin(spans.thread, launching))
        if not len(mine) or not len(gaps):
            return None
        thread = int(np.argmax(np.bincount(spans.thread[mine])))
        mine = mine[spans.thread[mine] == thread]
        mine = mine[np.argsort(spans.start[mine], kind="stable")]
        cuts = np.unique(np.concatenate([gaps.start, gaps.end, spans.start[mine], spans.end[mine]]))
        begin, finish = cuts[:-1], cuts[1:]
        gap = np.searchsorted(gaps.start, begin, side="right") - 1
        span = np.searchsorted(spans.start[mine], begin, side="right") - 1
        both = (gap >= 0) & (span >= 0)
        both &= (finish <= gaps.end[np.maximum(gap, 0)]) & (finish <= spans.end[mine][np.maximum(span, 0)])
        place = spans.place[mine][span[both]].astype(np.int64)
        return IdleLines(begin[both], finish[both], gaps.cause[gap[both]].astype(np.int64), place, timeline.strings)

    def within(self, windows: BusyTime, causes: Callable[[str], bool]) -> list[IdleLine]:
        """Idle time by line and cause, most first. `causes`: which of them count."""
        first = np.searchsorted(self._end, windows.starts[:1], side="right") if len(windows.starts) else [0]
        last = np.searchsorted(self._start, windows.ends[-1:], side="left") if len(windows.starts) else [0]
        part = slice(int(first[0]), int(last[0]))
        time = windows.within(self._start[part], self._end[part])
        pairs, which = np.unique(self._place[part] * len(CAUSES) + self._cause[part], return_inverse=True)
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
