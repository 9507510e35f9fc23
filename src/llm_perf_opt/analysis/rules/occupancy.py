"""Too few warps to hide latency"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.counter_limits import limits_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="occupancy",
    title="Too few warps to hide latency",
    costs="When a warp waits for memory, another one takes its place, if there is one.",
    seen="Kernels that come near no roof, and whose registers, shared memory or block size allow only a few resident warps. Needs counters.",
    words=Words(
        because="{occupancy_limit}, too few to hide latency, {time} of {now}, up to {recoverable} of it avoidable{ncu_says}",
        action="use fewer registers or less shared memory for each block (launch bounds, smaller tiles)",
    ),
    find=limits_found("occupancy"),
    gain="At best, what it would save if all warps were resident, but not below the roof. The interval begins at half of it.",
    before="__global__ void kernel(…)  // 255 registers a thread: one block fits on an SM",
    after="__global__ void __launch_bounds__(256, 3) kernel(…)",
    variants={
        "blocks": Words(
            because="{occupancy_limit}, too few to hide latency, {time} of {now}, up to {recoverable} of it avoidable{ncu_says}",
            action="launch blocks of more threads: an SM holds only so many blocks, and {block_words} leave most of its warps unused",
        )
    },
    unless="The kernel keeps its data in flight by other means (asynchronous copies, many loads per thread), or would spill with fewer registers.",
)
