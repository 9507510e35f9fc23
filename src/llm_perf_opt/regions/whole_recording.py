"""A recording whose ranges do not hold it is one stage, `whole recording`: a range of ours around all its work.

It has no ranges, or those that could be stages hold too little of it: of the GPU's work, or of the time from the first
to the last of them. No thread opened the range (`thread` is UNKNOWN), so it holds every launch of its process, also
those whose host call was not recorded. Everything downstream (roll-up, join, verdicts, planning) meets a region like
any other; beside other ranges it is one that lies in none of them, and none in it.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.regions.attribution import Attribution
from llm_perf_opt.regions.blocks import blocks
from llm_perf_opt.regions.columns import UNKNOWN, Int32s, Int64s, Ranges, Timeline, Work
from llm_perf_opt.regions.distinct import distinct
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.operator_names import LIBRARY_DOMAINS
from llm_perf_opt.regions.table import ROOT, WHOLE, RegionTable

MOST_STAGES = 12  # of a report
COVERED = 0.9  # part of the time that stages have to hold


def with_whole_recording(timeline: Timeline) -> Timeline:
    """The timeline with such a range for each process that used the GPU, where it has no ranges; and a word on it."""
    if len(timeline.ranges):
        return timeline
    process = _processes(timeline)
    if not len(process):
        name = "NO_RANGES.no_work_in_trace" if timeline.kind == "kineto" else "NO_RANGES.no_work"
        nothing = diagnose(name, source=timeline.source)
        return evolve(timeline, diagnostics=[*timeline.diagnostics, nothing])
    name = "NO_RANGES.in_trace" if timeline.kind == "kineto" else "NO_RANGES"
    return evolve(
        timeline,
        strings=[*timeline.strings, WHOLE],
        ranges=_around(timeline, process, list(timeline.work)),
        diagnostics=[*timeline.diagnostics, diagnose(name, source=timeline.source)],
    )


def covered(timeline: Timeline, attribution: Attribution) -> tuple[Timeline, Attribution]:
    """The same, with the whole recording as a region beside the others where those hold too little of it."""
    process = _processes(timeline)
    if attribution.table.whole or not len(process) or (share := _share_of_stages(timeline, attribution)) >= COVERED:
        return timeline, attribution
    whole = _around(timeline, process, [*timeline.work, timeline.ranges])
    region = attribution.table.intern_whole()

    def extended(values: Int64s, value: int) -> Int64s:
        return np.concatenate([values, np.full(len(process), value, dtype=np.int64)])

    kernels, copies, graphs = (evolve(membership, whole=region) for membership in attribution.memberships)
    found = evolve(
        attribution,
        kernels=kernels,
        copies=copies,
        graphs=graphs,
        range_region=extended(attribution.range_region, region),
        range_parent=extended(attribution.range_parent, UNKNOWN),
    )
    attribution.table.held = share
    more = evolve(timeline, strings=[*timeline.strings, WHOLE], ranges=timeline.ranges.followed_by(whole))
    more.merged = timeline.merged  # its work is the same
    return more, found


def _processes(timeline: Timeline) -> Int32s:
    """Those that used the GPU."""
    return distinct(*(work.process for work in timeline.work)).astype(np.int32)


def _around(timeline: Timeline, process: Int32s, columns: list[Work | Ranges]) -> Ranges:
    """A range for each process, around all that some columns have of it. Its name is the next string."""
    bounds = []
    for number in process.tolist():
        parts = [
            (column.start[mine], column.end[mine]) for column in columns if (mine := column.process == number).any()
        ]
        bounds.append((min(int(start.min()) for start, _ in parts), max(int(end.max()) for _, end in parts)))
    start, end = (np.array(side, dtype=np.int64) for side in zip(*bounds, strict=True))
    alike = np.zeros(len(process), dtype=np.int32)
    return Ranges(
        start=start,
        end=end,
        process=process,
        thread=alike + UNKNOWN,
        domain=alike + timeline.domains.index(""),
        name=alike + len(timeline.strings),
        start_end=alike > 0,
    )


# -- how much of a recording its stages hold -------------------------------------------------------


def _share_of_stages(timeline: Timeline, attribution: Attribution) -> float:
    """Of the GPU's work, or of the time, from the first stage to the last: the smaller part that stages hold.

    What comes before the first (weights are loaded, a model is built) or after the last is no part of what the program
    is asked about. Operators and ranges of libraries are no stages.
    """
    held, chosen = max(map(_longest, _candidates(timeline, attribution)), key=lambda found: found[0])
    if not held:
        return 0.0
    ranges = timeline.ranges
    stages = np.flatnonzero(np.isin(attribution.range_region, chosen))
    if not len(stages):  # known through graphs only
        return 1.0
    start, end = ranges.start[stages], ranges.end[stages]
    first, last = int(start.min()), int(end.max())
    work = 0
    for column in timeline.work:
        for part in blocks(len(column)):
            begin, launched = column.start[part], column.host_time[part]
            since = np.where(launched == UNKNOWN, begin, launched)
            meant = (since >= first) & (since < last)
            work += int((column.end[part] - begin)[meant].sum())
    return min(held / max(work, 1), _share_of_time(timeline, start, end), 1.0)


def _share_of_time(timeline: Timeline, start: Int64s, end: Int64s) -> float:
    """Of the time from the first of some ranges to the last, what they or their work take.

    A program that runs ahead of the GPU closes a range before its work is done: that is part of it, with what lies
    between.
    """
    span = int(end.max() - start.min())
    if span == 0 or BusyTime.of(start, end).total >= COVERED * span:
        return 1.0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    done = end.copy()  # when the last of its work ends
    for column in timeline.work:
        for part in blocks(len(column)):
            launched = column.host_time[part]
            at = np.searchsorted(start, launched, side="right") - 1
            inside = (launched != UNKNOWN) & (at >= 0) & (launched < end[np.maximum(at, 0)])
            np.maximum.at(done, at[inside], column.end[part][inside])
    return BusyTime.of(start, done).total / (int(done.max()) - int(start.min()))


def _longest(time: Int64s) -> tuple[int, Int64s]:
    """As many regions as there may be stages, those with most of some time, and what they have together."""
    order = np.argsort(-time, kind="stable")[:MOST_STAGES]
    return int(time[order].sum()), order[time[order] > 0]


def _candidates(timeline: Timeline, attribution: Attribution) -> list[Int64s]:
    """GPU time of the outermost regions of each domain, and of start/end regions; 0 for all that are no stages."""
    table = attribution.table
    roots, stage = _roots(table), ~np.array([table.is_operator(n) for n in range(len(table))], dtype=np.bool_)
    found = []
    for domain, name in enumerate(timeline.domains):
        time = np.zeros(len(table), dtype=np.int64)
        for work, membership in zip(timeline.work, attribution.memberships, strict=True):
            own = np.bincount(membership.by_domain[domain] + 1, work.end - work.start, minlength=len(table) + 1)[1:]
            np.add.at(time, roots, own.astype(np.int64))
        found.append(np.where(stage, time, 0) * (name not in LIBRARY_DOMAINS))
    marked = np.zeros(len(table), dtype=np.int64)
    for work, membership in zip(timeline.work, attribution.memberships, strict=True):
        for region, members in membership.start_end.items():
            marked[region] += int((work.end - work.start)[members].sum())
    return [*found, marked]


def _roots(table: RegionTable) -> Int64s:
    """The outermost region around each."""
    roots: list[int] = []
    for number, parent in enumerate(table.parent):
        roots.append(number if parent == ROOT else roots[parent])
    return np.array(roots, dtype=np.int64)
