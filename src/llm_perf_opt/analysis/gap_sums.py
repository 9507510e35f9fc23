"""The gaps of each process made ready for sums over windows, and cut at what the host was in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial

import numpy as np

from llm_perf_opt.analysis.code_lines import IdleLines
from llm_perf_opt.analysis.gaps import CAUSES, Gaps, find_gaps
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.regions.columns import SHORTEST_EVENT, UNKNOWN, CodeSpans, Int32s, Int64s, OperatorCalls, Timeline
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.intervals import BusyTime, running
from llm_perf_opt.regions.operator_calls import outermost_around

# What emit_nvtx writes behind the name of an operator.
_OPERATOR_FACTS = re.compile(r", (op_id|seq|sizes|input_op_ids)\b.*", re.DOTALL)
_DIRECTORIES = re.compile(r"^[^():]*/(?=[^/():]+\.py\(\d+\): )")
_NUMBER_AT_END = re.compile(r"(?<=[ _#:=-])\d+$")
_WARMUP = CAUSES.index("warmup")


class SumsOfProcesses:
    """The gaps of each process, found when they are first asked for. Apart: nothing may keep a timeline in a circle."""

    def __init__(self, warmth: SteadyTimeline) -> None:
        self._timeline, self._warmup = warmth.timeline, warmth.instances.first
        self._known: dict[int, GapSums] = {}

    def of(self, process: int) -> GapSums:
        if process not in self._known:
            gaps = find_gaps(self._timeline, process, self._warmup)
            lines = IdleLines.of(self._timeline, process, gaps)
            asked = (partial(find, self._timeline, process, gaps) for find in (_operators, _several))
            self._known[process] = GapSums(gaps, lines, *asked)
        return self._known[process]

    def gaps(self, process: int) -> Gaps:
        return self.of(process).gaps


class GapSums:
    """The gaps of a process, made ready for sums over windows: of short ones by cause, without looking at each."""

    def __init__(
        self,
        gaps: Gaps,
        lines: IdleLines | None,
        operators: Callable[[], IdleLines | None],
        several: Callable[[], IdleLines | None],
    ) -> None:
        self.gaps, self.lines, self._find_operators, self._find_several = gaps, lines, operators, several
        length = gaps.end - gaps.start
        short = np.ones(len(gaps), dtype=np.bool_)
        short[gaps.named] = False
        self._named_start, self._named_end = gaps.start[gaps.named], gaps.end[gaps.named]
        short &= gaps.cause != _WARMUP  # nothing a warm program waits for
        self._cause = np.where(short, gaps.cause, UNKNOWN)
        # cause -> which gaps, and the time of those before each of them, and of all
        self._of_cause: dict[int, tuple[Int64s, Int64s]] = {}
        for cause in distinct(self._cause).tolist():
            if cause != UNKNOWN:
                mine = np.flatnonzero(self._cause == cause)
                self._of_cause[cause] = mine, running(length[mine])

    @cached_property
    def operators(self) -> IdleLines | None:
        """The gaps cut at operators that take long; few gaps are explained by some."""
        return self._find_operators()

    @cached_property
    def several(self) -> IdleLines | None:
        """The gaps that nothing fills by itself, cut at what the host was in one behind the other."""
        return self._find_several()

    def named_inside(self, windows: BusyTime) -> Int64s:
        """Which of the named gaps share time with the windows."""
        first = np.searchsorted(self._named_end, windows.starts, side="right")
        last = np.searchsorted(self._named_start, windows.ends, side="left")
        counts = np.maximum(last - first, 0)
        if not counts.any():
            return np.zeros(0, dtype=np.int64)
        begin = np.repeat(first - (np.cumsum(counts) - counts), counts)
        return np.unique(begin + np.arange(int(counts.sum())))  # a gap may lie in two windows

    def short(self, windows: BusyTime) -> Iterable[tuple[int, int, int]]:
        """Cause, number and time of the short gaps in the windows."""
        for cause, counts, times in self.short_of_each(windows.starts, windows.ends):
            if (time := int(times.sum())) > 0:
                yield cause, max(int(counts.sum()), 1), time

    def short_of_each(self, starts: Int64s, ends: Int64s) -> Iterable[tuple[int, Int64s, Int64s]]:
        """The same of each window."""
        sides = [self._until(moments) for moments in (starts, ends)]
        for cause, (mine, time) in self._of_cause.items():
            found = []
            for at, part in sides:
                own = (self._cause[np.maximum(at - 1, 0)] == cause) & (at > 0)
                before = np.searchsorted(mine, at)
                # The gap that the moment lies in, or the last before it, counts as far as it has come.
                found.append((before, time[before - own] + np.where(own, part, 0)))
            (count_before, time_before), (count_after, time_after) = found
            yield cause, count_after - count_before, time_after - time_before

    def _until(self, moments: Int64s) -> tuple[Int64s, Int64s]:
        """How many gaps have begun by each moment, and how far the last of them has come."""
        at = np.searchsorted(self.gaps.start, moments, side="right")
        last = np.maximum(at - 1, 0)
        if not len(self.gaps):
            return at, np.zeros(len(at), dtype=np.int64)
        part = np.minimum(moments, self.gaps.end[last]) - self.gaps.start[last]
        return at, np.where(at > 0, part, 0)


def pooled_name(name: str) -> str:
    """`IO 190` and `IO 250` are one thing, as are calls of one operator; of a file its name is enough."""
    return _DIRECTORIES.sub("", _NUMBER_AT_END.sub("…", _OPERATOR_FACTS.sub("", name)))


def _operators(timeline: Timeline, process: int, gaps: Gaps) -> IdleLines | None:
    """Only what shares time with a gap that has a name."""
    calls, starts, ends = timeline.calls, gaps.start[gaps.named], gaps.end[gaps.named]
    following = np.append(starts, np.iinfo(np.int64).max)[np.searchsorted(ends, calls.start, side="right")]
    long = np.flatnonzero((calls.end - calls.start >= SHORTEST_EVENT) & (following < calls.end))
    calls = OperatorCalls(
        calls.start[long], calls.end[long], calls.thread[long], calls.name[long], inputs=calls.inputs[long]
    )
    one = np.flatnonzero(outermost_around(calls) == np.arange(len(calls)))
    process_of = np.array(timeline.threads, dtype=np.int32)[calls.thread[one]]
    spans = CodeSpans(calls.start[one], calls.end[one], process_of, calls.thread[one], calls.name[one])
    return IdleLines.of(timeline, process, gaps, spans, gaps.named)


def _several(timeline: Timeline, process: int, gaps: Gaps) -> IdleLines | None:
    """Ranges, functions, operators and calls of the launching threads, the outermost of those no longer than the gap.

    Places are indices into the strings, or, from there on, ranges.
    """
    alone = gaps.named[gaps.event == UNKNOWN]
    host, ranges, calls = timeline.host, timeline.ranges, timeline.calls
    process_of = np.array(timeline.threads, dtype=np.int32)
    of_range = len(timeline.strings) + np.arange(len(ranges))
    known = [(events.process == process) & (events.thread != UNKNOWN) for events in (host, ranges)]
    chosen = *known, process_of[calls.thread] == process

    def together(*columns: Int64s | Int32s) -> Int64s:
        return np.concatenate([one[mine].astype(np.int64) for one, mine in zip(columns, chosen, strict=True)])

    start, end = (together(*(getattr(kind, side) for kind in (host, ranges, calls))) for side in ("start", "end"))
    thread, name = together(host.thread, ranges.thread, calls.thread), together(host.name, of_range, calls.name)
    if not len(alone) or not len(start):
        return None
    following = np.minimum(np.searchsorted(gaps.end[alone], start, side="right"), len(alone) - 1)
    gap = alone[following]
    fits = (gaps.start[gap] < end) & (start < gaps.end[gap]) & (end - start <= gaps.end[gap] - gaps.start[gap])
    start, end, thread, name = (column[fits] for column in (start, end, thread, name))
    found = OperatorCalls(
        start, end, thread.astype(np.int32), name.astype(np.int32), inputs=np.full(len(name), UNKNOWN)
    )
    one = np.flatnonzero(outermost_around(found) == np.arange(len(found)))
    spans = CodeSpans(start[one], end[one], process_of[thread[one]], found.thread[one], found.name[one])
    return IdleLines.of(timeline, process, gaps, spans, alone)
