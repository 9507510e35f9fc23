"""What is known of the waiting of several processes or recordings, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from attrs import Factory, define, evolve

from llm_perf_opt.analysis.verdicts.launched import Launched
from llm_perf_opt.analysis.verdicts.performance import WaitingFacts
from llm_perf_opt.regions.code import Place
from llm_perf_opt.regions.fixes import IdleLine
from llm_perf_opt.regions.idle import GapSize, GpuSide, IdleCause, IdleTime

_MOST_CAUSES = 12  # listed of a region


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
    lines, spread = _lines_together(parts), _spreads_together(parts)
    return IdleTime(total, sum(part.gaps for part in parts), sizes, causes, lines, spread)


def _spreads_together(parts: Sequence[IdleTime]) -> dict[str, list[float]]:
    """Each weighs as much as its time; those of one instance tell nothing."""
    found: dict[str, list[float]] = {}
    for cause in {cause for part in parts for cause in part.spread}:
        known = [
            (part.by_cause().get(cause, 0) if cause else part.total_ns, part.spread[cause])
            for part in parts
            if cause in part.spread
        ]
        whole = sum(time for time, _ in known)
        if whole:
            found[cause] = [sum(time * edges[end] for time, edges in known) / whole for end in (0, 1)]
    return found


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


@define(eq=False)
class KnownWaiting:
    """The same of several timelines, of which none is at hand any more: answers that were asked for in time."""

    _idle: dict[tuple[str, bool], list[IdleTime]] = Factory(dict)
    _sides: dict[str, list[GpuSide]] = Factory(dict)
    _copies: dict[str, int] = Factory(dict)
    _launched: dict[str, list[Launched]] = Factory(dict)
    _copied: dict[str, dict[Place, float]] = Factory(dict)
    torch: bool = True
    gpu_times: dict[int, int] = Factory(dict)  # of one timeline: several have GPUs of the same numbers

    def add(self, waiting: WaitingFacts, key: str, *, early: bool, copies: bool) -> None:
        """Ask a timeline about a region. `early`: its ranges end before their work; `copies`: it copies from the host."""
        self.torch = waiting.torch
        if (idle := waiting.idle(key, by_gpu=early)) is not None:
            self._idle[key, early] = [idle]
        if early and (side := waiting.gpu_side(key)) is not None:
            self._sides[key] = [side]
        if copies:
            self._copies[key] = waiting.exposed_copies(key)
            self._copied[key] = dict(waiting.copied(key))
        if (launched := waiting.launched(key)) is not None:
            self._launched[key] = [launched]

    @staticmethod
    def together(parts: Sequence[KnownWaiting]) -> KnownWaiting:
        """Of several recordings."""
        found = KnownWaiting(torch=all(part.torch for part in parts))
        for part in parts:
            for at, idle in part._idle.items():
                found._idle.setdefault(at, []).extend(idle)
            for key, sides in part._sides.items():
                found._sides.setdefault(key, []).extend(sides)
            for key, launched in part._launched.items():
                found._launched.setdefault(key, []).extend(launched)
            for key, copies in part._copies.items():
                found._copies[key] = found._copies.get(key, 0) + copies
            for key, places in part._copied.items():
                known = found._copied.setdefault(key, {})
                for place, time in places.items():
                    known[place] = known.get(place, 0.0) + time
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

    def copied(self, key: str) -> dict[Place, float]:
        return self._copied.get(key, {})
