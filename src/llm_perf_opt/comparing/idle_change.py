"""Why the GPU waits longer, or less: by what the host did meanwhile, and by what was counted.

The parts add up to the change of the idle time. What the host did is known from the recordings, the change itself from
better times where there are some; so parts are taken largest first, and only as far as the change goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_perf_opt.comparing.comparison import Cause, ExactChange
from llm_perf_opt.comparing.exact import numbers_text
from llm_perf_opt.comparing.side import LAUNCHES, REPLAYS, SYNCS, RegionSide

_KIND = "idle"
_LEAST = 0.1  # of the change: what the host did for less is not told
_SHORTEST = 1_000.0  # ns: waiting that changed by less is not looked into
# By cause (`analysis.gaps`): when the GPU waits. What is not here says nothing of the program.
_WHEN = {
    "launch": "between launches",
    "sync": "after synchronisations",
    "data": "for input",
    "alloc": "while memory is allocated or freed",
    "module": "while code is compiled or loaded",
    "compile": "while code is compiled",
    "copy": "in calls that copy",
    "python": "while the host computes",
    "thread": "while another thread works",
    "replan": "while the host plans attention",
}


def idle_causes(
    before: RegionSide, after: RegionSide, delta: float, exact: Sequence[ExactChange], *, detailed: bool
) -> list[Cause]:
    """The change of an instance's idle time, ns, in parts; the largest has what was counted with it."""
    parts = _by_cause(before, after, delta) if detailed else {}
    rest = delta - sum(parts.values())
    found = sorted(parts.items(), key=lambda part: -abs(part[1]))
    if abs(rest) > _LEAST * abs(delta) or not found:
        found.append(("", rest))
    else:
        found[0] = (found[0][0], found[0][1] + rest)
    found.sort(key=lambda part: -abs(part[1]))
    counts = _counts(delta, exact)
    return [Cause(_KIND, _words(when, time, counts if not n else ""), time) for n, (when, time) in enumerate(found)]


def _by_cause(before: RegionSide, after: RegionSide, delta: float) -> dict[str, float]:
    if abs(delta) < _SHORTEST:
        return {}
    old, now = before.idle_by_cause(), after.idle_by_cause()
    if old is None or now is None:
        return {}
    changes = {when: now.get(cause, 0.0) - old.get(cause, 0.0) for cause, when in _WHEN.items()}
    parts, left = {}, delta
    for when, change in sorted(changes.items(), key=lambda one: -abs(one[1])):
        if change * delta > 0 and abs(change) > _LEAST * abs(delta) and abs(left) > _LEAST * abs(delta):
            parts[when] = change if abs(change) < abs(left) else left
            left -= parts[when]
    return parts


def _words(when: str, delta: float, counts: str) -> str:
    waits = "the GPU waits longer" if delta > 0 else "the GPU waits less"
    return f"{waits}{' ' + when if when else ''}{': ' + counts if counts else ''}"


def _counts(delta: float, exact: Sequence[ExactChange]) -> str:
    """What the exact counts have to say about it."""
    changed = {one.what: one for one in exact if one.changed}
    reasons = []
    replays, launches, syncs = (changed.get(what) for what in (REPLAYS, LAUNCHES, SYNCS))
    if replays is not None and (replays.after < replays.before) == (delta > 0):
        gone = "the CUDA graph is gone" if not replays.after else "fewer CUDA graph replays"
        new = "there is a CUDA graph now" if not replays.before else "more CUDA graph replays"
        reasons.append(f"{gone if delta > 0 else new} ({numbers_text(replays)})")
    if syncs is not None and (syncs.after > syncs.before) == (delta > 0):
        reasons.append(f"synchronisations {numbers_text(syncs)}")
    if launches is not None and (launches.after > launches.before) == (delta > 0):
        reasons.append(f"launches {numbers_text(launches)}")
    return ", ".join(reasons)
