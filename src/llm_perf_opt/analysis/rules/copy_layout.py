"""Copies that only change how a tensor lies in memory."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind
from llm_perf_opt.regions.tensors import STRIDED


def _find(of: Evaluated) -> Iterator[Found]:
    rows = unclaimed(of, _relays)
    yield from found_in_kernels(of, "copy.layout", rows, Gain.certain(of.launched.time(rows), 0.2))


def _relays(kind: LaunchKind) -> bool:
    if named("layouts", kind.kernel):
        return True
    tensors = kind.tensors
    same = len(tensors) == 2 and tensors[0].dtype == tensors[1].dtype and tensors[1].layout == STRIDED
    return same and kind.under("aten::copy_") and kind.under("aten::contiguous", "aten::clone")


RULE = Rule(
    id="copy.layout",
    title="Copies that only change the layout",
    costs="They read and write the whole tensor, and compute nothing.",
    seen="Copies of a strided tensor to a contiguous one of the same type (`.contiguous()`, `.reshape()` of a transposed tensor), and cuDNN's own conversions between NCHW and NHWC.",
    words=Words(
        because="{families}, {time} of {now}, only change the layout of tensors",
        action="leave out .contiguous() where the next kernel takes strides (attention and products do), and keep one layout throughout (channels_last for convolutions)",
        elsewhere="keep one layout throughout, for activations and weights (NHWC for convolutions on tensor cores)",
    ),
    find=_find,
    gain="The time of the copies.",
    before="q = q.view(b, s, h, d).transpose(1, 2).contiguous()",
    after="q = q.view(b, s, h, d).transpose(1, 2)",
    unless="A kernel of your own needs the layout, or reads it many times.",
)
