"""What a timeline says about the waiting of its regions, asked for region by region.

Three questions: what the host did while the GPU was idle; how the steps look from the GPU's side, where the program
runs ahead of it; and how long copies between host and GPU kept everything else waiting. And what was launched meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property, partial

import numpy as np
from attrs import Factory, define, evolve

from llm_perf_opt.analysis.code_lines import IdleLines
from llm_perf_opt.analysis.gaps import CAUSES, NAMED, TIGHT, Gaps, find_gaps
from llm_perf_opt.analysis.gpu_side import GpuSteps, inside_region
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchTable
from llm_perf_opt.metrics.host_calls import code_kind
from llm_perf_opt.regions.columns import SHORTEST_EVENT, UNKNOWN, Bools, CodeSpans, Int64s, OperatorCalls, Timeline
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.fixes import IdleLine
from llm_perf_opt.regions.idle import GapSize, GpuSide, IdleCause, IdleTime
from llm_perf_opt.regions.intervals import BusyTime, running
from llm_perf_opt.regions.operator_calls import outermost_around
from llm_perf_opt.regions.operator_names import is_operator
from llm_perf_opt.regions.rollup import Selection
from llm_perf_opt.regions.table import ROOT

SIZES = (10_000_000, 1_000_000, NAMED, 0)  # ns, of gaps
_MOST_CAUSES = 12  # listed of a region
_OFTEN, _FEWEST = 0.5, 3  # of the steady instances, and of gaps, from which on compiling is no warm-up
# What emit_nvtx writes behind the name of an operator.
_OPERATOR_FACTS = re.compile(r", (op_id|seq|sizes|input_op_ids)\b.*", re.DOTALL)
_DIRECTORIES = re.compile(r"^[^():]*/(?=[^/():]+\.py\(\d+\): )")
_NUMBER_AT_END = re.compile(r"(?<=[ _#:=-])\d+$")
_NAMED_BY_CALL = [CAUSES.index(cause) for cause in ("sync", "alloc", "module", "copy")]

_FIRST_USE = ("module", "startup")
_MOSTLY = 0.5  # of a whole recording, from which on its first uses are what there is to tell of it
_PYTHON, _THREAD, _UNSEEN, _WARMUP = (CAUSES.index(cause) for cause in ("python", "thread", "unseen", "warmup"))


_Processes = frozenset[int] | None  # None: all


class Waiting:
    """Of one timeline, of all of its processes or of some. Nothing is computed before somebody asks."""

    def __init__(self, warmth: SteadyTimeline) -> None:
        self._warmth = warmth
        self._processes: _Processes = None
        self._timeline, self._attribution = warmth.timeline, warmth.attribution
        table = self._attribution.table
        self._number = {table.key(number): number for number in range(len(table))}
        self._sums = _SumsOfProcesses(warmth)
        self._gpu_steps = GpuSteps(self._timeline, warmth.lifted, self._sums.gaps)
        self._launches: list[LaunchTable] = []  # one, once somebody has asked; views share it
        # What was asked already, by processes, for scopes of the same ones.
        self._steady: dict[tuple[_Processes, str], list[tuple[int, Int64s]]] = {}
        self._found: dict[tuple[_Processes, str, bool], IdleTime | None] = {}

    def prepare(self) -> None:
        """Find the gaps of all processes, which somebody will ask for. NumPy does that beside other work, in a thread."""
        for process in np.unique(self._timeline.ranges.process).tolist():
            self._sums.of(process)

    def of_scope(self, selection: Selection) -> Waiting | None:
        """The same of the processes of a scope; None where it holds only a part of what those did: one GPU of several."""
        ranges = self._timeline.ranges
        processes = frozenset(np.unique(ranges.process[selection.ranges]).tolist())
        for work, chosen in selection.work(self._timeline):
            if len(chosen) < len(work) and len(chosen) < int(np.isin(work.process, list(processes)).sum()):
                return None
        view = copy(self)  # what one scope has computed serves the others
        everybody = len(selection.ranges) == len(ranges)
        view._processes = None if everybody else processes
        return view

    def _instances(self, key: str) -> list[tuple[int, Int64s]]:
        """Steady instances of a region, for each process that has some."""
        asked = self._processes, key
        if asked not in self._steady:
            self._steady[asked] = self._find_instances(key)
        return self._steady[asked]

    def _find_instances(self, key: str) -> list[tuple[int, Int64s]]:
        number = self._number.get(key)
        if number is None:
            return []
        which = np.flatnonzero((self._attribution.range_region == number) & ~self._warmth.instances.warmup)
        process = self._timeline.ranges.process[which]
        mine = [one for one in np.unique(process).tolist() if self._processes is None or one in self._processes]
        return [(one, which[process == one]) for one in mine]

    def idle(self, key: str, *, by_gpu: bool = False) -> IdleTime | None:
        """Why the GPU waits while a region runs; None where it has no steady instances.

        `by_gpu`: while its work runs on the GPU, for ranges that end before.
        """
        asked = self._processes, key, by_gpu
        if asked not in self._found:
            self._found[asked] = self._find_idle(key, by_gpu=by_gpu)
        return self._found[asked]

    def _find_idle(self, key: str, *, by_gpu: bool) -> IdleTime | None:
        ranges, found = self._timeline.ranges, []
        for process, which in self._instances(key):
            if by_gpu:
                windows = self._gpu_steps.windows(process, which, self._number[key])
            else:
                windows = BusyTime.of(ranges.start[which], ranges.end[which])
            sums, number = self._sums.of(process), self._number[key]
            idle = _compiled_again(self._idle(sums, windows, number), len(which))
            if number in self._attribution.table.whole and (once := _only_once(idle, windows)):
                idle = _compiled_again(self._idle(sums, windows, number, without=once), len(which))
            found.append(idle)
        return idle_together(found) if found else None

    def gpu_side(self, key: str) -> GpuSide | None:
        """The steady instances of a region by their work on the GPU; None where it has none."""
        steps = [self._gpu_steps.of(process, which, self._number[key]) for process, which in self._instances(key)]
        known = [one for one in steps if one is not None]
        return gpu_sides_together(known) if known else None

    def exposed_copies(self, key: str) -> int:
        """How long copies of a region between host and GPU ran while the GPU did nothing else, ns."""
        return self._gpu_steps.exposed_copies(self._number[key], self._processes) if key in self._number else 0

    def launched(self, key: str) -> Launched | None:
        """The kernels of the steady instances of a region, one by one; None where it has none."""
        instances, timeline = self._instances(key), self._timeline
        if not instances or not len(timeline.kernels):
            return None
        if not self._launches:
            self._launches.append(LaunchTable(timeline, self._warmth.lifted))
        which = np.concatenate([ranges for _, ranges in instances])
        windows = timeline.ranges.start[which], timeline.ranges.end[which]
        return self._launches[0].of(self._number[key], [process for process, _ in instances], windows)

    def _idle(
        self, sums: _GapSums, windows: BusyTime, region: int, without: Sequence[str] = (CAUSES[_WARMUP],)
    ) -> IdleTime:
        gaps = sums.gaps
        named = sums.named_inside(windows)
        named = named[~np.isin(gaps.cause[gaps.named[named]], [CAUSES.index(cause) for cause in without])]
        at = gaps.named[named]
        time = windows.within(gaps.start[at], gaps.end[at])
        size = np.searchsorted(-np.array(SIZES), gaps.start[at] - gaps.end[at])
        counts = np.bincount(size, minlength=len(SIZES))
        times = np.bincount(size, weights=time, minlength=len(SIZES)).astype(np.int64)
        causes = self._named_causes(sums, windows, named, time, region)
        for cause, count, spent in sums.short(windows):
            counts[-1] += count
            times[-1] += spent
            causes.append(IdleCause(CAUSES[cause], "", count, spent))
        total = int(times.sum())
        rows = zip(SIZES, counts.tolist(), times.tolist(), strict=True)
        sizes = [GapSize(least, count, spent, spent / total if total else 0.0) for least, count, spent in rows]
        lines = sums.lines.within(windows, lambda cause: cause not in without) if sums.lines is not None else []
        return IdleTime(total, int(counts.sum()), sizes, listed(causes), lines)

    def _named_causes(
        self, sums: _GapSums, windows: BusyTime, named: Int64s, time: Int64s, region: int
    ) -> list[IdleCause]:
        """Time by cause and name; a gap in which the host was in lines of the program, or in operators, is divided."""
        gaps = sums.gaps
        cause = gaps.cause[gaps.named[named]].astype(np.int64)
        inside = self._inside(gaps, named, region)
        label = gaps.event[named].copy()
        around = self._around(gaps.other_range[named], region)
        label[around] = UNKNOWN
        cause[around & (cause == _THREAD)] = _UNSEEN
        by_range = inside & (~np.isin(cause, _NAMED_BY_CALL) | (label == UNKNOWN))
        label[by_range] = self._timeline.ranges.name[gaps.range[named[by_range]]]
        # That the region itself was open says nothing about what it did.
        unknown = (cause == _PYTHON) & ~by_range
        cause[unknown & gaps.elsewhere[named]] = _THREAD
        cause[unknown & (label == UNKNOWN)] = _UNSEEN
        rest, rows, labels, times = time.copy(), [np.arange(len(named))], [label], [time]
        seen = [cause]
        for spans in (sums.lines, sums.operators if self._has_operators(label) else None):
            # No line fills half of a gap in which the host went through several: they tell all the same.
            several = (cause == _UNSEEN) & (label == UNKNOWN) & (spans is sums.lines)
            divided = np.flatnonzero(self._is_line(spans, label) | several)
            if spans is None or not len(divided):
                continue
            gap, place, spent = spans.of_gaps(gaps.named[named[divided]], windows)
            np.subtract.at(rest, divided[gap], spent)
            label[divided] = UNKNOWN  # what is left of them
            rows, labels, times = [*rows, divided[gap]], [*labels, place], [rest, *times[1:], spent.astype(np.int64)]
            of_gap = cause[divided[gap]]
            seen.append(np.where(of_gap == _UNSEEN, _PYTHON, of_gap))
        at = np.concatenate(rows)
        return self._summed(at, np.concatenate(seen), np.concatenate(labels), np.concatenate(times))

    def _has_operators(self, label: Int64s) -> bool:
        strings = self._timeline.strings
        return any(is_operator(strings[one]) for one in np.unique(label).tolist() if one != UNKNOWN)

    def _is_line(self, lines: IdleLines | None, label: Int64s) -> Bools:
        """Which names are those of lines of the program."""
        strings, known = self._timeline.strings, lines.names(_pooled) if lines is not None else set()
        own = [one for one in np.unique(label).tolist() if one != UNKNOWN and _pooled(strings[one]) in known]
        return np.isin(label, own)

    def _summed(self, gap: Int64s, cause: Int64s, label: Int64s, time: Int64s) -> list[IdleCause]:
        """`gap`: which one each time is of, or is a part of."""
        some = time > 0
        pairs = ((label + 1) * len(CAUSES) + cause)[some]
        used, which = np.unique(pairs, return_inverse=True)
        which = which.reshape(-1)
        once = np.unique(which * (len(gap) + 1) + gap[some]) // (len(gap) + 1)  # a gap counts once for every name
        count = np.bincount(once, minlength=len(used)).tolist()
        spent = np.bincount(which, weights=time[some], minlength=len(used)).tolist()
        found = []
        for pair, gaps_of_it, time_of_it in zip(used.tolist(), count, spent, strict=True):
            name = pair // len(CAUSES) - 1
            what = "" if name == UNKNOWN else _pooled(self._timeline.strings[name])
            found.append(IdleCause(CAUSES[pair % len(CAUSES)], what, gaps_of_it, int(time_of_it)))
        return found

    def _around(self, covering: Int64s, region: int) -> Bools:
        """Which ranges, where there is one, are the region's own or lie around it: they say nothing about it."""
        table, own = self._attribution.table, {region}
        while (region := table.parent[region]) != ROOT:
            own.add(region)
        regions = np.append(self._attribution.range_region, UNKNOWN)[covering]  # UNKNOWN is the last
        found: Bools = (covering != UNKNOWN) & np.isin(regions, list(own))
        return found

    def _inside(self, gaps: Gaps, named: Int64s, region: int) -> Bools:
        """Which of the gaps are covered by a range that lies in a region and is not its own."""
        covering, table, ranges = gaps.range[named], self._attribution.table, self._timeline.ranges
        inside, known = np.zeros(len(covering), dtype=np.bool_), covering != UNKNOWN
        regions = self._attribution.range_region[covering[known]]
        if region in table.whole:  # none lies in it, as a region; those around many gaps say nothing about one
            gap, which = gaps.named[named[known]], covering[known]
            tight = ranges.end[which] - ranges.start[which] <= TIGHT * (gaps.end[gap] - gaps.start[gap])
            inside[known] = tight & (gaps.event[named[known]] == UNKNOWN) & ~np.isin(regions, list(table.whole))
        else:
            inside[known] = inside_region(regions, region, table) & (regions != region)
        return inside


