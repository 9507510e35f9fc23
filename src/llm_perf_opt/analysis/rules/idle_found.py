"""Rules about a GPU that waits: the idle time of a cause (`idle.toml`) is what mending it would gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import IdlePart, texts_of
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.labels import counted

_LEAST = 0.02  # of the region's time: gaps of which there always are some


def idle_of(rule: str) -> Find:
    """What is left of the idle time with this rule."""

    def find(of: Evaluated) -> Iterator[Found]:
        part = of.free.idle.get(rule)
        if part is not None and part.time_ns >= _LEAST * of.light.now.of("ns"):
            yield idle_found(of, rule, [part], part.what, texts_of(rule))

    return find


def idle_found(
    of: Evaluated, rule: str, parts: Sequence[IdlePart], what: str, texts: str = "", *, copies: float = 0.0
) -> Found:
    """`copies`: ns of copies that go with it."""
    time = nanoseconds(sum(part.time_ns for part in parts) + copies)
    low, high = (nanoseconds(sum(part.interval[end] for part in parts) + copies) for end in (0, 1))
    launches = max(of.split.launches, 1)
    words = {"what": what, "launches": counted(launches, "launch"), "each": shown(time / launches)}
    interval = low, high
    return Found(rule, "waiting", time, time, words=words, texts=texts, interval=interval, idle=parts, copies_ns=copies)
