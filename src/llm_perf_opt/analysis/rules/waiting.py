"""Rules about a GPU that waits: the idle time of a cause (`idle.toml`) is what mending it would gain."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import texts_of
from llm_perf_opt.metrics.quantity import nanoseconds, shown
from llm_perf_opt.regions.labels import counted

_LEAST = 0.02  # of the region's time: gaps of which there always are some


def idle_of(rule: str) -> Find:
    """What is left of the idle time with this rule."""

    def find(of: Evaluated) -> Iterator[Found]:
        part = of.free.idle.get(rule)
        if part is not None and part.time_ns >= _LEAST * of.light.now.of("ns"):
            yield idle_found(of, rule, part.time_ns, part.what, texts_of(rule))

    return find


def idle_found(of: Evaluated, rule: str, time_ns: float, what: str, texts: str = "") -> Found:
    time = nanoseconds(time_ns)
    launches = max(of.split.launches, 1)
    words = {"what": what, "launches": counted(launches, "launch"), "each": shown(time / launches)}
    return Found(rule, "waiting", time, time, words=words, texts=texts)