@define(eq=False)
class KnownWaiting:
    """The same of several timelines, of which none is at hand any more: answers that were asked for in time."""

    _idle: dict[tuple[str, bool], list[IdleTime]] = Factory(dict)
    _sides: dict[str, list[GpuSide]] = Factory(dict)
    _copies: dict[str, int] = Factory(dict)
    _launched: dict[str, list[Launched]] = Factory(dict)

    def add(self, waiting: Waiting, key: str, *, early: bool, copies: bool) -> None:
        """Ask a timeline about a region. `early`: its ranges end before their work; `copies`: it copies from the host."""
        if (idle := waiting.idle(key, by_gpu=early)) is not None:
            self._idle[key, early] = [idle]
        if early and (side := waiting.gpu_side(key)) is not None:
            self._sides[key] = [side]
        if copies:
            self._copies[key] = waiting.exposed_copies(key)
        if (launched := waiting.launched(key)) is not None:
            self._launched[key] = [launched]

    @staticmethod
    def together(parts: Sequence[KnownWaiting]) -> KnownWaiting:
        """Of several recordings."""
        found = KnownWaiting()
        for part in parts:
            for at, idle in part._idle.items():
                found._idle.setdefault(at, []).extend(idle)
            for key, sides in part._sides.items():
                found._sides.setdefault(key, []).extend(sides)
            for key, launched in part._launched.items():
                found._launched.setdefault(key, []).extend(launched)
            for key, copies in part._copies.items():
                found._copies[key] = found._copies.get(key, 0) + copies
        return found

    def idle(self, key: str, *, by_gpu: bool = False) -> IdleTime | None:
        known = self._idle.get((key, by_gpu))
        return idle_together(known) if known else None

    def launched(self, key: str) -> Launched | None:
        known = self._launched.get(key)
        return Launched.together(known) if known else None

    def gpu_side(self, key: str) -> GpuSide | None:
        known = self._sides.get(key)
        return gpu_sides_together(known) if known else None

    def exposed_copies(self, key: str) -> int:
        return self._copies.get(key, 0)


