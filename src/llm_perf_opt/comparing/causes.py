"""Why a region takes another time: parts that add up to the change, exactly.

    time = idle + the durations of all its GPU work - what of that ran side by side

so the change is that of the idle time, of each signature's launches and durations, of what is new, minus what is
gone, minus the change of the overlap. `idle` is what is left of the time when the GPU's work is taken off: a profiler
makes the host slower and leaves kernels as they are, so undisturbed times and recorded kernels go together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import define

from llm_perf_opt.comparing.comparison import GONE, GRID, NEW, ORDER, Cause, ExactChange, KernelPair
from llm_perf_opt.comparing.exact import count_text
from llm_perf_opt.comparing.idle_change import idle_causes
from llm_perf_opt.comparing.matching import GRAPH
from llm_perf_opt.comparing.side import KernelUse, LaunchLines, RegionSide
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.text import counted, quantity

_NOT_RECORDED = "what the GPU did was not recorded on both sides: llm-perf profile does that"
_MOST = 16  # causes listed of a region, the largest; what is left is one more
_SMALL = 0.005  # of the largest cause: what is less is no cause worth a line
_ROUNDING = 0.5  # ns
_TELLING = 0.1  # of the change: idle time that changed by less is one cause, whatever the host did
_CLOCKS = 0.005  # a clock that differs by less explains nothing
_MORE_WORK = 0.01  # the same of counters and grids


def find_causes(
    before: RegionSide,
    after: RegionSide,
    times: tuple[float, float],
    pairs: Sequence[KernelPair],
    exact: Sequence[ExactChange],
    clocks: tuple[float | None, float | None] = (None, None),
    *,
    detailed: bool = True,
) -> list[Cause]:
    """Largest first. `times`: of an instance on both sides; `clocks`: of the SMs while they were taken.

    `detailed`: kernel by kernel; else the GPU work is one.
    """
    change = times[1] - times[0]
    if before.busy_ns is None or after.busy_ns is None:
        return [Cause("not recorded", _NOT_RECORDED, change)] if change else []
    if not detailed:
        busy = after.busy_ns - before.busy_ns
        idle = idle_causes(before, after, change - busy, exact, detailed=False)
        return _listed([Cause("other", "its GPU work", busy), *idle], change)
    slower = _clock_ratio(clocks)
    known = {use.name for use in before.kernels} & {use.name for use in after.kernels}
    places = _Places(before.launch_lines(), after.launch_lines())
    found = _one_clock([cause for pair in pairs for cause in _of_pair(pair, slower, known, places)], clocks)
    work = [sum(use.time_ns for use in region.kernels) for region in (before, after)]
    idle_ns = (times[1] - after.busy_ns) - (times[0] - before.busy_ns)
    overlap = (work[0] - before.busy_ns) - (work[1] - after.busy_ns)
    found += idle_causes(before, after, idle_ns, exact, detailed=abs(idle_ns) > _TELLING * abs(change))
    found.append(Cause("overlap", _side_by_side(overlap), overlap))
    return _listed(found, change)


@define(frozen=True)
class _Places:
    """Lines of the program on both sides, where they are known."""

    before: LaunchLines
    after: LaunchLines

    def of_change(self, old: Sequence[KernelUse], now: Sequence[KernelUse]) -> str:
        """` from file.py:12`: the line whose launches changed most, else the one with most of them."""
        counts: dict[str, float] = {}
        total: dict[str, float] = {}
        for lines, uses, sign in ((self.before, old, -1), (self.after, now, 1)):
            for use in uses:
                for line, calls in lines.get(use.signature, {}).items():
                    counts[line] = counts.get(line, 0.0) + sign * calls
                    total[line] = total.get(line, 0.0) + calls
        if not total:
            return ""
        most = max(counts, key=lambda line: (round(abs(counts[line]), 3), total[line]))
        return f" from {visible(most, 80)}"


def _clock_ratio(clocks: tuple[float | None, float | None]) -> float:
    """By what factor kernels take longer since the clock is lower."""
    before, after = clocks
    ratio = before / after if before and after else 1.0
    return ratio if abs(ratio - 1) > _CLOCKS else 1.0


def _one_clock(causes: list[Cause], clocks: tuple[float | None, float | None]) -> list[Cause]:
    """What all kernels lose or gain by the clock is one cause."""
    by_clock = [cause for cause in causes if cause.kind == "clock"]
    if not by_clock:
        return causes
    before, after = (clock or 0.0 for clock in clocks)
    what = f"the SM clock is {'lower' if after < before else 'higher'}: {before:,.0f} → {after:,.0f} MHz"
    rest = [cause for cause in causes if cause.kind != "clock"]
    return [*rest, Cause("clock", what, sum(cause.delta_ns for cause in by_clock))]


def _of_pair(pair: KernelPair, slower: float, known: set[str], places: _Places) -> list[Cause]:
    where = places.of_change(pair.before, pair.after)
    if pair.how == GRAPH:
        gone = any(use.kind == GRAPH for use in pair.before)
        what = "its kernels are launched one by one" if gone else "it holds kernels that were launched one by one"
        return [Cause(GRAPH, f"the CUDA graph is {'gone' if gone else 'new'}: {what}", pair.delta_ns)]
    if pair.how == "rest":
        return [Cause("other", "small kernels that one side does not list", pair.delta_ns)]
    if pair.how == ORDER:
        return [Cause("replaced kernel", f"{replaced_names(pair)}{where}", pair.delta_ns)]
    if pair.how in (NEW, GONE):
        use = (pair.after or pair.before)[0]
        # Of a kernel that both have, on a grid that one has: not new.
        kind = "launches" if use.name in known and use.kind == "kernel" else f"{pair.how} {use.kind}"
        more = "more" if pair.how == NEW else "fewer"
        count = count_text(use.calls)
        what = f"{count} {more} launches of {_name(use)}{_on_grid(use)}" if kind == "launches" else _times(use, count)
        return [Cause(kind, what + where, pair.delta_ns)]
    return _of_both(pair.before[0], pair.after[0], pair.how, slower, where)


def _of_both(old: KernelUse, now: KernelUse, how: str, slower: float, where: str) -> list[Cause]:
    """Δcount × time + count × Δtime, the latter split into work, clock and the rest."""
    each = [use.time_ns / use.calls if use.calls else 0.0 for use in (old, now)]
    more = now.calls - old.calls
    found = []
    if more:
        word = "more" if more > 0 else "fewer"
        noun = "launches" if old.kind == "kernel" else "copies" if old.kind == "copy" else "replays"
        what = f"{count_text(abs(more))} {word} {noun} of {_name(old)}{where}"
        found.append(Cause("launches", what, more * each[0]))
    name = _name(now)
    work, why = _work_ratio(old, now, how)
    steps = [each[0], each[0] * work, _at_clock(each[0] * work, each[1], slower, now), each[1]]
    kinds = (
        ("more work" if work > 1 else "less work", f"{name}: {why}"),
        ("clock", f"{name}: the SM clock is {'lower' if slower > 1 else 'higher'}"),
        ("slower kernel" if steps[3] > steps[2] else "faster kernel", _pace(name, now, each) + where),
    )
    for (kind, what), start, end in zip(kinds, steps[:-1], steps[1:], strict=True):
        if end != start:
            found.append(Cause(kind, what, now.calls * (end - start)))
    return found


def _at_clock(was: float, took: float, slower: float, use: KernelUse) -> float:
    """What a launch would take at the other clock. One that waits for memory may not care: never more than the time says."""
    if use.kind != "kernel":
        return was
    return min(was * slower, max(took, was)) if slower > 1 else max(was * slower, min(took, was))


def _work_ratio(old: KernelUse, now: KernelUse, how: str) -> tuple[float, str]:
    """How much more one launch has to do: by counters, else by the blocks of its grid."""
    ratios = []
    for what, before, after in (("FLOP", old.flops, now.flops), ("B of DRAM", old.dram, now.dram)):
        if before and after:
            ratios.append((after / before, f"{quantity(before, '')} → {quantity(after, '')} {what} per launch"))
    if ratios:
        ratio, why = max(ratios, key=lambda one: one[0])
        return (ratio, why) if abs(ratio - 1) > _MORE_WORK else (1.0, "")
    if how == GRID and old.blocks and now.blocks and old.block == now.block and old.blocks != now.blocks:
        each = [use.time_ns / use.calls if use.calls else 0.0 for use in (old, now)]
        # As many waves of blocks may do more work: never more than the time says.
        ratio, grew = now.blocks / old.blocks, each[1] / each[0] if each[0] else 1.0
        ratio = min(ratio, max(grew, 1.0)) if ratio > 1 else max(ratio, min(grew, 1.0))
        return ratio, f"grid {_size(old.grid)} → {_size(now.grid)}"
    if how == GRID:
        grew = (now.time_ns / now.calls) / (old.time_ns / old.calls) if old.time_ns and old.calls and now.calls else 1.0
        return grew, "other grids"
    return 1.0, ""


def _pace(name: str, use: KernelUse, each: Sequence[float]) -> str:
    return f"{name}: {quantity(each[0], 'ns')} → {quantity(each[1], 'ns')} per launch, {count_text(use.calls)} of them"


def _times(use: KernelUse, count: str) -> str:
    return f"{_name(use)}, {count} {'launch' if count == '1' else 'launches'}"


def _side_by_side(delta: float) -> str:
    return "less GPU work overlaps" if delta > 0 else "more GPU work overlaps"


def _listed(found: list[Cause], change: float) -> list[Cause]:
    """The largest, and the rest as one, so that the sum stays what it is."""
    ordered = sorted(
        (cause for cause in found if abs(cause.delta_ns) > _ROUNDING), key=lambda cause: -abs(cause.delta_ns)
    )
    if not ordered:
        return []
    least = _SMALL * abs(ordered[0].delta_ns)
    kept = [cause for cause in ordered[:_MOST] if abs(cause.delta_ns) >= least]
    rest = change - math.fsum(cause.delta_ns for cause in kept)
    if len(ordered) > len(kept) and abs(rest) > _ROUNDING:
        kept.append(Cause("other", counted(len(ordered) - len(kept), "smaller change"), rest))
    return kept


def _name(use: KernelUse) -> str:
    return visible(use.short, 80)


def kernel_names(uses: Sequence[KernelUse]) -> str:
    """Those that take longest first; the same name once."""
    names = list(dict.fromkeys(_name(use) for use in sorted(uses, key=lambda use: -use.time_ns)))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def replaced_names(pair: KernelPair) -> str:
    """`flash_fwd_kernel → gemm, softmax`; names may differ only in what short ones leave out."""
    before, after = kernel_names(pair.before), kernel_names(pair.after)
    return f"{before} → {after}" if before != after else f"another variant of {after}"


def _on_grid(use: KernelUse) -> str:
    return f" (grid {_size(use.grid)})" if use.grid else ""


def _size(grid: tuple[int, ...]) -> str:
    return "×".join(map(str, grid))
