"""What a trial can do without, and what it needs: which levers are timed again, which calls are made again."""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.comparing.comparison import WORSE
from llm_perf_opt.trying.attempts import Attempt
from llm_perf_opt.trying.process_notes import REPEATED, ProcessNotes

_SLOWER = 1.3  # times: a lever that is this much slower in its first run is not timed again
_COLD = 4.0  # times: the same, where it ran once and nobody knows its noise
_BEHIND = 1.25  # times: nor is one that is this far behind another that excludes it
_CALLS = 4  # of generate(), so that one or two of them are warm, whatever the first ones compile
_REPEATS_S = 30.0  # that repeated calls may take in a run
_LAST_CALLS = 2  # before the end of a run, a step is looked at


def worth_timing(checked: Sequence[Attempt]) -> list[Attempt]:
    """Without those that their first run says are slower, or far behind another that excludes them."""
    found = []
    for attempt in checked:
        gain = attempt.gain or 1.0
        ahead = [
            other
            for other in checked
            if (other.gain or 1.0) > _BEHIND * gain and not attempt.levers[0].goes_with(other.levers[0])
        ]
        if is_slower(attempt):
            attempt.verdict = WORSE
        elif ahead:
            best = max(ahead, key=lambda other: other.gain or 0.0)
            attempt.reason = f"timed once: {best.title} is faster, and the two exclude each other"
        else:
            found.append(attempt)
    return found


def is_slower(attempt: Attempt) -> bool:
    """Not only by chance."""
    gain, interval = attempt.gain or 1.0, attempt.interval
    return gain < 1 / _COLD if interval is None else gain < 1 / _SLOWER and interval[1] < 1.0


def repeats(notes: ProcessNotes) -> tuple[int, int]:
    """Which `generate()` of the program to call again, and how often: few programs make enough warm calls."""
    made = notes.counts.get("generate", 0)
    if not 0 < made < _CALLS or notes.processes > 1 or notes.counts.get("generate once only"):
        return (0, 0)
    each_s = max(notes.counts.get("ms in generate", 0) / made / 1000, 1e-3)
    return made, min(_CALLS - made, max(round(_REPEATS_S / each_s), 1))


def step_to_look_at(notes: ProcessNotes, repeat: tuple[int, int]) -> int:
    """One of the last calls: all is compiled and captured by then. `notes`: of a run without repeats."""
    calls, made = notes.counts.get("calls", 0), notes.counts.get("generate", 0)
    more = calls // made * repeat[1] if made and not notes.counts.get(REPEATED) else 0
    return max((calls + more) // max(notes.processes, 1) - _LAST_CALLS, 0)


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
