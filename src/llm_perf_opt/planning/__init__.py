"""Which launches of a program are worth hardware counters, and what ncu is asked for.

`decide` (decision.py) makes the one decision, a `CounterPlan` (plan.py) is its result. Which samples are chosen is in
samples.py. Everything is pure but `facts_of` and `learn`, which read and write what captures cost here (costs.py).
"""

from llm_perf_opt.planning.by_hand import in_replay_mode, plan_verification
from llm_perf_opt.planning.costs import facts_of, learn
from llm_perf_opt.planning.decision import chooses_launches, decide
from llm_perf_opt.planning.description import as_json, describe, spoken_seconds
from llm_perf_opt.planning.likely import likely_capture
from llm_perf_opt.planning.plan import CounterPlan, PlannedCapture

__all__ = [
    "CounterPlan",
    "PlannedCapture",
    "as_json",
    "chooses_launches",
    "decide",
    "describe",
    "facts_of",
    "in_replay_mode",
    "learn",
    "likely_capture",
    "plan_verification",
    "spoken_seconds",
]
