"""Reads `operators.toml`: how an operator is counted that torch has no FLOP formula for. Needs no torch."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import cattrs
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
    return cattrs.structure(tomllib.loads(text), OperatorRules)
