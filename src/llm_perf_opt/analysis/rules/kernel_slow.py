"""Other kernels far from their roof"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.above_roof import above_the_roof
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="kernel.slow",
    title="Other kernels far from their roof",
    costs="They use little of the GPU's bandwidth and arithmetic throughput.",
    seen="Kernels of other kinds that take longer than their work needs at the peak. Needs counters.",
    words=Words(
        because="{families}, {time} of {now}, up to {recoverable} of it above the roof{ncu_says}",
        action="look at these kernels: {share_of_roof} of the roof is reached",
        looks=True,
    ),
    find=above_the_roof("kernel.slow"),
    gain="At most the time above the roof; at least the time beyond 60 % of the roof, which good kernels reach.",
    before="kernel<<<8, 128>>>(x, n);  // 8 blocks on 132 SMs",
    after="kernel<<<1056, 128>>>(x, n);  // the same work in finer parts",
    unless="The kernel has too little work to reach any roof.",
    variants={
        "small": Words(
            because="{families}, {time} of {now}, up to {recoverable} of it above the roof{ncu_says}",
            action="launch more blocks: {blocks} of {threads} do not fill the GPU; split the work finer, or give each launch more of it",
        )
    },
)
