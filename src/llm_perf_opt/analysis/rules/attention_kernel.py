"""Fused attention far from its roof"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.above_roof import above_the_roof
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="attention.kernel",
    title="Fused attention far from its roof",
    costs="Kernels of an older design reach half of what newer ones do.",
    seen="Attention kernels that take longer than their FLOPs and bytes need at the GPU's peak. Needs counters.",
    words=Words(
        because="{families}, {time} of {now}, up to {recoverable} of it above the roof",
        action="use a newer attention kernel ({share_of_roof} of the roof is reached)",
    ),
    find=above_the_roof("attention.kernel"),
    gain="At most the time above the roof.",
)
