"""Casts around products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_SHORT, _LONG = ("bf16", "fp16"), ("fp32",)


def _find(of: Evaluated) -> Iterator[Found]:
    launched = of.launched
    if not launched.ordered:
        return
    casts = unclaimed(of, _casts)
    product = launched.fits(lambda kind: kind.family in ("gemm", "attention"))
    # Several casts may stand in a row: of weights and of activations.
    other = np.flatnonzero(~casts)
    following = np.searchsorted(other, np.arange(len(casts)))
    padded = np.concatenate([product[other], [False]])  # nothing before the first (-1) and behind the last
    beside = padded[following] | padded[following - 1]
    rows = casts & beside
    yield from found_in_kernels(of, "cast.pingpong", rows, Gain.certain(launched.time(rows), 0.25))


def _casts(kind: LaunchKind) -> bool:
    if not kind.tensors:  # no operators, or no shapes, which PyTorch's profiler leaves out by default
        return named("casts", kind.kernel)
    types = [tensor.dtype for tensor in kind.tensors[:2]]
    differ = len(types) == 2 and any(one in _SHORT for one in types) and any(one in _LONG for one in types)
    return differ and kind.under("aten::copy_") and kind.under("aten::to", "aten::_to_copy")


RULE = Rule(
    id="cast.pingpong",
    title="Casts before and after matrix products",
    costs="A cast reads and writes the whole tensor, and the next kernel reads it again.",
    seen="Casts between fp32 and 16 bits directly before or after a matrix product or attention.",
    words=Words(
        because="{families}, {time} of {now}, only cast between fp32 and 16 bits around products",
        action="keep activations and weights in one type: model.to(torch.bfloat16), no .float() between layers (torch.compile fuses the casts that are needed)",
    ),
    find=_find,
    gain="The time of the casts.",
    before="x = F.linear(x.bfloat16(), w).float()",
    after="x = F.linear(x, w)  # all of it in bf16",
    unless="Sums between the products need the precision of fp32.",
)
