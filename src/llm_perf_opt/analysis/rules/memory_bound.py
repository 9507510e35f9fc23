"""Weights that are read for a few rows only."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from llm_perf_opt.analysis.rules.above_roof import above_the_roof
from llm_perf_opt.analysis.rules.gains import PRODUCTS, Gain, bytes_of, found_in_kernels, product_of, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind
from llm_perf_opt.metrics.quantity import Quantity, nanoseconds, shown
from llm_perf_opt.regions.timing import Steps

_MOST_ROWS = 128
_WIDE = ("bf16", "fp16", "fp32")
_NEAR = 0.5  # of the bandwidth
_FLAT, _IDLE = 1.15, 0.2  # steps of several sizes are alike up to this; the GPU waits no more than this


def _find(of: Evaluated) -> Iterator[Found]:
    """Of a server, with the requests of a step: more of them is the cheapest way to read less for each."""
    steps = of.steps
    if steps is None or steps.grouped_by != "batch" or steps.batch_mean > _MOST_ROWS:
        yield from _by_kernels(of)
        return
    for found in [*_by_kernels(of)] or _by_size(of, steps):
        serving = found.texts in ("", "memory.bound")
        words = {"batch": f"{steps.batch_mean:,.3g}", **found.words}
        yield evolve(found, texts="memory.bound.serving", words=words) if serving else found


def _by_size(of: Evaluated, steps: Steps) -> Iterator[Found]:
    """Batches of several sizes that take the same time while the GPU works: it is the weights that are read."""
    groups, idle = steps.groups, of.facts.numbers.get("idle_share")
    if len(groups) < 2 or groups[-1].largest < 2 * groups[0].largest or idle is None or idle > _IDLE:
        return
    medians = [group.median_ns for group in groups]
    if max(medians) > _FLAT * min(medians):
        return
    rows = unclaimed(of, lambda kind: kind.family in PRODUCTS)
    time = of.launched.time(rows)
    words = {
        "sizes": f"{groups[0].smallest:,} to {groups[-1].largest:,}",
        "shortest": shown(nanoseconds(min(medians))),
        "longest": shown(nanoseconds(max(medians))),
    }
    for found in found_in_kernels(of, "memory.bound", rows, _half(time)):
        yield evolve(found, texts="memory.bound.flat", words={**found.words, **words})


def _by_kernels(of: Evaluated) -> Iterator[Found]:
    yield from above_the_roof("memory.bound")(of)
    counted = of.roofed.parts_above  # which know better
    cache = of.gpu.l2_cache.of("B") if of.gpu and of.gpu.l2_cache else 0.0

    def reads_weights(kind: LaunchKind) -> bool:
        product = product_of(kind)
        few = product is not None and product.batches == 1 and min(product.rows, product.columns) <= _MOST_ROWS
        return few and product is not None and product.dtype in _WIDE and kind.kernel not in counted

    rows, launched = unclaimed(of, reads_weights), of.launched
    moved, time = launched.sum(rows, bytes_of), launched.time(rows)
    if not moved or not time or moved / launched.instances < cache:
        return  # what stays in the cache is not read from memory
    reached = moved / time * 1e9 / of.gpu.bandwidth.of("B/s") if of.gpu and of.gpu.bandwidth else 0.0
    if reached >= _NEAR:
        share = shown(Quantity(min(reached, 1.0), "ratio"))
        yield from found_in_kernels(of, "memory.bound", rows, _half(time), share_of_roof=share)


def _half(time: float) -> Gain:
    return Gain(time * 0.5, time * 0.35, time * 0.7)


RULE = Rule(
    id="memory.bound",
    title="Weights are read for only a few rows",
    costs="A matrix product with few rows reads every weight for a handful of operations: memory is the limit.",
    seen="Matrix products with at most 128 rows, in 16 bits or more, whose weights exceed the L2 cache and are read near the memory's bandwidth; with counters, kernels at the memory roof; for a server, decode steps that take the same time at several batch sizes while the GPU is busy.",
    words=Words(
        because="{families}, {time} of {now}, at {share_of_roof} of the memory's bandwidth",
        action="move fewer bytes: quantise weights or the cache, or use larger batches",
    ),
    find=_find,
    gain="Half of the time, for half of the bytes (8 bits instead of 16).",
    before="y = F.linear(x, weight)  # 16 rows, bf16",
    after="y = torch._scaled_mm(x8, weight8.t(), scale_a=…, scale_b=…, out_dtype=torch.bfloat16)",
    unless="The accuracy does not allow it, and there are no more sequences to batch.",
    variants={
        "serving": Words(
            because="{families}, {time} of {now}, at {share_of_roof} of the memory's bandwidth, with {batch} requests in a step on average",
            action="put more requests into a step (more at once, a larger KV cache), or move fewer bytes: quantise weights or the cache",
        ),
        "flat": Words(
            because="steps of {sizes} requests take {shortest} to {longest}, whatever their size: {families}, {time} of {now}, read all weights for a few rows",
            action="put more requests into a step (more at once, a larger KV cache), or move fewer bytes: quantise the weights",
        ),
        "moving": Words(
            because="{families}, {time} of {now}, at {share_of_roof} of the memory's bandwidth",
            action="move fewer bytes: a smaller data type, or do this work in the kernel that writes or reads the data",
        ),
    },
)
