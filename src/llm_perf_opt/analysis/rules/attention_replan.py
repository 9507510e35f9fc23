"""Attention that plans anew for each length"""

from __future__ import annotations

from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.rules.waiting import idle_of

RULE = Rule(
    id="attention.replan",
    title="Attention that plans anew for each length",
    costs="cuDNN builds a plan for every new shape; with a KV cache that grows, every token is a new shape.",
    seen=(
        "Several gaps of a millisecond or more that end with an attention kernel, or lie in the operator of "
        "cuDNN's attention."
    ),
    words=Words(
        because="the GPU waits {time} of {now} before attention kernels ({what}): the library plans anew for each length",
        action="take attention that needs no plan for each length (torch.backends.cuda.enable_cudnn_sdp(False), FlashAttention), or pad lengths to a few sizes",
    ),
    find=idle_of("attention.replan"),
    before="model.generate(…)",
    after="""\
torch.backends.cuda.enable_cudnn_sdp(False)
model.generate(…)
""",
    unless="All lengths have been seen before: then the plans are there.",
)
