"""A KV cache that is copied for every token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.kernel_order import pairs_before_attention
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.regions.columns import Bools

_FEWEST = 8  # tensors of a cache: keys and values of four layers
_KEYS_AND_VALUES = 2  # in a step; one alone may be of a picture and a prompt
_LONGER = 8  # times as long as what is added: a cache, not the halves of a rotary embedding


def _find(of: Evaluated) -> Iterator[Found]:
    rows = unclaimed(of, _extends)
    if rows.sum() * of.launched.scale >= _KEYS_AND_VALUES * of.launched.instances:
        yield from found_in_kernels(of, "cache.concat", rows, Gain.certain(of.launched.time(rows), 0.15))
    elif of.launched.ordered:
        rows = pairs_before_attention(of.launched, _concatenates) & of.free.rows
        time = of.launched.time(rows)
        yield from found_in_kernels(of, "cache.concat", rows, Gain(time * 0.9, time * 0.5, time))
    rows = _reorders(of.launched) & of.free.rows
    time = of.launched.time(rows)
    yield from found_in_kernels(
        of, "cache.concat", rows, Gain(time * 0.9, time * 0.5, time), texts="cache.concat.order"
    )


def _reorders(launched: Launched) -> Bools:
    """Selections by an index one behind the other, one or two for each attention since the last of them: of each layer's
    keys and values, in the order of the beams."""
    found = np.zeros(len(launched), dtype=np.bool_)
    selects = launched.fits(_selects)
    if not selects.any() or not launched.ordered:
        return found
    attended = np.cumsum(launched.fits(lambda kind: kind.family == "attention"))
    edges = np.flatnonzero(np.diff(selects, prepend=False, append=False))
    before = 0
    for first, end in edges.reshape(-1, 2).tolist():
        layers, before = int(attended[first]) - before, int(attended[first])
        found[first:end] = end - first >= _FEWEST and end - first in (layers, 2 * layers)
    return found


def _selects(kind: LaunchKind) -> bool:
    """A table of words is selected from, too, but once."""
    if kind.operators:
        return kind.under("aten::index_select") and not kind.under("aten::embedding")
    return "indexSelect" in kind.kernel


def _extends(kind: LaunchKind) -> bool:
    """Two tensors with heads, alike in all but one dimension, the first far longer there."""
    if not kind.under("aten::cat") or len(kind.tensors) != 2:
        return False
    old, new = (tensor.dims for tensor in kind.tensors)
    if len(old) != len(new) or len(old) < 3:
        return False
    differ = [(long, short) for long, short in zip(old, new, strict=True) if long != short]
    return len(differ) == 1 and differ[0][0] >= _LONGER * max(differ[0][1], 1)


def _concatenates(kind: LaunchKind) -> bool:
    """Whose shapes are not known. Three of them in a row are of queries, too."""
    return not kind.tensors and (kind.under("aten::cat") or "CatArrayBatchedCopy" in kind.kernel)


RULE = Rule(
    id="cache.concat",
    title="A KV cache that is copied for every token",
    costs="torch.cat, or index_select in a beam search, copies the whole cache for every token.",
    seen=(
        "Concatenations of a long tensor with a short one that agree in all other dimensions; if shapes were not "
        "recorded, two concatenations right before each attention kernel. Or consecutive selections by an index "
        "(`index_select`, to reorder beams), one or two for each attention kernel before them."
    ),
    words=Words(
        because="{families}, {time} of {now}, copy a cache to extend it",
        action='allocate the cache once and write into it (cache_implementation="static", index_copy_ or slices)',
    ),
    find=_find,
    gain="The time of the concatenations.",
    before="k = torch.cat([k, new], dim=2)",
    after="k[:, :, n : n + 1] = new  # allocated for the longest sequence",
    variants={
        "order": Words(
            because="{families}, {time} of {now}, copy a cache into the new order of beams",
            action="leave the cache in place and give attention a table of which rows belong to which beam (a paged cache: vLLM, TensorRT-LLM), or reorder only what beams do not share",
        )
    },
    unless="Texts are short, or differ so much in length that a cache for the longest does not fit.",
)
