"""Fused attention far from its roof"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.above_roof import above_the_roof
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="attention.kernel",
    title="Fused attention far from its roof",
    costs="Kernels of an older design reach half of what newer ones do; short sequences and small batches do not fill any kernel.",
    seen="Attention kernels that take longer than their FLOPs and bytes need at the GPU's peak. Needs counters.",
    words=Words(
        because="{families}, {time} of {now}, up to {recoverable} of it above the roof",
        action="use a newer attention kernel ({share_of_roof} of the roof is reached)",
    ),
    find=above_the_roof("attention.kernel"),
    gain="At most the time above the roof.",
    before="F.scaled_dot_product_attention(q, k, v)  # FlashAttention-2 on a GPU of compute capability 9",
    after="with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # or FlashAttention-3\n    F.scaled_dot_product_attention(q, k, v)",
    unless="Few sequences are decoded: a step then reads too little to occupy the whole GPU.",
    variants={
        "newest": Words(
            because="{families}, {time} of {now}, up to {recoverable} of it above the roof, by kernels that were written for this GPU",
            action="give each launch of attention more to do (longer chunks, larger batches), or time another kernel for this GPU (FlashAttention-3, flex_attention): {share_of_roof} of the roof is reached",
        )
    },
)
