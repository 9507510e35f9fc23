"""Rules about collectives: what ranks wait for each other, and what is exposed beyond that."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.rule import Find
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.idle_causes import ALONE
from llm_perf_opt.metrics.families import COLLECTIVE

# Nothing tells what there is to hide a collective behind; a rank that is late may be late again.
_LEAST = {"comm.exposed": 0.0, "comm.skew": ALONE[0]}


def collectives_found(rule: str) -> Find:
    def find(of: Evaluated) -> Iterator[Found]:
        rows = of.launched.fits(lambda kind: kind.family == COLLECTIVE)
        for found in of.communication.found(of.light.now):
            if found.rule == rule:
                yield evolve(found, rows=rows, interval=(found.recoverable * _LEAST[rule], found.recoverable))

    return find
