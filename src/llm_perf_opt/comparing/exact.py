"""What is counted, not timed: launches, synchronisations, graphs, bytes. Certain from one run, with no statistics."""

from __future__ import annotations

from llm_perf_opt.comparing.comparison import ExactChange
from llm_perf_opt.comparing.side import (
    BYTES,
    COUNTED,
    COUNTERS,
    DRAM,
    PEAK_MEMORY,
    RECOMPILATIONS,
    REPLAYS,
    TENSOR,
    RegionSide,
)
from llm_perf_opt.report.text import quantity

# Relative, below which two runs of one program differ all the same: samples of counters, and what an allocator rounds.
_TOLERANCE = {DRAM: 0.02, TENSOR: 0.001, PEAK_MEMORY: 0.01}
LESS_IS_WORSE = (REPLAYS,)


def compare_counts(before: RegionSide, after: RegionSide) -> list[ExactChange]:
    """All counts that both sides know. ncu sees the launches it was asked for: they are not those of a timeline."""
    if (set(before.times) == {COUNTERS}) != (set(after.times) == {COUNTERS}):
        return []
    once = 1 / max(min(before.recorded, after.recorded), 1)  # what comes once in a run is spread over its instances
    found = []
    for what in COUNTED:
        if what in before.counts and what in after.counts:
            old, now = before.counts[what], after.counts[what]
            room = _TOLERANCE.get(what, 0.0) * max(abs(old), abs(now))
            if what not in (RECOMPILATIONS, *_TOLERANCE) and once < 1:
                room = max(room, once * 1.001)
            found.append(ExactChange(what, old, now, changed=abs(now - old) > room + 1e-6))
    return found


def is_worse(change: ExactChange) -> bool:
    """More of it, or less of what is good."""
    return change.changed and (change.after < change.before) == (change.what in LESS_IS_WORSE)


def describe_exact(one: ExactChange) -> str:
    """`launches 300 → 372`."""
    return f"{one.what} {numbers_text(one)}"


def numbers_text(one: ExactChange) -> str:
    """`300 → 372`."""
    unit = "byte" if one.what in BYTES else ""
    if unit or max(abs(one.before), abs(one.after)) >= 1e6:
        return f"{quantity(one.before, unit)} → {quantity(one.after, unit)}"
    return f"{count_text(one.before)} → {count_text(one.after)}"


def count_text(value: float) -> str:
    return f"{round(value):,}" if abs(value - round(value)) < 0.005 else f"{value:,.2f}"
