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
    title="Attention planned again for every length",
    costs="cuDNN builds a plan for every new shape; with a growing KV cache, every token brings a new shape.",
    seen=(
        "Several gaps of a millisecond or more that end with an attention kernel or lie inside cuDNN's "
        "attention operator."
    ),
    words=Words(
        because="the GPU waits {time} of {now} before attention kernels ({what}): the library makes a new plan for every length",
        action="use attention that does not plan for every length (torch.backends.cuda.enable_cudnn_sdp(False), FlashAttention), or pad lengths to a few sizes",
    ),
    find=_find,
    before="model.generate(…)",
    after="""\
torch.backends.cuda.enable_cudnn_sdp(False)
model.generate(…)
""",
    unless="All lengths have occurred before, so that their plans exist.",
    variants={
        "serving": Words(
            because="the GPU waits {time} of {now} before attention kernels ({what}): the backend makes a new plan for every step",
            action="choose an attention backend of the engine that does not plan for every step (FlashAttention), or one that plans on the GPU",
        )
    },
)
