"""Collectives that nothing hides"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.collectives import collectives_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="comm.exposed",
    title="Collectives that nothing overlaps",
    costs="While GPUs exchange data and compute nothing, the step takes that much longer.",
    seen="Kernels of NCCL and similar libraries during which no other kernel runs on the GPU.",
    words=Words(
        because="{time} of {now} are collectives during which the GPU computes nothing",
        action="overlap the collectives with computation (a stream of their own, bucketed gradients, a pipelined step), or send less",
    ),
    find=collectives_found("comm.exposed"),
    gain="At most the time in which collectives run alone, minus the time spent waiting for late ranks. The interval begins at 0, because the recording does not show how much work they could overlap with.",
    before="""\
loss.backward()
for p in parameters:
    dist.all_reduce(p.grad)
""",
    after="""\
model = DistributedDataParallel(model)  # reduces buckets during backward
loss.backward()
""",
    unless="There is nothing to compute meanwhile, as between the layers of tensor parallelism.",
    variants={
        "messages": Words(
            because="{time} of {now} are messages between ranks during which the GPU computes nothing: most of it may be waiting for the other end",
            action="give all ranks the same work (stages of a pipeline, experts), use more micro batches or an interleaved schedule, and overlap what is left with computation",
        )
    },
)
