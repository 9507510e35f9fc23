"""FLOPs of products of matrices: torch's formulas, and ours for the operators torch has none for.

Attention is counted here as one operator, whichever kernel torch would choose, so that it is counted once,
in the type of its inputs, and with the bytes of a kernel that keeps the scores to itself. On the meta device
torch itself would take attention apart into products in float32. Like torch's counter this counts every
query against every key: a causal kernel skips up to half of that.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from llm_perf_opt.static_analysis.counts import AttentionShape, MatrixShape

Shape = MatrixShape | AttentionShape

# Operators whose first three arguments are query, key and value with shape (batch, heads, length, width).
ATTENTION = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
GROUPED = ("aten._grouped_mm", "aten._scaled_grouped_mm", "transformers.grouped_mm_fallback")


def attention_shape(name: str, dtype: str, named: dict[str, Any]) -> AttentionShape:
    query, key, value = named["query"], named["key"], named["value"]
    given = named.get("attn_mask") is not None or named.get("attn_bias") is not None
    *lead, heads, queries, width = query.shape
    return AttentionShape(
        operator=name,
        dtype=dtype,
        batch=prod(lead),
        heads=heads,
        kv_heads=key.shape[-3],
        queries=queries,
        keys=key.shape[-2],
        key_dim=width,
        value_dim=value.shape[-1],
        mask="causal" if named.get("is_causal") else "tensor" if given else "none",
    )


def _plain(name: str, dtype: str, left: Any, right: Any) -> MatrixShape:
    """mm and bmm; a vector on the right is a matrix with one column."""
    *batch, m, k = left.shape
    n = right.shape[-1] if right.dim() == left.dim() else 1
    return MatrixShape(name, dtype, prod(batch), m, k, n)


def _grouped(name: str, dtype: str, left: Any, right: Any, *_: Any) -> MatrixShape:
    """Rows sorted by group, each multiplied with its group's matrix: every row meets one matrix only."""
    if left.dim() == 2 and right.dim() == 3:  # rows are parted: (S, k) by (groups, k, n)
        return MatrixShape(name, dtype, 1, left.shape[0], left.shape[1], right.shape[2])
    if left.dim() == 3 and right.dim() == 2:  # columns are parted: (groups, m, k) by (k, S)
        return MatrixShape(name, dtype, 1, left.shape[1], left.shape[2], right.shape[1])
    if left.dim() == 2:  # the inner dimension is parted: one product for each group
        return MatrixShape(name, dtype, 1, left.shape[0], left.shape[1], right.shape[1])
    return MatrixShape(name, dtype, left.shape[0], left.shape[1], left.shape[2], right.shape[2])


def _convolution(name: str, dtype: str, out: Any, weight: Any, transposed: bool, source: Any) -> MatrixShape:
    """A convolution as the product it amounts to: positions by filter values by channels."""
    places = source if transposed else out
    return MatrixShape(
        name, dtype, 1, places.shape[0] * prod(places.shape[2:]), prod(weight.shape[1:]), weight.shape[0]
    )


@cache
def _own() -> dict[Any, str]:
    """Operators counted by a formula of ours, with the kind of formula."""
    kinds: dict[Any, str] = {}
    for name in ATTENTION:
        found = getattr(torch.ops.aten, name, None)
        if found is not None:
            kinds[found] = "attention"
    for name in GROUPED:
        space, _, operator = name.partition(".")
        found = getattr(getattr(torch.ops, space), operator, None)
        if found is not None:
            kinds[found] = "grouped"
    for name in ("mv", "dot", "vdot", "_int_mm"):
        kinds[getattr(torch.ops.aten, name)] = "plain"
    kinds[torch.ops.aten.addmv] = "plain after the first"
    if hasattr(torch.ops.aten, "_addmm_activation"):
        kinds[torch.ops.aten._addmm_activation] = "plain after the first"
    return kinds


def is_grouped(packet: Any) -> bool:
    return _own().get(packet) == "grouped"


def has_formula(packet: Any) -> bool:
    return packet in _own() or packet in flop_registry


def matrix_flops(
    packet: Any, name: str, dtype: str, args: tuple[Any, ...], kwargs: dict[str, Any], named: dict[str, Any], out: Any
) -> tuple[int, Shape | None, str]:
    """FLOPs of one call, the shape of the product where it is known, and whose formula it is.

    `named` holds the same arguments by the names of the operator's schema.
    """
    kind = _own().get(packet)
    if kind == "attention":
        attention = attention_shape(name, dtype, named)
        return attention.flops, attention, "llm-perf"
    if kind == "grouped":
        grouped = _grouped(name, dtype, *args[:2])
        return grouped.flops, grouped, "llm-perf"
    if kind is not None:
        left, right = args[1:3] if kind == "plain after the first" else args[:2]
        plain = _plain(name, dtype, left if left.dim() > 1 else left.unsqueeze(0), right)
        return plain.flops, plain, "llm-perf"
    flops = int(flop_registry[packet](*args, **kwargs, out_val=out))
    return flops, _shape_of(packet, name, dtype, args, out), "torch"


def _shape_of(packet: Any, name: str, dtype: str, args: tuple[Any, ...], out: Any) -> Shape | None:
    aten = torch.ops.aten
    if packet in (aten.mm, aten.bmm, aten._scaled_mm):
        return _plain(name, dtype, args[0], args[1])
    if packet in (aten.addmm, aten.baddbmm):
        return _plain(name, dtype, args[1], args[2])
    if packet in (aten.convolution, aten._convolution):
        return _convolution(name, dtype, out, args[1], bool(args[6]), args[0])
    return None
