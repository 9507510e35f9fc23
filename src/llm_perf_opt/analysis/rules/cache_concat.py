"""A KV cache that is copied for every token."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_LONGER = 8  # times as long as what is added: a cache, not the halves of a rotary embedding


def _find(of: Evaluated) -> Iterator[Found]:
    rows = unclaimed(of, _extends)
    yield from found_in_kernels(of, "cache.concat", rows, Gain.certain(of.launched.time(rows), 0.15))


def _extends(kind: LaunchKind) -> bool:
    """Two tensors with heads, alike in all but one dimension, the first far longer there."""
    if not kind.under("aten::cat") or len(kind.tensors) != 2:
        return False
    old, new = (tensor.dims for tensor in kind.tensors)
    if len(old) != len(new) or len(old) < 3:
        return False
    differ = [(long, short) for long, short in zip(old, new, strict=True) if long != short]
    return len(differ) == 1 and differ[0][0] >= _LONGER * max(differ[0][1], 1)


RULE = Rule(
    id="cache.concat",
    title="A KV cache that is concatenated",
    costs="torch.cat copies the whole cache for every token.",
    seen="Concatenations of a long tensor with a short one, alike in all other dimensions.",
    words=Words(
        because="{families}, {time} of {now}, copy a cache to make it longer",
        action='allocate the cache once and write into it (cache_implementation="static", index_copy_ or slices)',
    ),
    find=_find,
    operators=True,
    gain="The time of the concatenations.",
    before="k = torch.cat([k, new], dim=2)",
    after="k[:, :, n : n + 1] = new  # allocated for the longest sequence",
)
