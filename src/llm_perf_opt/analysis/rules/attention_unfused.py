"""Attention as products, softmax and all that is between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, at_peak, flops_of, found_in_kernels, kernel_type, product_of
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.regions.columns import Bools

_MATH = "aten::_scaled_dot_product_attention_math"
_BETWEEN = ("elementwise", "copy", "random", "activation", "reduction")
_MOST_BETWEEN = 5
_LOSS = re.compile(r"log_?softmax|cross_?entropy|nll|kl_?div", re.IGNORECASE)
# Scores and values are products of the same size; what follows the softmax of a router takes hundreds of times as long.
_ALIKE = 8


def _find(of: Evaluated) -> Iterator[Found]:
    launched = of.launched
    if not launched.ordered:
        return
    rows = (_around_softmax(launched) | launched.fits(lambda kind: kind.under(_MATH))) & of.free.rows
    products = rows & launched.fits(lambda kind: kind.family == "gemm")
    if not products.any():
        return
    whole, inside = launched.time(rows), launched.time(products)
    flops = launched.sum(products, flops_of)
    dtype = next((kernel_type(launched.kinds[n]) for n in np.unique(launched.which[products]).tolist()), "")
    best = at_peak(of.gpu, flops, dtype, 0.0) if flops else None
    if best is None:  # fused, the products themselves are left at most
        gain = Gain(whole - 0.7 * inside, whole - inside, whole - 0.4 * inside)
    else:
        gain = Gain(whole - best.likely, whole - best.high, whole - best.low)
    yield from found_in_kernels(of, "attention.unfused", rows, gain)


def _around_softmax(launched: Launched) -> Bools:
    """Launches from a batched product over softmax to the next batched product."""
    found = np.zeros(len(launched), dtype=np.bool_)
    product = launched.fits(_may_be_scores).tolist()
    between = launched.fits(lambda kind: kind.family in _BETWEEN).tolist()
    softmax = launched.fits(lambda kind: kind.family == "softmax" and not _LOSS.search(kind.kernel))
    for at in np.flatnonzero(softmax).tolist():
        first, last = at - 1, at + 1
        while first >= 0 and at - first <= _MOST_BETWEEN and between[first] and not product[first]:
            first -= 1
        while last < len(product) and last - at <= _MOST_BETWEEN and between[last] and not product[last]:
            last += 1
        if first >= 0 and product[first] and last < len(product) and product[last]:
            times = launched.time_ns[[first, last]]
            found[first : last + 1] |= times.max() <= _ALIKE * times.min()
    return found


def _may_be_scores(kind: LaunchKind) -> bool:
    """A product of many small matrices, or one of which that is not known."""
    product = product_of(kind)
    return kind.family == "gemm" and (product is None or product.batches > 1)


RULE = Rule(
    id="attention.unfused",
    title="Attention that is not fused",
    costs="Scores are written to memory and read back several times: traffic that grows with the square of the sequence length.",
    seen="A batched matrix product, softmax and another batched product that takes about as long, with only elementwise kernels between them, or PyTorch's math path.",
    words=Words(
        because="{families}, {time} of {now}, are attention that writes its scores to memory",
        action='use fused attention: F.scaled_dot_product_attention (attn_implementation="sdpa"), or FlashAttention; for masks of your own, flex_attention',
    ),
    find=_find,
    gain="All of its time except what the FLOPs of its products need in a fused kernel.",
    before="scores = (q @ k.transpose(-1, -2)) * scale\ny = scores.softmax(-1) @ v",
    after="y = F.scaled_dot_product_attention(q, k, v)",
    unless="The scores themselves are needed.",
)
