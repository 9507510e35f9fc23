"""Attention that plans anew for each length"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.idle_found import idle_of
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found

_NAME = "attention.replan"


def _find(of: Evaluated) -> Iterator[Found]:
    # An engine has backends of its own to choose from, but where PyTorch calls cuDNN it is PyTorch's to choose.
    attention = [kind for kind, _ in of.roofed.launches.timed_kinds if kind.family == "attention"]
    engines = of.phases and not any("cudnn" in kind.kernel_name for kind in attention)
    for found in idle_of(_NAME)(of):
        yield evolve(found, texts=f"{_NAME}.serving") if engines else found


RULE = Rule(
    id=_NAME,
    title="Attention that plans anew for each length",
    costs="cuDNN builds a plan for every new shape; with a KV cache that grows, every token is a new shape.",
    seen=(
        "Several gaps of a millisecond or more that end with an attention kernel, or lie in the operator of "
        "cuDNN's attention."
    ),
    words=Words(
        because="the GPU waits {time} of {now} before attention kernels ({what}): the library plans anew for each length",
        action="use attention that needs no plan for each length (torch.backends.cuda.enable_cudnn_sdp(False), FlashAttention), or pad lengths to a few sizes",
    ),
    find=_find,
    before="model.generate(…)",
    after="""\
torch.backends.cuda.enable_cudnn_sdp(False)
model.generate(…)
""",
    unless="All lengths have been seen before: then the plans are there.",
    variants={
        "serving": Words(
            because="the GPU waits {time} of {now} before attention kernels ({what}): the backend plans anew for each step",
            action="choose an attention backend of the engine that plans nothing for each step (FlashAttention), or one that plans on the GPU",
        )
    },
)
