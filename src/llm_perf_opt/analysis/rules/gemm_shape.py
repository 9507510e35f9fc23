"""Matrix products far from their roof"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.above_roof import above_the_roof
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="gemm.shape",
    title="Matrix products far from their roof",
    costs="Shapes that leave the last wave of blocks mostly empty, or tiles that do not fit, leave the tensor cores waiting.",
    seen="Matrix products that take longer than their FLOPs and bytes need at the peak, if no better cause is known. Needs counters.",
    words=Words(
        because="{families}, {time} of {now}, up to {recoverable} of it above the roof",
        action="use shapes and tiles that fit the GPU, or a tuned library kernel ({share_of_roof} of the roof is reached)",
    ),
    find=above_the_roof("gemm.shape"),
    gain="At most the time above the roof.",
    before="y = x @ w  # 4096 × 4160 × 4096: the last wave of tiles fills only a part of the SMs",
    after='y = x @ w  # 4096 × 4096 × 4096; or torch.compile(mode="max-autotune"), which times several tiles',
    unless="The product is small: its launch and its last wave are most of its time, whatever the tiles.",
)
