"""What the server did in the longest waits of its clients: the tail of latency, explained by the steps it lies in.

Clients and server share the machine's monotonic clock. The slowest hundredth of the waits is set beside the others:
what they are longer by is time in steps of some kind, in the engine's own work between them, or in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.intervals import BusyTime
from llm_perf_opt.regions.step_numbers import MIXED, PHASES, PREFILL, phase_of, without_numbers

_FEWEST = 100  # waits: with fewer the 99th percentile is the longest of them
_ONE_ENGINE = (
    1.1  # times the union of all steps; more: several engines run side by side, and whose wait it is is not known
)
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
        if slow.all():
            continue
        inside = {kind: one.within(rows[:, 0], rows[:, 1]) for kind, one in busy.items()}
        inside[_NOTHING] = np.maximum(length - sum(inside.values()), 0)
        more = {kind: float(time[slow].mean() - time[~slow].mean()) for kind, time in inside.items()}
        whole = sum(time for time in more.values() if time > 0)
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
            parts=", ".join(f"{_SAID.get(one, one)} {part:.0%}" for one, part in parts),
            kind=_SAID.get(kind, kind),
            theirs=f"{theirs:.0%}",
            others=f"{others:.0%}",
        )


def _last(part: tuple[str, float]) -> float:
    return part[1]


def _busy(timeline: Timeline) -> dict[str, BusyTime]:
    """When steps of each kind ran, and the engine's work between them."""
    ranges = timeline.ranges
    took = ranges.end - ranges.start if ranges.took is None else ranges.took
    end = np.maximum(ranges.end, ranges.start + took)
    recorded = ranges.recorded_name
    kinds: dict[str, list[int]] = {}
    for number in np.unique(recorded).tolist():
        name = without_numbers(timeline.strings[number])
        if name in (*PHASES, *_WORK) or name != timeline.strings[number]:
            kinds.setdefault(name if name in _WORK else phase_of(timeline.strings[number]), []).append(number)
    found = {}
    for kind, numbers in kinds.items():
        mine = np.isin(recorded, numbers)
        found[kind] = BusyTime.of(ranges.start[mine], end[mine])
    return found
