"""Chains of small kernels that one could do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.above_roof import above_the_roof, has_neighbours
from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_TAKEN_ALONG = ("elementwise", "activation", "copy", "rope", "norm")
_ONLY_MOVING = ("elementwise", "activation", "copy", "rope")
_HALF = Gain(0.5, 0.25, 0.75)  # of kernels whose order is not known


def _find(of: Evaluated) -> Iterator[Found]:
    yield from above_the_roof("fuse.elementwise")(of)
    if not has_neighbours(of):
        return
    launched, counted = of.launched, of.roofed.parts_above

    def fits(kind: LaunchKind) -> bool:
        families = _TAKEN_ALONG if launched.ordered else _ONLY_MOVING
        return kind.family in families and not named("compiled", kind.kernel) and kind.kernel not in counted

    rows = unclaimed(of, fits)
    if not launched.ordered:
        time = launched.time(rows)
        gain = Gain(*(time * part for part in (_HALF.likely, _HALF.low, _HALF.high)))
    else:
        # Runs of neighbours: one kernel in their place takes about as long as the longest of them.
        rows = rows & (np.append(rows[1:], False) | np.append(False, rows[:-1]))
        begins = np.flatnonzero(rows & ~np.append(False, rows[:-1]))
        times = np.where(rows, launched.time_ns, 0)
        longest = np.maximum.reduceat(times, begins).sum() if len(begins) else 0
        gain = Gain.certain(float(times.sum() - longest) * launched.scale, 0.25)
    yield from found_in_kernels(of, "fuse.elementwise", rows, gain, kind="fusion")


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
    gain="All kernels of a chain but the longest: one pass over the data is left. With counters, the time above the roof.",
    before="y = 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))",
    after='y = F.gelu(x, approximate="tanh")  # or torch.compile(f)(x)',
)
