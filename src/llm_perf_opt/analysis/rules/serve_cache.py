"""A KV cache that is filled, gathered or copied in every step."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.metrics.quantity import percent

_LEAST = 0.1  # of the stage


def _find(of: Evaluated) -> Iterator[Found]:
    if of.steps is None:
        return
    rows = unclaimed(of, lambda kind: named("cache_moves", kind.kernel))
    time = of.launched.time(rows)
    if time:
        share = percent(time / of.light.now.of("ns"), ".0") if of.light.now.value else "–"
        gain = Gain(time * 0.8, time * 0.5, time)
        yield from found_in_kernels(of, "serve.cache", rows, gain, least=_LEAST, share=share)


RULE = Rule(
    id="serve.cache",
    title="The KV cache is filled, gathered or copied in every step",
    costs="If attention cannot read a paged cache, its pages are gathered first, or a mask as large as the cache is filled: everything is moved for a few new tokens.",
    seen="Kernels that fill, gather, index or copy take a tenth or more of a server's steps.",
    words=Words(
        because="{families} take {time} of {now} ({share}) on top of the model's own work",
        action="use an attention backend that reads the pages of the cache in place (FlashAttention, FlashInfer) and needs no mask, and allocate its buffers once",
    ),
    find=_find,
    gain="80 % of the time of those kernels, because new tokens still have to be written.",
    before="transformers serve MODEL --continuous-batching --attn-implementation sdpa",
    after="transformers serve MODEL --continuous-batching --attn-implementation flash_attention_2",
    unless="The model has no such backend on this GPU.",
)