class _SumsOfProcesses:
    """The gaps of each process, found when they are first asked for. Apart: nothing may keep a timeline in a circle."""

    def __init__(self, warmth: SteadyTimeline) -> None:
        self._timeline, self._warmup = warmth.timeline, warmth.instances.first
        self._known: dict[int, _GapSums] = {}

    def of(self, process: int) -> _GapSums:
        if process not in self._known:
            gaps = find_gaps(self._timeline, process, self._warmup)
            lines = IdleLines.of(self._timeline, process, gaps)
            self._known[process] = _GapSums(gaps, lines, partial(_operators, self._timeline, process, gaps))
        return self._known[process]

    def gaps(self, process: int) -> Gaps:
        return self.of(process).gaps


class _GapSums:
    """The gaps of a process, made ready for sums over windows: of short ones by cause, without looking at each."""

    def __init__(self, gaps: Gaps, lines: IdleLines | None, operators: Callable[[], IdleLines | None]) -> None:
        self.gaps, self.lines, self._find_operators = gaps, lines, operators
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
        sides = [self._until(moments) for moments in (windows.starts, windows.ends)]
        for cause, (mine, time) in self._of_cause.items():
            found = []
            for at, part in sides:
                own = (self._cause[np.maximum(at - 1, 0)] == cause) & (at > 0)
                before = np.searchsorted(mine, at)
                # The gap that the moment lies in, or the last before it, counts as far as it has come.
                found.append((int(before.sum()), int((time[before - own] + np.where(own, part, 0)).sum())))
            (count_before, time_before), (count_after, time_after) = found
            if time_after > time_before:
                yield cause, max(count_after - count_before, 1), time_after - time_before

    def _until(self, moments: Int64s) -> tuple[Int64s, Int64s]:
        """How many gaps have begun by each moment, and how far the last of them has come."""
        at = np.searchsorted(self.gaps.start, moments, side="right")
        last = np.maximum(at - 1, 0)
        if not len(self.gaps):
            return at, np.zeros(len(at), dtype=np.int64)
        part = np.minimum(moments, self.gaps.end[last]) - self.gaps.start[last]
        return at, np.where(at > 0, part, 0)


