"""Logits that nobody looks at."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, at_peak, found_in_kernels, product_of, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_VOCABULARY = 30_000
_FEWER = 4  # times fewer rows are looked at
_LOOKS = (
    "aten::argmax",
    "aten::topk",
    "aten::softmax",
    "aten::log_softmax",
    "aten::max",
    "aten::sort",
    "aten::multinomial",
)


def _find(of: Evaluated) -> Iterator[Found]:
    launched = of.launched
    if any(name.startswith("autograd::engine") for name in launched.annotations):
        return  # training needs them all
    heads = (product_of(kind) for kind in launched.kinds if _is_head(kind))
    for vocabulary in sorted({head.columns for head in heads if head is not None}):
        yield from _of_vocabulary(of, vocabulary)


def _of_vocabulary(of: Evaluated, vocabulary: int) -> Iterator[Found]:
    launched = of.launched
    used = max((_rows(kind, vocabulary) for kind in launched.kinds if kind.under(*_LOOKS)), default=0)

    def fits(kind: LaunchKind) -> bool:
        product = product_of(kind) if _is_head(kind) else None
        return product is not None and product.columns == vocabulary and product.rows >= _FEWER * used

    rows = unclaimed(of, fits)
    if used and rows.any():
        now, left = launched.time(rows), launched.sum(rows, lambda kind: _left(of, kind, used))
        gain = Gain.certain(now * 0.98 if left is None else max(now - left, 0.0))
        yield from found_in_kernels(of, "logits.all", rows, gain)


def _is_head(kind: LaunchKind) -> bool:
    product = product_of(kind) if kind.family == "gemm" else None
    return product is not None and product.columns >= _VOCABULARY and product.rows > _FEWER


def _rows(kind: LaunchKind, vocabulary: int) -> int:
    """How many rows of logits an operator looks at."""
    found = [tensor.elements // vocabulary for tensor in kind.tensors if tensor.dims[-1] == vocabulary]
    return max(found, default=0)


def _left(of: Evaluated, kind: LaunchKind, used: int) -> float | None:
    """What the product takes with the rows that are used: it reads its weights at least."""
    product = product_of(kind)
    if product is None:
        return None
    flops = 2.0 * used * product.columns * product.depth
    best = at_peak(of.gpu, flops, product.dtype, float(product.columns * product.depth * product.bytes_per_value))
    return None if best is None else best.likely


RULE = Rule(
    id="logits.all",
    title="Logits of all positions, of which only the last is used",
    costs="The product with the vocabulary is among the largest of a prefill, and all rows but one per sequence are thrown away.",
    seen="A matrix product with 30000 columns or more, without a backward pass, if at most a quarter of the rows of its result are used (argmax, topk, softmax).",
    words=Words(
        because="{families}, {time} of {now}, compute logits of positions that are never used",
        action="take the last position before the head: head(hidden[:, -1:]) (logits_to_keep=1 in transformers)",
    ),
    find=_find,
    operators=True,
    gain="The time of the product, minus what the rows that are used need.",
    before="logits = head(hidden)[:, -1]",
    after="logits = head(hidden[:, -1])",
    unless="The other logits are needed: perplexity, speculative decoding.",
)
