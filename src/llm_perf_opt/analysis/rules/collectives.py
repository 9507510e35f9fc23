"""Rules about collectives: what ranks wait for each other, and what is exposed beyond that."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found


def collectives_found(rule: str) -> Find:
    def find(of: Evaluated) -> Iterator[Found]:
        return (found for found in of.communication.found(of.light.now) if found.rule == rule)

    return find
