"""What a timeline says about the waiting of its regions, asked for region by region.

Three questions: what the host did while the GPU was idle; how the steps look from the GPU's side, where the program
runs ahead of it; and how long copies between host and GPU kept everything else waiting. And what was launched meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
from attrs import evolve

from llm_perf_opt.analysis.code_lines import CodeLines, IdleLines
from llm_perf_opt.analysis.gap_sums import GapSums, SumsOfProcesses, pooled_name
from llm_perf_opt.analysis.gaps import CAUSES, NAMED, TIGHT, Gaps
from llm_perf_opt.analysis.gpu_side import GpuSteps, inside_region
from llm_perf_opt.analysis.idle_spread import IdleParts, Windows, spread_of
from llm_perf_opt.analysis.known_waiting import gpu_sides_together, idle_together, listed
from llm_perf_opt.analysis.steady import SteadyTimeline
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchTable
from llm_perf_opt.metrics.host_calls import call_kind, code_kind, is_call
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.columns import UNKNOWN, Bools, Int64s
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.frameworks import may_be_torch
from llm_perf_opt.regions.idle import GapSize, GpuSide, IdleCause, IdleTime
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.operator_names import is_operator
from llm_perf_opt.regions.rollup import Selection
from llm_perf_opt.regions.table import ROOT

SIZES = (10_000_000, 1_000_000, NAMED, 0)  # ns, of gaps
_OFTEN, _FEWEST = 0.5, 3  # of the steady instances, and of gaps, from which on compiling is no warm-up
_NAMED_BY_WHAT = [CAUSES.index(cause) for cause in ("sync", "alloc", "module", "copy", "data")]  # not by a range

_LOADED, _MANY = 3, 20  # times each kernel, and gaps, from which on loading code is no first use
_FIRST_USE = ("module", "startup")
_MOSTLY = 0.5  # of a whole recording, from which on its first uses are what there is to tell of it
_PYTHON, _THREAD, _UNSEEN, _WARMUP = (CAUSES.index(cause) for cause in ("python", "thread", "unseen", "warmup"))


_HOST_CODE = (_PYTHON, _THREAD, _UNSEEN, *(CAUSES.index(cause) for cause in ("data", "alloc", "module", "startup")))
_CAUSE_OF_KIND = {
    "data": "data",
    "compile": "module",
    "wait": "wait",
    "sync": "sync",
    "alloc": "alloc",
    "module": "module",
    "copy": "copy",
}
_Processes = frozenset[int] | None  # None: all


class Waiting:
    """Of one timeline, of all of its processes or of some. Nothing is computed before somebody asks."""

    def __init__(self, warmth: SteadyTimeline, code: CodeLines | None = None) -> None:
        """`code`: which lines launch; None where the recording tells of none, or nobody asks for them."""
        self._warmth, self._code = warmth, code if len(warmth.timeline.code) else None
        self._processes: _Processes = None
        self._timeline, self._attribution = warmth.timeline, warmth.attribution
        table = self._attribution.table
        self._number = {table.key(number): number for number in range(len(table))}
        self._sums = SumsOfProcesses(warmth)
        self._gpu_steps = GpuSteps(self._timeline, warmth.lifted, self._sums.gaps)
        self._launches: list[LaunchTable] = []  # one, once somebody has asked; views share it
        # What was asked already, by processes, for scopes of the same ones.
        self._different: dict[int, int] = {}
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
            sums, number = self._sums.of(process), self._number[key]
            if by_gpu:
                windows = self._gpu_steps.windows(process, which, number)
                each = self._gpu_steps.one_by_one(process, which, number)
            else:
                windows = BusyTime.of(ranges.start[which], ranges.end[which])
                each = ranges.start[which], ranges.end[which]
            one_by_one = Windows.of(*each)
            different = self._different_kernels(process)
            idle = _compiled_again(self._idle(sums, windows, one_by_one, number), len(which), different)
            if number in self._attribution.table.whole and (once := _only_once(idle, windows)):
                idle = self._idle(sums, windows, one_by_one, number, without=once)
                idle = _compiled_again(idle, len(which), different)
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

    def copied(self, key: str) -> dict[Place, float]:
        """How long copies of a region between host and GPU take, by the line that makes them."""
        return self._code.copies(key, self._processes) if self._code is not None else {}

    def launched(self, key: str) -> Launched | None:
        """The kernels of the steady instances of a region, one by one; None where it has none."""
        instances, timeline = self._instances(key), self._timeline
        if not instances or not len(timeline.kernels):
            return None
        if not self._launches:
            origins = self._code.origins if self._code is not None else None
            self._launches.append(LaunchTable(timeline, self._warmth.lifted, origins))
        which = np.concatenate([ranges for _, ranges in instances])
        windows = timeline.ranges.start[which], timeline.ranges.end[which]
        return self._launches[0].of(self._number[key], [process for process, _ in instances], windows)

    @cached_property
    def torch(self) -> bool:
        """May it be a program of PyTorch?"""
        return may_be_torch(self._timeline)

    def _different_kernels(self, process: int) -> int:
        if process not in self._different:
            kernels = self._timeline.kernels
            alone = len(self._timeline.processes) == 1
            names = kernels.name if alone else kernels.name[kernels.process == process]
            self._different[process] = len(distinct(names))
        return self._different[process]

    @cached_property
    def gpu_times(self) -> dict[int, int]:
        """How long each GPU ran kernels, ns."""
        kernels = self._timeline.kernels
        found = {}
        for gpu in distinct(kernels.device).tolist():
            mine = kernels.device == gpu
            found[gpu] = BusyTime.of(kernels.start[mine], kernels.end[mine]).total
        return found

    def _idle(
        self,
        sums: GapSums,
        windows: BusyTime,
        instances: Windows | None,
        region: int,
        without: Sequence[str] = (CAUSES[_WARMUP],),
    ) -> IdleTime:
        """`instances`: the same windows, one for each; None where they cannot be told apart."""
        gaps = sums.gaps
        named = sums.named_inside(windows)
        named = named[~np.isin(gaps.cause[gaps.named[named]], [CAUSES.index(cause) for cause in without])]
        at = gaps.named[named]
        time = windows.within(gaps.start[at], gaps.end[at])
        size = np.searchsorted(-np.array(SIZES), gaps.start[at] - gaps.end[at])
        counts = np.bincount(size, minlength=len(SIZES))
        times = np.bincount(size, weights=time, minlength=len(SIZES)).astype(np.int64)
        parts, of_gap = self._parts(sums, windows, named, time, region)
        causes = self._summed(parts)
        for cause, count, spent in sums.short(windows):
            counts[-1] += count
            times[-1] += spent
            causes.append(IdleCause(CAUSES[cause], "", count, spent))
        total = int(times.sum())
        rows = zip(SIZES, counts.tolist(), times.tolist(), strict=True)
        sizes = [GapSize(least, count, spent, spent / total if total else 0.0) for least, count, spent in rows]
        lines = []
        if sums.lines is not None:
            lines = sums.lines.within(windows, lambda cause: cause not in without, (at, of_gap))
        return IdleTime(total, int(counts.sum()), sizes, listed(causes), lines, spread_of(sums, instances, at, parts))

    def _parts(
        self, sums: GapSums, windows: BusyTime, named: Int64s, time: Int64s, region: int
    ) -> tuple[IdleParts, Int64s]:
        """Time by gap, cause and name, and the cause of each gap where the host was in lines.

        A gap in which the host was in lines of the program, in operators or in several short things is divided.
        """
        gaps = sums.gaps
        cause = gaps.cause[gaps.named[named]].astype(np.int64)
        inside = self._inside(gaps, named, region)
        label = gaps.event[named].copy()
        around = self._around(gaps.other_range[named], region)
        label[around] = UNKNOWN
        cause[around & (cause == _THREAD)] = _UNSEEN
        by_range = inside & (~np.isin(cause, _NAMED_BY_WHAT) | (label == UNKNOWN))
        label[by_range] = self._timeline.ranges.name[gaps.range[named[by_range]]]
        # That the region itself was open says nothing about what it did.
        unknown = (cause == _PYTHON) & ~by_range
        cause[unknown & gaps.elsewhere[named]] = _THREAD
        cause[unknown & (label == UNKNOWN)] = _UNSEEN
        rest, rows, labels, times = time.copy(), [np.arange(len(named))], [label], [time]
        seen = [cause]
        in_lines = np.where(cause == _UNSEEN, _PYTHON, cause)
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
        nameless = np.flatnonzero((label == UNKNOWN) & np.isin(cause, _HOST_CODE) & (2 * rest > time))
        if len(nameless) and (spans := sums.several) is not None:
            gap, place, spent = spans.of_gaps(gaps.named[named[nameless]], windows)
            place, tells = self._names_of(place, region)
            gap, place, spent = gap[tells], place[tells], spent[tells]
            filled = 2 * np.bincount(gap, weights=spent, minlength=len(nameless)) >= rest[nameless]
            gap, place, spent = (column[filled[gap]] for column in (gap, place, spent))
            np.subtract.at(rest, nameless[gap], spent)
            rows, labels, times = [*rows, nameless[gap]], [*labels, place], [rest, *times[1:], spent.astype(np.int64)]
            seen.append(self._causes_of_names(place, cause[nameless[gap]]))
        parts = IdleParts(np.concatenate(rows), np.concatenate(seen), np.concatenate(labels), np.concatenate(times))
        return parts, in_lines

    def _names_of(self, places: Int64s, region: int) -> tuple[Int64s, Bools]:
        """Of places as `_several` has them the names, and which tell anything: the region's own ranges do not."""
        strings, ranges = len(self._timeline.strings), self._timeline.ranges
        at = places - strings
        of_range = at >= 0
        at = np.where(of_range, at, UNKNOWN)
        names = np.where(of_range, np.append(ranges.name, UNKNOWN)[at], places)
        return names, ~self._around(at, region)

    def _causes_of_names(self, names: Int64s, otherwise: Int64s) -> Int64s:
        """What parts of a gap are, by the names of what the host was in; `otherwise`: what the gap is."""
        used, which = np.unique(names, return_inverse=True)
        kinds = np.array([_cause_of_name(self._timeline.strings[name]) for name in used.tolist()], dtype=np.int64)
        told = kinds[which.reshape(-1)]
        return np.where(told != UNKNOWN, told, np.where(otherwise == _UNSEEN, _PYTHON, otherwise))

    def _has_operators(self, label: Int64s) -> bool:
        strings = self._timeline.strings
        return any(is_operator(strings[one]) for one in np.unique(label).tolist() if one != UNKNOWN)

    def _is_line(self, lines: IdleLines | None, label: Int64s) -> Bools:
        """Which names are those of lines of the program."""
        strings, known = self._timeline.strings, lines.names(pooled_name) if lines is not None else set()
        own = [one for one in np.unique(label).tolist() if one != UNKNOWN and pooled_name(strings[one]) in known]
        return np.isin(label, own)

    def _summed(self, parts: IdleParts) -> list[IdleCause]:
        gap, cause, label, time = parts.gap, parts.cause, parts.label, parts.time
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
            what = "" if name == UNKNOWN else pooled_name(self._timeline.strings[name])
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


