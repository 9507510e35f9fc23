"""A GPU whose clock is held down."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.metrics.quantity import nanoseconds

_LOW = 0.85  # of the highest clock
_FOLLOWS = (0.8, 0.4, 1.0)  # of kernel time, what goes with the clock: all of it but what the memory limits


def _find(of: Evaluated) -> Iterator[Found]:
    share, busy = of.facts.numbers.get("clock_share"), of.split.busy
    if share is None or share > _LOW or busy is None:
        return
    lost = busy.of("ns") * (1 - share)
    likely, low, high = (nanoseconds(lost * part) for part in _FOLLOWS)
    yield Found("gpu.clocks", "clocks", busy, likely, interval=(low, high))


RULE = Rule(
    id="gpu.clocks",
    title="The clock of the GPU is held down",
    costs="The speed of arithmetic and caches follows the clock of the SMs.",
    seen="While the program was measured without a profiler, the clock was below 85 % of its maximum for a reason other than the power limit: set by hand, heat, or the power supply.",
    words=Words(
        because="the GPU runs at {clock_words}, {time} of {now} are spent on it",
        action="find what holds the clock down: nvidia-smi -q -d CLOCK,PERFORMANCE; reset clocks that were set (nvidia-smi -rgc), or fix the cooling or the power supply",
    ),
    find=_find,
    gain="80 % of the missing part of the clock, applied to the time in which the GPU works.",
    before="nvidia-smi -lgc 900",
    after="nvidia-smi -rgc",
    unless="The clock is fixed on purpose, to compare measurements.",
)
