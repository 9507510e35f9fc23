"""Fused attention far from its roof"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.above_roof import above_the_roof
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="attention.kernel",
    title="Fused attention far from its roof",
    costs="Kernels of an older design reach half of what newer ones do; short sequences and small batches do not fill any.",
    seen="Counters: attention kernels that take longer than their FLOPs and bytes need at the peak.",
    words=Words(
        because="{families}, {time} of {now}, up to {recoverable} of it above the roof",
        action="use a newer attention kernel ({share_of_roof} of the roof is reached)",
    ),
    find=above_the_roof("attention.kernel"),
    gain="The time above the roof: most that could be won.",
    unless="A decode step with few sequences: there is too little to read for all of the GPU.",
    variants={
        "newest": Words(
            because="{families}, {time} of {now}, up to {recoverable} of it above the roof, by kernels that were written for this GPU",
            action="give each launch of attention more to do (longer pieces, larger batches), or time another kernel for this GPU (FlashAttention-3, flex_attention): {share_of_roof} of the roof is reached",
        )
    },
)
