"""A KV cache that is copied for every token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.regions.columns import Bools

_MOST_BETWEEN = 3
_LONGER = 8  # times as long as what is added: a cache, not the halves of a rotary embedding


def _find(of: Evaluated) -> Iterator[Found]:
    rows = unclaimed(of, _extends)
    if rows.any():
        yield from found_in_kernels(of, "cache.concat", rows, Gain.certain(of.launched.time(rows), 0.15))
    elif of.launched.ordered:
        rows = _before_attention(of.launched) & of.free.rows
        time = of.launched.time(rows)
        yield from found_in_kernels(of, "cache.concat", rows, Gain(time * 0.9, time * 0.5, time))


def _extends(kind: LaunchKind) -> bool:
    """Two tensors with heads, alike in all but one dimension, the first far longer there."""
    if not kind.under("aten::cat") or len(kind.tensors) != 2:
        return False
    old, new = (tensor.dims for tensor in kind.tensors)
    if len(old) != len(new) or len(old) < 3:
        return False
    differ = [(long, short) for long, short in zip(old, new, strict=True) if long != short]
    return len(differ) == 1 and differ[0][0] >= _LONGER * max(differ[0][1], 1)


def _before_attention(launched: Launched) -> Bools:
    """Two concatenations whose shapes are not known, right before attention: of keys and of values. Three are of queries, too."""
    cat = launched.fits(_concatenates)
    if not cat.any():
        return cat
    attention = launched.fits(lambda kind: kind.family == "attention")
    apart = launched.fits(lambda kind: kind.family == "copy") & ~cat  # what may lie between: layouts, repeated heads
    found = np.zeros(len(launched), dtype=np.bool_)
    for at in np.flatnonzero(attention).tolist():
        last = at - 1
        while last > 0 and apart[last] and at - last <= _MOST_BETWEEN:
            last -= 1
        if last > 0 and cat[last] and cat[last - 1] and not (last > 1 and cat[last - 2]):
            found[last - 1 : last + 1] = True
    return found


def _concatenates(kind: LaunchKind) -> bool:
    return not kind.tensors and (kind.under("aten::cat") or "CatArrayBatchedCopy" in kind.kernel)


RULE = Rule(
    id="cache.concat",
    title="A KV cache grown by concatenation",
    costs="torch.cat copies the whole cache for every token.",
    seen="Concatenations of a long tensor with a short one that agree in all other dimensions; if shapes were not recorded, two concatenations right before each attention kernel.",
    words=Words(
        because="{families}, {time} of {now}, copy a cache to extend it",
        action='allocate the cache once and write into it (cache_implementation="static", index_copy_ or slices)',
    ),
    find=_find,
    gain="The time of the concatenations.",
    before="k = torch.cat([k, new], dim=2)",
    after="k[:, :, n : n + 1] = new  # allocated for the longest sequence",
    unless="Texts are short, or differ so much in length that a cache for the longest does not fit.",
)
