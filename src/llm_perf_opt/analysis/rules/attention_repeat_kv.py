"""Keys and values that are copied for every head of queries."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.kernel_order import pairs_before_attention
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind
from llm_perf_opt.regions.tensors import EXPANDED

_HEADS = 4  # dimensions of keys and values: batch, heads, length, size


def _find(of: Evaluated) -> Iterator[Found]:
    attention = of.launched.fits(
        lambda kind: kind.family == "attention" or kind.under("aten::scaled_dot_product_attention")
    )
    if attention.any() and of.launched.ordered:
        rows = unclaimed(of, _repeats) | (pairs_before_attention(of.launched, _reshapes) & of.free.rows)
        yield from found_in_kernels(of, "attention.repeat_kv", rows, Gain.certain(of.launched.time(rows), 0.2))


def _repeats(kind: LaunchKind) -> bool:
    if kind.under("aten::repeat_interleave"):
        return not kind.inputs or any(len(tensor.dims) >= _HEADS for tensor in kind.tensors)  # shapes may be unknown
    copied = kind.under("aten::copy_") and kind.under("aten::clone", "aten::contiguous", "aten::reshape")
    return copied and any(t.layout == EXPANDED and len(t.dims) > _HEADS for t in kind.tensors)


def _reshapes(kind: LaunchKind) -> bool:
    """Copied by `reshape`, of a shape that was not recorded: only what was expanded, or is out of order, has to be."""
    return not kind.tensors and kind.under("aten::reshape") and kind.under("aten::clone")


RULE = Rule(
    id="attention.repeat_kv",
    title="Keys and values copied for every query head",
    costs="With grouped-query attention, this writes and reads keys and values several times more often than necessary.",
    seen="Copies of a tensor expanded over heads (`expand` and `reshape`, as in repeat_kv), or repeat_interleave, in a region with attention; if shapes were not recorded, two copies by `reshape` right before each attention kernel.",
    words=Words(
        because="{families}, {time} of {now}, only repeat keys and values",
        action="let the query heads share them: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), or FlashAttention, which accepts fewer key and value heads",
    ),
    find=_find,
    operators=True,
    gain="The time of the copies.",
    before="k = k[:, :, None].expand(b, h, n, s, d).reshape(b, h * n, s, d)\ny = F.scaled_dot_product_attention(q, k, v)",
    after="y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
    unless="A mask or a kernel of your own needs one KV head for each query head.",
)