def _pooled(name: str) -> str:
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
    return IdleLines.of(timeline, process, gaps, spans)


def _only_once(idle: IdleTime, windows: BusyTime) -> list[str]:
    """Causes of idle time in a whole recording that are no part of it once it is warm; none where they are most of it.

    It has no instances of which the first could be left out; what gaps say of first uses is all there is.
    """
    again = any(one.cause == "compile" for one in idle.causes)
    once = _FIRST_USE[1:] if again else _FIRST_USE
    time = sum(one.time_ns for one in idle.causes if one.cause in once)
    return [CAUSES[_WARMUP], *once] if 0 < time < _MOSTLY * windows.total else []


def _compiled_again(idle: IdleTime, instances: int) -> IdleTime:
    """What is compiled in every other steady instance, or more often, is no warm-up."""
    again = [
        one.cause == "module" and code_kind(one.what) == "compile" and one.gaps >= max(_OFTEN * instances, _FEWEST)
        for one in idle.causes
    ]
    if not any(again):
        return idle
    causes = [evolve(one, cause="compile") if new else one for one, new in zip(idle.causes, again, strict=True)]
    lines = [evolve(line, cause="compile") if line.cause == "module" else line for line in idle.lines]
    return evolve(idle, causes=causes, lines=lines)


def listed(causes: Iterable[IdleCause]) -> list[IdleCause]:
    """Equal ones added up, most time first; those beyond the first few are added up without a name."""
    found: dict[tuple[str, str], IdleCause] = {}

    def add(one: IdleCause, what: str) -> None:
        known = found.get((one.cause, what), IdleCause(one.cause, what, 0, 0))
        found[one.cause, what] = IdleCause(one.cause, what, known.gaps + one.gaps, known.time_ns + one.time_ns)

    for one in causes:
        add(one, one.what)
    ordered = sorted(found.values(), key=lambda one: -one.time_ns)
    if len(ordered) > _MOST_CAUSES:
        found = {}
        for place, one in enumerate(ordered):
            add(one, one.what if place < _MOST_CAUSES else "")
        ordered = sorted(found.values(), key=lambda one: -one.time_ns)
    return ordered


