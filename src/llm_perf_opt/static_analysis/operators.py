"""Reads `operators.toml`: how an operator is counted that torch has no FLOP formula for. Needs no torch."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from attrs import define


@define(frozen=True)
class OperatorRules:
    """The table, ready for lookups by the name of an operator."""

    free: frozenset[str]
    moves_data: frozenset[str]
    overwrites: frozenset[str]
    reads_rows: dict[str, int]
    writes_rows: dict[str, int]
    flops_per_element: dict[str, int]
    flops_per_input: dict[str, int]
    softmax_flops_per_score: int


@cache
def operator_rules() -> OperatorRules:
    text = files("llm_perf_opt.static_analysis").joinpath("operators.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return OperatorRules(
        free=frozenset(table["free"]),
        moves_data=frozenset(table["moves_data"]),
        overwrites=frozenset(table["overwrites"]),
        reads_rows=table["reads_rows"],
        writes_rows=table["writes_rows"],
        flops_per_element=table["flops_per_element"],
        flops_per_input=table["flops_per_input"],
        softmax_flops_per_score=table["softmax_flops_per_score"],
    )
