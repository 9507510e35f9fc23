"""From two sides to a comparison: region by region, then all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import Factory, define, evolve

from llm_perf_opt.comparing.causes import find_causes
from llm_perf_opt.comparing.comparison import (
    BETTER,
    COUNTS,
    NOT_COMPARABLE,
    SAME,
    UNSURE,
    WORSE,
    Comparison,
    RegionComparison,
)
from llm_perf_opt.comparing.conditions import CONTENDED, Conditions, not_alike
from llm_perf_opt.comparing.exact import compare_counts, is_worse
from llm_perf_opt.comparing.matching import RegionPair, match_kernels, match_regions, partnerless, without_numbers
from llm_perf_opt.comparing.noise import INSTANCES, NOTHING, RUNS, Difference, difference, run_room, run_spread
from llm_perf_opt.comparing.sentences import describe_region, percent
from llm_perf_opt.comparing.side import (
    COUNTERS,
    GPU,
    RECOMPILATIONS,
    TIMELINE,
    UNDISTURBED,
    RegionSide,
    Side,
    Times,
    sources_of,
)
from llm_perf_opt.regions.names import visible

_ALPHA = 0.01  # of all comparisons of one pair of runs together
_SHORTEST = 1_000.0  # ns: a change that is less is nobody's
_HEAVY = 0.01  # part of the time of all: a region that takes less decides nothing
_DETAILED = 300  # regions whose kernels are compared one by one, the heaviest
_MOST = 0.5  # part of a region's time
_DEEPEST = 50  # levels, below which nothing is looked for that repeats
_ENOUGH = 5  # steady instances, from which on a region can be told by itself
_ENDS_EARLY = "its ranges end before their GPU work, which one side does not time: compare the recordings themselves"
_TWO_CLOCKS = "one side was timed on the GPU, the other by the host's clock alone: measure both again"
_NO_CPU = "the slower side waited longer for a CPU: measure both again on a machine where nothing else runs"
_CROWDED = "threads waited long for a CPU, not always equally long: measure both with llm-perf measure --runs 5"
_NOT_COUNTED = "nothing was counted on both sides: give recordings or profiled runs, or compare times (without --exact)"
_NOTHING_TOLD = math.log(10)  # half an interval: a change by a factor of ten that would not be seen
_CARRIES = 0.7  # part of a region's change
_ROOM = 2.0  # times the least change that counts: an interval that stays within is called the same


@define(frozen=True)
class Settings:
    """What counts as a change."""

    min_change: float = 0.02
    exact: bool = False  # by counts alone: where times mean nothing
    spreads: Mapping[str, float] = Factory(dict)  # between runs, by region, as learned (`floors`)


def compare(base: Side, new: Side, settings: Settings | None = None) -> Comparison:
    """The whole comparison."""
    settings = settings or Settings()
    barred, notes = not_alike(base, new)
    pairs = match_regions(base, new)
    both = [(b, n) for b, n in pairs if b is not None and n is not None]
    deciding = _deciding(both)
    alpha = _ALPHA / max(len(deciding), 1)
    conditions = Conditions.of(base, new)
    heaviest = sorted((n for _, n in both), key=lambda n: -n.weight_ns)[:_DETAILED]
    detailed = deciding | {region.key for region in heaviest}
    regions = [
        _Evaluated(b, n, conditions, settings, alpha).finished(
            decides=n.key in deciding, barred=bool(barred), detailed=n.key in detailed
        )
        for b, n in both
    ]
    verdict, reasons = _overall(regions, barred or _other_programs(pairs))
    return Comparison(
        base=base.label,
        new=new.label,
        verdict=verdict,
        reasons=reasons,
        sentences=_sentences(regions, pairs, base, new, settings.min_change),
        regions=regions,
        only_new=[n.key for b, n in pairs if b is None and n is not None],
        only_base=[b.key for b, n in pairs if n is None and b is not None],
        notes=[*notes, *base.diagnostics, *new.diagnostics],
    )


def _deciding(pairs: Sequence[tuple[RegionSide, RegionSide]]) -> set[str]:
    """The outermost regions that ran often enough to be told; where one ran once, those inside it."""
    below: dict[str | None, list[tuple[RegionSide, RegionSide]]] = {}
    keys = {new.key for _, new in pairs}
    for pair in pairs:
        parent = pair[1].parent
        below.setdefault(parent if parent in keys else None, []).append(pair)

    def chosen(parent: str | None, level: int = 0) -> list[tuple[RegionSide, RegionSide]]:
        found = []
        for old, now in below.get(parent, []):
            if _told_by(old) and _told_by(now):
                found.append((old, now))
                continue
            inside = chosen(now.key, level + 1) if level < _DEEPEST else []
            # What repeats inside has to be most of it, or it says nothing about it.
            repeated = sum(n.weight_ns for b, n in inside if _told_by(b) and _told_by(n))
            found += inside if repeated > _MOST * now.weight_ns else [(old, now)]
        return found

    found = chosen(None)
    total = sum(new.weight_ns for _, new in found) or 1.0
    return {n.key for b, n in found if max(n.weight_ns, b.weight_ns) >= _HEAVY * total}


def _other_programs(pairs: Sequence[RegionPair]) -> list[str]:
    """Where what both have is the smaller part of each, it says nothing of the whole."""
    alone = [partnerless(pairs, place) for place in (0, 1)]
    if min(share for share, _ in alone) <= _MOST:
        return []
    names = (", ".join(visible(region.key, 60) for region in regions[:3]) for _, regions in alone)
    return [
        "most of the time of each side is in regions that the other does not have: {} before, {} now".format(*names)
    ]


def _told_by(side: RegionSide) -> bool:
    return any(len(times.runs) > 1 or times.instances >= _ENOUGH for times in side.times.values())


class _Evaluated:
    """One region of both sides."""

    def __init__(
        self, before: RegionSide, after: RegionSide, conditions: Conditions, settings: Settings, alpha: float
    ) -> None:
        self.before, self.after, self.settings = before, after, settings
        self.conditions = conditions
        self.source = _source(before, after)
        self.times = (before.times[self.source], after.times[self.source]) if self.source else None
        self.exact = compare_counts(before, after)
        spread = settings.spreads.get(after.key)
        own = [found for found in map(run_spread, self.times or ()) if found is not None]
        self.room = run_room(max([*own, *([] if spread is None else [spread])], default=None))
        self.difference = difference(*self.times, alpha, self.room) if self.times else None

    def finished(self, *, decides: bool, barred: bool, detailed: bool) -> RegionComparison:
        before, after = self.before, self.after
        typical = [times.typical for times in self.times] if self.times else [None, None]
        verdict, reason = self._verdict(barred)
        renamed = before.key if before.key != after.key else ""
        found = RegionComparison(
            key=after.key,
            label=visible(after.key, 120),
            parent=after.parent,
            depth=len(after.path) - 1,
            verdict=verdict,
            reason=reason,
            before_ns=typical[0],
            after_ns=typical[1],
            change=typical[1] / typical[0] - 1 if typical[0] and typical[1] else None,
            interval=None
            if self.difference is None or self.difference.basis == NOTHING or self.settings.exact
            else [math.expm1(self.difference.low), math.expm1(self.difference.high)],
            basis=COUNTS if self.settings.exact else self.difference.basis if self.difference else "",
            source=self.source,
            instances=(before.instances, after.instances),
            decides=decides,
            renamed_from=renamed,
            weight_ns=after.weight_ns,
            exact=self.exact,
            times=(_all(self.times[0]), _all(self.times[1])) if self.times else (np.zeros(0), np.zeros(0)),
        )
        if typical[0] is None or typical[1] is None:
            return found
        recorded = before.busy_ns is not None and after.busy_ns is not None
        pairs = match_kernels(before, after) if recorded and detailed else []
        both = (typical[0], typical[1])
        causes = find_causes(before, after, both, pairs, self.exact, self._clocks(), detailed=detailed)
        return evolve(found, causes=causes, pairs=pairs)

    def _clocks(self) -> tuple[float | None, float | None]:
        """Of the SMs, where they were seen while these times were taken."""
        return self.conditions.clocks if self.source == UNDISTURBED else (None, None)

    def _verdict(self, barred: bool) -> tuple[str, str]:
        if barred:
            return NOT_COMPARABLE, ""
        before, after = self.before, self.after
        if before.name != after.name and without_numbers(before.name) == without_numbers(after.name):
            return NOT_COMPARABLE, f"other input: {visible(before.name, 60)} became {visible(after.name, 60)}"
        if other := _other_numbers(before, after):
            return NOT_COMPARABLE, f"other input: the numbers in its name are {other}"
        if self.settings.exact:
            changed = [one for one in self.exact if one.changed]
            if not changed and all(one.what == RECOMPILATIONS for one in self.exact):  # there are none in most programs
                return NOT_COMPARABLE, _NOT_COUNTED
            worse = any(map(is_worse, changed))
            return (WORSE if worse else BETTER if changed else SAME), ""
        if self.difference is None or self.times is None:
            return NOT_COMPARABLE, _why_not_timed(before, after)
        if self.times[0].by_host != self.times[1].by_host:
            return NOT_COMPARABLE, _TWO_CLOCKS
        found = _evaluate(self.difference, self.times, self._in_cycles(), self.settings.min_change, self.room)
        if found[0] in (BETTER, WORSE) and self.source == TIMELINE and (before.ends_early or after.ends_early):
            return UNSURE, _ENDS_EARLY
        if found[0] in (BETTER, WORSE) and not self._explained_by_work():
            if self.source in (TIMELINE, GPU) and self.conditions.recorders:
                return UNSURE, f"{self.conditions.recorders}: record both with the same"
            slower = self.conditions.waited * (1 if found[0] == WORSE else -1)
            if self.source == UNDISTURBED and slower >= CONTENDED:
                return UNSURE, _NO_CPU
            if self.source == UNDISTURBED and self.conditions.crowded and self.difference.basis != RUNS:
                return UNSURE, _CROWDED
        return found

    def _explained_by_work(self) -> bool:
        """Most of the change is of what the GPU does: the host is not to blame for that."""
        if self.times is None or self.before.busy_ns is None or self.after.busy_ns is None:
            return False
        moved = self.times[1].typical - self.times[0].typical
        return (self.after.busy_ns - self.before.busy_ns) / moved > _MOST

    def _in_cycles(self) -> float | None:
        """The change in clock cycles, where clocks were recorded and differ: of the part that the GPU works."""
        before, after = self._clocks()
        if not (before and after and self.difference and self.times):
            return None
        busy = self.before.busy_ns
        share = 1.0 if busy is None else min(busy / self.times[0].typical, 1.0)
        return self.difference.change + share * math.log(after / before)


def _evaluate(
    found: Difference, times: tuple[Times, Times], in_cycles: float | None, least: float, room: float
) -> tuple[str, str]:
    """A change counts where it is separated, large enough, and there in clock cycles too."""
    floor = math.log1p(least)
    moved = abs(times[1].typical - times[0].typical)
    if found.is_separated and abs(found.change) > floor and moved > _SHORTEST:
        if in_cycles is not None and (abs(in_cycles) <= floor or (in_cycles > 0) != (found.change > 0)):
            return UNSURE, "the clock differed: in clock cycles nothing changed; fix the clocks, or measure again"
        return (WORSE if found.change > 0 else BETTER), ""
    if moved <= _SHORTEST and found.within(1.0):
        return SAME, "it changed by less than a microsecond"
    several = found.basis == RUNS
    if abs(found.change) <= floor and found.within(_ROOM * (floor if several else max(floor, room))):
        half = percent(math.expm1((found.high - found.low) / 2))
        return SAME, "" if several else f"with {_runs_a_side(times)}, a change of less than {half} would not show"
    return UNSURE, _what_would_settle(found, times, floor)


def _what_would_settle(found: Difference, times: tuple[Times, Times], floor: float) -> str:
    if found.basis == NOTHING:
        return "it ran too rarely to know its noise: measure both with llm-perf measure --runs 5"
    half = (found.high - found.low) / 2
    if found.basis == INSTANCES:
        least = f"only a change of {percent(math.expm1(half))} or more" if half < _NOTHING_TOLD else "no change"
        return f"with {_runs_a_side(times)}, {least} would show: measure both with llm-perf measure --runs 5"
    # The interval shrinks with the square root of the number of runs.
    runs = min(len(side.runs) for side in times)
    wanted = min(max(math.ceil(runs * (half / max(abs(found.change), floor)) ** 2) + 1, runs + 2), 30)
    return f"the runs differ too much among themselves: measure both with llm-perf measure --runs {wanted}"


def _runs_a_side(times: tuple[Times, Times]) -> str:
    runs = min(len(side.runs) for side in times)
    return f"{runs} runs per side" if runs > 1 else "one run per side"


def _source(before: RegionSide, after: RegionSide) -> str:
    """The kind of times that both have."""
    sources = sources_of((before, after))
    return next((source for source in sources if source in before.times and source in after.times), "")


def _why_not_timed(before: RegionSide, after: RegionSide) -> str:
    if not before.times or not after.times:
        return "it was not timed"
    if COUNTERS in before.times or COUNTERS in after.times:
        return "one side has only the kernel times of ncu: give a timeline of both"
    return "one side was timed under a profiler, the other without"


def _other_numbers(before: RegionSide, after: RegionSide) -> str:
    for old, now in zip(before.numbers, after.numbers, strict=False):
        if abs(now - old) > 0.01 * max(abs(old), abs(now)):
            return f"{old:.6g} before and {now:.6g} now, on average"
    return ""


def _all(times: Times) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate(times.runs) if times.runs else np.zeros(0)


def _overall(regions: Sequence[RegionComparison], barred: list[str]) -> tuple[str, list[str]]:
    if barred:
        return NOT_COMPARABLE, barred
    deciding = [region for region in regions if region.decides]
    if not deciding:
        return NOT_COMPARABLE, ["the two sides have no region in common that takes time on both"]
    by_verdict = {
        verdict: sorted((r for r in deciding if r.verdict == verdict), key=_impact)
        for verdict in (WORSE, UNSURE, BETTER, NOT_COMPARABLE, SAME)
    }
    barring = sum(region.weight_ns for region in by_verdict[NOT_COMPARABLE])
    if not by_verdict[WORSE] and barring > _MOST * sum(region.weight_ns for region in deciding):
        return NOT_COMPARABLE, [_reason(region) for region in by_verdict[NOT_COMPARABLE]]
    for verdict in (WORSE, UNSURE, BETTER, NOT_COMPARABLE):
        if found := by_verdict[verdict]:
            if verdict == UNSURE and by_verdict[BETTER] and _total(by_verdict[BETTER]) > _total(found):
                continue
            return verdict, [_reason(region) for region in found]
    return SAME, []


def _total(regions: Sequence[RegionComparison]) -> float:
    return sum(abs(_impact(region)) for region in regions)


def _impact(region: RegionComparison) -> float:
    """How much all instances of a region took less or more; those that got worse most are first."""
    return -region.delta_ns * max(region.instances[1], 1)


def _reason(region: RegionComparison) -> str:
    change = "" if region.change is None else f" {percent(region.change, signed=True)}"
    return f"{region.label}{change}" + (f": {region.reason}" if region.reason else "")


def _sentences(
    regions: Sequence[RegionComparison], pairs: Sequence[RegionPair], base: Side, new: Side, least: float
) -> list[str]:
    """What is certain first, the largest change before others; what has no partner, or another name, last."""

    def rank(region: RegionComparison) -> tuple[bool, float]:
        return region.verdict not in (BETTER, WORSE), -abs(_impact(region))

    ordered = sorted((region for region in regions if region.decides), key=rank)
    ordered += [region for region in regions if not region.decides and _is_more_than_its_steps(region, ordered, least)]
    found = [describe_region(region, _carrier(region, regions)) for region in ordered]
    for word, side, other, place in (("Gone", base, new, 0), ("New", new, base, 1)):
        alone = {r.key for pair in pairs if (r := pair[place]) is not None and pair[1 - place] is None}
        top = [key for key, region in side.regions.items() if key in alone and region.parent not in alone]
        if top and other.regions:
            names = ", ".join(visible(key, 80) for key in top[:4])
            found.append(f"{word}: {names}" + (f" and {len(top) - 4} more." if len(top) > 4 else "."))
    renamed = [region for region in regions if region.renamed_from]
    outermost = [r for r in renamed if r.parent not in {other.key for other in renamed}]
    return found + [f"{visible(region.renamed_from, 80)} is now called {region.label}." for region in outermost]


def _is_more_than_its_steps(region: RegionComparison, deciding: Sequence[RegionComparison], least: float) -> bool:
    """Did it change by more than the typical instances of what repeats inside it? One late step, or what is done once."""
    steps = [other for other in deciding if other.key.startswith(f"{region.key}/")]
    if not steps or not all(region.instances) or region.before_ns is None:
        return False
    inside = sum(
        (step.after_ns or 0) * step.instances[1] / region.instances[1]
        - (step.before_ns or 0) * step.instances[0] / region.instances[0]
        for step in steps
    )
    return abs(region.delta_ns - inside) > max(least * region.before_ns, _SHORTEST)


def _carrier(region: RegionComparison, regions: Sequence[RegionComparison]) -> RegionComparison | None:
    """The innermost region that holds most of another's change."""
    found, whole = None, _impact(region)
    inside = [other for other in regions if other.key.startswith(f"{region.key}/")]
    for other in sorted(inside, key=lambda other: other.depth):
        around = found or region
        if whole and other.key.startswith(f"{around.key}/") and _impact(other) / whole >= _CARRIES:
            found = other
    return found
