"""Operators of a PyTorch trace by how they lie in each other: the outermost ones, and the products inside, with shapes.

All questions about operators are answered from the one table `Timeline.calls`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.regions.code import innermost
from llm_perf_opt.regions.columns import CodeSpans, Int64s, OperatorCalls, Timeline
from llm_perf_opt.regions.stacks import group_by
from llm_perf_opt.regions.tensors import Tensor, from_text

# Which of an operator's inputs are multiplied.
_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "_scaled_mm": (0, 1), "_int_mm": (0, 1)}
_ROUNDED = 1  # ns that begin and duration, rounded each by itself, may be off by


def outermost_around(calls: OperatorCalls) -> Int64s:
    """Of each call the outermost one it lies in, which may be itself."""
    around = np.arange(len(calls))
    for _, mine in group_by(calls.thread):
        order = mine[np.lexsort((-calls.end[mine], calls.start[mine]))]
        end = calls.end[order]
        is_first = np.append(True, end[1:] > np.maximum.accumulate(end)[:-1] + _ROUNDED)
        around[order] = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
    return around


def product_shape(name: str, inputs: Sequence[Tensor | None]) -> str:
    """`512×3072×1024` for a product of 512×1024 and 1024×3072; empty where it is none, or its shapes were not recorded."""
    which = _PRODUCTS.get(name.removeprefix("aten::"))
    if which is None or len(inputs) <= which[1]:
        return ""
    left, right = (inputs[place] for place in which)
    if left is None or right is None or len(left.dims) not in (2, 3) or len(left.dims) != len(right.dims):
        return ""
    return "×".join(map(str, (*left.dims[:-1], right.dims[-1], left.dims[-1])))


def operator_spans(timeline: Timeline) -> tuple[CodeSpans, list[str]]:
    """In which outermost operator each thread was, with the shape of the product inside it; and the texts of that.

    `place` is an index into these texts: `aten::linear 512×3072×1024`.
    """
    calls, strings = timeline.calls, timeline.strings
    around, (shape, shapes) = outermost_around(calls), _shapes(timeline)
    used = np.flatnonzero((around == np.arange(len(calls))) | (shape > 0))
    name = calls.name[around[used]].astype(np.int64)
    pairs, label = np.unique(name * len(shapes) + shape[used], return_inverse=True)
    texts = [f"{strings[pair // len(shapes)]} {shapes[pair % len(shapes)]}".rstrip() for pair in pairs.tolist()]
    return innermost(calls.start[used], calls.end[used], calls.thread[used], label, timeline.threads), texts


def _shapes(timeline: Timeline) -> tuple[Int64s, list[str]]:
    """The shape of each call as an index into texts, of which the first is empty: no product."""
    calls, strings, texts = timeline.calls, timeline.strings, {"": 0}
    pairs, which = np.unique(calls.name.astype(np.int64) * (len(strings) + 1) + calls.inputs + 1, return_inverse=True)
    of_pair = []
    for pair in pairs.tolist():
        name, inputs = divmod(pair, len(strings) + 1)
        shape = product_shape(strings[name], from_text(strings[inputs - 1])) if inputs else ""
        of_pair.append(texts.setdefault(shape, len(texts)))
    return np.array(of_pair, dtype=np.int64)[which.reshape(-1)], list(texts)