def idle_together(parts: list[IdleTime]) -> IdleTime:
    """Of several processes or recordings."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.total_ns for part in parts)
    sizes = []
    for same in zip(*(part.sizes for part in parts), strict=True):
        time = sum(one.time_ns for one in same)
        count = sum(one.gaps for one in same)
        sizes.append(GapSize(same[0].at_least_ns, count, time, time / total if total else 0.0))
    causes = listed(one for part in parts for one in part.causes)
    return IdleTime(total, sum(part.gaps for part in parts), sizes, causes, _lines_together(parts))


def _lines_together(parts: Iterable[IdleTime]) -> list[IdleLine]:
    found: dict[tuple[str, int, str, str], IdleLine] = {}
    for one in (one for part in parts for one in part.lines):
        key = (one.file, one.line, one.function, one.cause)
        known = found.get(key)
        found[key] = one if known is None else evolve(one, time_ns=one.time_ns + known.time_ns)
    return sorted(found.values(), key=lambda one: -one.time_ns)


def gpu_sides_together(parts: list[GpuSide]) -> GpuSide:
    """Of several processes or recordings."""
    steps = [part.step_ns for part in parts if part.step_ns is not None]
    return GpuSide(
        instances=sum(part.instances for part in parts),
        time_ns=sum(part.time_ns for part in parts),
        idle_ns=sum(part.idle_ns for part in parts),
        idle_between_ns=sum(part.idle_between_ns for part in parts),
        step_ns=int(np.median(steps)) if steps else None,
    )
