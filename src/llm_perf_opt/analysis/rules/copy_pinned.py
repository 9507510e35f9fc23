"""Copies from pageable memory"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.host_copies import copies_found
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="copy.pinned",
    title="Copies from pageable memory",
    costs="The driver copies pageable memory through a small pinned buffer, at a fraction of the speed of the link, and the host waits.",
    seen="Most of the time of copies between host and GPU is from or to memory that is not pinned.",
    words=Words(
        because="copies between host and GPU, {host_copies} of {now}{exposed}",
        action="use pinned memory on the host (pin_memory=True, non_blocking=True), and overlap the copies with kernels",
        elsewhere="use pinned memory on the host (cudaHostAlloc, cudaHostRegister), copy with cudaMemcpyAsync, and overlap the copies with kernels",
    ),
    find=copies_found("copy.pinned"),
    gain="The time of the copies during which nothing else runs, minus the time that their bytes take over the link from pinned memory.",
    before="batch.to(device)",
    after="batch.pin_memory().to(device, non_blocking=True)",
    unless="Each buffer of host memory is used once: pinning it costs more than one copy.",
)
