"""Copies between host and device that nothing hides"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.host_copies import copies_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="copy.host",
    title="Copies between host and GPU that nothing overlaps",
    costs="While such a copy runs alone, the GPU computes nothing.",
    seen="Copies between host and GPU, from pinned memory or of unknown kind, during which nothing else runs; and gaps inside calls that copy.",
    words=Words(
        because="copies between host and GPU, {host_copies} of {now}{exposed}",
        action="overlap them with kernels (a stream of their own, prefetching), or leave the data on the GPU",
    ),
    find=copies_found("copy.host"),
    gain="The time of the copies during which nothing else runs, plus the idle time inside calls that copy. The interval begins at half of the time for which there is other work to overlap with.",
    before="""\
x = batch.to(device)
y = model(x)
""",
    after="""\
with torch.cuda.stream(side):
    following = next_batch.to(device, non_blocking=True)
y = model(x)
""",
    unless="The GPU has no other work for the copies to overlap with.",
    variants={
        "unknown": Words(
            because="copies between host and GPU, {host_copies} of {now}{exposed}",
            action="use pinned memory and asynchronous copies, or leave the data on the GPU",
        ),
        "peers": Words(
            because="copies between GPUs, {host_copies} of {now}{exposed}",
            action="overlap them with kernels (parts of a batch, a stream of their own), send less, or use a faster link between the GPUs (NVLink; direct access without the host)",
        ),
        "waiting": Words(
            because="the GPU waits {time} of {now} in calls that copy ({what})",
            action="copy from pinned memory on a stream of its own (non_blocking=True), or keep the data on the GPU",
            elsewhere="copy from pinned memory with cudaMemcpyAsync on a stream of its own, or keep the data on the GPU",
        ),
    },
)