def _cause_of_name(name: str) -> int:
    """By what the host was in; UNKNOWN: the name says nothing of it."""
    kind = _CAUSE_OF_KIND.get(code_kind(name)) or _CAUSE_OF_KIND.get(call_kind(name) if is_call(name) else "")
    return UNKNOWN if kind is None else CAUSES.index(kind)


def _only_once(idle: IdleTime, windows: BusyTime) -> list[str]:
    """Causes of idle time in a whole recording that are no part of it once it is warm; none where they are most of it.

    It has no instances of which the first could be left out; what gaps say of first uses is all there is.
    """
    again = any(one.cause == "compile" for one in idle.causes)
    once = _FIRST_USE[1:] if again else _FIRST_USE
    time = sum(one.time_ns for one in idle.causes if one.cause in once)
    return [CAUSES[_WARMUP], *once] if 0 < time < _MOSTLY * windows.total else []


def _compiled_again(idle: IdleTime, instances: int, kernels: int) -> IdleTime:
    """What is compiled in every other steady instance, or more often, is no warm-up.

    Nor is loading code more often than there are different `kernels` to load.
    """
    loads = max(_LOADED * kernels, _MANY)
    again = [
        one.cause == "module"
        and (one.gaps >= (max(_OFTEN * instances, _FEWEST) if code_kind(one.what) == "compile" else loads))
        for one in idle.causes
    ]
    if not any(again):
        return idle
    causes = [evolve(one, cause="compile") if new else one for one, new in zip(idle.causes, again, strict=True)]
    lines = [evolve(line, cause="compile") if line.cause == "module" else line for line in idle.lines]
    return evolve(idle, causes=causes, lines=lines)
