"""Processes that take turns on a GPU"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULE = Rule(
    id="gpu.shared",
    title="Processes that take turns on a GPU",
    costs="Each process waits while the GPU works for the others. The GPU itself is busy.",
    seen="Gaps of a process during most of which another process runs work on the same GPU, if the two hardly ever run at the same time.",
    words=Words(
        because="the GPU works for another process for {time} of {now} ({what})",
        action="look at all processes together, because the GPU is busy: make their kernels faster, give each process a GPU of its own, or let small kernels run at the same time (MPS)",
        looks=True,
    ),
    find=idle_of("gpu.shared"),
    before="CUDA_VISIBLE_DEVICES=0 python worker.py & CUDA_VISIBLE_DEVICES=0 python worker.py",
    after="CUDA_VISIBLE_DEVICES=0 python worker.py & CUDA_VISIBLE_DEVICES=1 python worker.py",
    unless="The processes are meant to share the GPU, and together they are fast enough.",
)
