"""Tokens per second, where the instances of decode steps tell how many tokens were made."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_perf_opt.analysis.verdicts.rules import verdict_rules
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import NCUProfileRegion, SpeedOfLight, TokenRate


def token_count(region: NCUProfileRegion, below: Sequence[NCUProfileRegion]) -> tuple[int, str] | None:
    """Tokens a region made for each sequence, and what says so. `below`: all regions inside it."""
    step = re.compile(verdict_rules().token_step)
    if step.search(region.name):
        return (region.instances, f"instances of {region.name}") if region.instances else None
    steps = [r for r in below if step.search(r.name) and r.instances]
    if not steps:
        return None
    outermost = min(r.depth for r in steps)
    chosen = [r for r in steps if r.depth == outermost]
    return sum(r.instances or 0 for r in chosen), f"instances of {chosen[0].name} inside"


def token_rate(counted: tuple[int, str] | None, light: SpeedOfLight | None, now: Quantity | None) -> TokenRate | None:
    if counted is None or now is None or not now.value:
        return None
    tokens = Quantity(float(counted[0]), "token")
    rate = TokenRate(tokens=tokens, now=tokens / now, source=counted[1])
    if light is not None:
        working = light.now - light.waiting
        rate.gpu_only = tokens / working if working.value > 0 else None
        rate.limit = tokens / light.limit if light.limit.value and light.analysed_share > 0.5 else None
    return rate
