"""Chains of small kernels that one could do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import evolve

from llm_perf_opt.analysis.rules.above_roof import above_the_roof, has_neighbours
from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.analysis.verdicts.times import overlap_scale
from llm_perf_opt.regions.columns import Bools

_TAKEN_ALONG = ("elementwise", "activation", "copy", "rope", "norm")
_ONLY_MOVING = ("elementwise", "activation", "copy", "rope")
_HALF = Gain(0.5, 0.25, 0.75)  # of kernels whose order is not known


def _find(of: Evaluated) -> Iterator[Found]:
    yield from (_but_one(of, found) for found in above_the_roof("fuse.elementwise")(of))
    if not has_neighbours(of):
        return
    launched, counted = of.launched, of.roofed.parts_above

    def fits(kind: LaunchKind) -> bool:
        families = _TAKEN_ALONG if launched.ordered else _ONLY_MOVING
        return kind.family in families and not named("compiled", kind.kernel) and kind.kernel not in counted

    rows = unclaimed(of, fits)
    if launched.ordered:
        rows = rows & (np.append(rows[1:], False) | np.append(False, rows[:-1]))
    time, parts = launched.time(rows), _parts(launched, rows)
    gain = Gain(*(time * part for part in (parts.likely, parts.low, parts.high)))
    yield from found_in_kernels(of, "fuse.elementwise", rows, gain, kind="fusion")


def _parts(launched: Launched, rows: Bools) -> Gain:
    """Of the time of some kernels: all but the longest of each run of neighbours, for one is left of each."""
    times = np.where(rows, launched.time_ns, 0)
    if not launched.ordered or not times.any():
        return _HALF
    begins = np.flatnonzero(rows & ~np.append(False, rows[:-1]))
    return Gain.certain(1 - float(np.maximum.reduceat(times, begins).sum() / times.sum()), 0.25)


def _but_one(of: Evaluated, found: Found) -> Found:
    """What counters say is above the roof, but no more than goes with the kernels that go: one of each chain stays."""
    families = found.family.split("+")
    parts = _parts(of.launched, of.launched.fits(lambda kind: kind.family in families))
    most = found.time * overlap_scale(of.split)
    won, low, high = (min(found.recoverable, most * part) for part in (parts.likely, parts.low, parts.high))
    return evolve(found, recoverable=won, interval=(low, max(high, won)))


RULE = Rule(
    id="fuse.elementwise",
    title="Chains of elementwise kernels",
    costs="Each reads its input from memory and writes its output there, for the next one to read again.",
    seen="Kernels of elementwise arithmetic, activations, casts, copies and normalisation that run one behind the other and were not made by a compiler.",
    words=Words(
        because="{families}, {time} of {now}, up to {recoverable} of it fusable",
        action="fuse with torch.compile, or take fused kernels",
    ),
    find=_find,
    gain="All kernels of a chain but the longest: one pass over the data is left; no more than the time above the roof, where counters tell that.",
    before="y = 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))",
    after='y = F.gelu(x, approximate="tanh")  # or torch.compile(f)(x)',
    unless="The intermediate results are needed, as those that a backward pass keeps.",
)
