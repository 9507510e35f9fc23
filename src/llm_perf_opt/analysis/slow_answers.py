"""What the server did in the longest waits of its clients: the tail of latency, explained by the steps it lies in.

Clients and server share the machine's monotonic clock. The slowest hundredth of the waits is set beside the others:
what they are longer by is time in steps of some kind, in the engine's own work between them, or in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.quantity import nanoseconds, percent, shown
from llm_perf_opt.regions.columns import UNKNOWN_HERE, Int64s, Timeline
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.step_numbers import MIXED, PHASES, PREFILL, STEP, phase_of, without_numbers

_FEWEST = 100  # waits: with fewer the 99th percentile is the longest of them
# Times the union of all steps. Beyond it, several engines run side by side, and whose wait it is is not known.
_ONE_ENGINE = 1.1
_MOSTLY = 0.5
_CLEARLY = 0.2  # of their time
_LEAST = 0.02  # of what the slow ones are longer by: less is not worth a word
_WORK = ("schedule", "update", "sample")
_SAID = {PREFILL: "prefill", MIXED: "mixed steps", "decode_step": "decode steps", "step": "steps of unknown kind"}
_NOTHING = "no step"


def slow_answers(timeline: Timeline, waits: Mapping[str, Int64s]) -> Iterator[Diagnosis]:
    """`waits`: what for, and rows of from and to, in ns of the monotonic clock. `timeline`: measured."""
    busy = _busy(timeline)
    steps = [busy[name] for name in PHASES if name in busy]
    if not steps:
        return
    union = BusyTime.of(np.concatenate([one.starts for one in steps]), np.concatenate([one.ends for one in steps]))
    if sum(one.total for one in steps) > _ONE_ENGINE * union.total:
        return
    for what, rows in waits.items():
        length = rows[:, 1] - rows[:, 0]
        if len(rows) < _FEWEST:
            continue
        median, high = np.quantile(length, (0.5, 0.99)).tolist()
        slow = length >= high
        if slow.all() or not length[~slow].any():  # all alike, or no other wait that could be measured
            continue
        inside = {kind: one.within(rows[:, 0], rows[:, 1]) for kind, one in busy.items()}
        inside[_NOTHING] = np.maximum(length - sum(inside.values()), 0)
        more = {kind: float(time[slow].mean() - time[~slow].mean()) for kind, time in inside.items()}
        whole = sum(time for time in more.values() if time > 0)
        if not whole:  # nothing of what was recorded takes longer in them
            continue
        parts = sorted(((kind, time / whole) for kind, time in more.items() if time >= _LEAST * whole), key=_last)[::-1]
        kind, share = parts[0]
        theirs, others = (float(inside[kind][which].sum() / length[which].sum()) for which in (slow, ~slow))
        # Where nearly all steps read prompts, the slow waits lie in such steps as all others do.
        prompts = kind in (PREFILL, MIXED) and share >= _MOSTLY and theirs >= others + _CLEARLY
        yield diagnose(
            "SLOW_ANSWERS.prompts" if prompts else "SLOW_ANSWERS",
            what=what,
            median=shown(nanoseconds(median)),
            high=shown(nanoseconds(high)),
            count=f"{int(slow.sum()):,} of {len(rows):,}",
            longer=shown(nanoseconds(float(length[slow].mean() - length[~slow].mean()))),
            parts=", ".join(f"{_SAID.get(one, one)} {percent(part, '.0')}" for one, part in parts),
            kind=_SAID.get(kind, kind),
            theirs=percent(theirs, ".0"),
            others=percent(others, ".0"),
        )


def _last(part: tuple[str, float]) -> float:
    return part[1]


def _busy(timeline: Timeline) -> dict[str, BusyTime]:
    """When steps of each kind ran, and the engine's work between them."""
    recorded = timeline.ranges.recorded_name
    kind_of = {number: _kind(timeline.strings[number]) for number in np.unique(recorded).tolist()}
    steps = np.isin(recorded, [number for number, kind in kind_of.items() if kind in PHASES])
    start, end = _ran(timeline, np.flatnonzero(steps))
    found = {}
    for kind in dict.fromkeys(kind_of.values()):
        mine = np.isin(recorded, [number for number, own in kind_of.items() if own == kind])
        if kind:
            found[kind] = BusyTime.of(start[mine], end[mine])
    return found


def _kind(name: str) -> str:
    own = without_numbers(name)
    if own in _WORK:
        return own
    phase = phase_of(name)
    return phase if phase != STEP or own == STEP or own != name else ""


def _ran(timeline: Timeline, steps: Int64s) -> tuple[Int64s, Int64s]:
    """From when to when each range was worked on: steps until the GPU is done, one after another."""
    ranges = timeline.ranges
    start, end = ranges.start.copy(), ranges.end.copy()
    if ranges.took is not None and ranges.gpu_start is not None:
        began = np.where(ranges.gpu_start == UNKNOWN_HERE, start, ranges.gpu_start)
        end = np.maximum(end, began + ranges.took)
    for _, part in group_by(ranges.process[steps]):
        own = steps[part]
        own = own[np.argsort(start[own], kind="stable")]
        later, before = own[1:], np.maximum.accumulate(end[own])[:-1]
        start[later] = np.minimum(np.maximum(start[later], before), end[later])
    return start, end
