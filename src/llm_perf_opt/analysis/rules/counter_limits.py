"""Rules about what holds kernels back inside the SMs, where counters tell."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.above_roof import free_parts
from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.times import overlap_scale


def limits_found(rule: str) -> Find:
    def find(of: Evaluated) -> Iterator[Found]:
        found = of.limits.found(of.region.rules, overlap_scale(of.split), free_parts(of), of.launched)
        return (one for one in found if one.rule == rule)

    return find
