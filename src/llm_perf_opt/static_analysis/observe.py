"""What the operators of a stage tell about it: batch, lengths, and which part of the model each product is.

Pure functions over a `StageCount`; no torch. Used where a stage does not say what it was given, and to put
counter and formula side by side part by part.
"""

from __future__ import annotations

from attrs import evolve

from llm_perf_opt.static_analysis.architecture import Architecture
from llm_perf_opt.static_analysis.counts import AttentionShape, MatrixShape, StageCount
from llm_perf_opt.static_analysis.formulas import ATTENTION, EXPERTS, HEAD, PROJECTIONS
from llm_perf_opt.static_analysis.stage import StageWork, StaticStage

PARTS = (PROJECTIONS, ATTENTION, EXPERTS, HEAD)


def work_of(stage: StaticStage, count: StageCount, architecture: Architecture) -> tuple[StageWork | None, str]:
    """What the stage was given, and who says so; None where neither the stage nor its operators do."""
    if stage.work is not None:
        return stage.work, "given by the stage"
    batch, new, context = (stage.shape.get(name) for name in ("batch", "tokens", "context"))
    if architecture.vocabulary and batch and new and context and context >= new:
        heads = _head_positions(count, architecture, batch)
        return StageWork(batch, new, context - new, heads), "given by the stage"
    return observed_work(count, architecture), "taken from the shapes of operators"


def observed_work(count: StageCount, architecture: Architecture) -> StageWork | None:
    """Batch and lengths as the attention operators had them; None where there is no attention of this model."""
    lengths = _lengths(count, architecture)
    if lengths is None:
        return None
    batch, queries, keys = lengths
    return StageWork(
        batch=batch,
        new_tokens=queries,
        cached_tokens=keys - queries,
        head_positions=_head_positions(count, architecture, batch),
        part="text" if architecture.vocabulary else "vision",
    )


def _head_positions(count: StageCount, architecture: Architecture, batch: int) -> int:
    rows = sum(shape.batch * shape.m * calls for shape, calls in count.matrices if _is_head(shape, architecture))
    if not rows and architecture.vocabulary and not count.complete:
        return 1  # the counter did not get to the head: the last position, as in generate()
    return rows // batch


def _lengths(count: StageCount, architecture: Architecture) -> tuple[int, int, int] | None:
    """Batch, queries, and the keys of the layer that sees most."""
    same = [(shape, queries, calls) for shape, calls in count.attention if (queries := _queries(shape, architecture))]
    # one call a layer; another count is another part of the model that has heads of the same size
    ours = not count.complete or sum(calls for _, _, calls in same) % architecture.layers == 0
    fused = [(shape.batch, queries, shape.keys) for shape, queries, _ in same if ours]
    taken_apart = [
        (shape.batch // architecture.heads, shape.m, shape.n)
        for shape, calls in count.matrices
        if shape.k == architecture.key_dim
        and shape.batch % architecture.heads == 0
        and shape.n >= shape.m
        and calls >= min(architecture.layers, 2)
    ]
    found = [lengths for lengths in (fused or taken_apart) if lengths[2] >= lengths[1]]
    return max(found, key=lambda lengths: lengths[2], default=None)


def _queries(shape: AttentionShape, architecture: Architecture) -> int:
    """Queries of each head; 0 where the attention is not this model's. From transformers 5.23 on, the heads that share
    keys and values are passed as the queries of one head where there is one query and a mask."""
    if shape.key_dim != architecture.key_dim:
        return 0
    if shape.heads == architecture.heads:
        return shape.queries
    packed = (architecture.kv_heads, architecture.heads // architecture.kv_heads)
    return 1 if (shape.heads, shape.queries) == packed else 0


def observed_architecture(count: StageCount, architecture: Architecture, work: StageWork) -> Architecture:
    """The architecture with what only the run shows: what a latent cache holds."""
    latent = architecture.latent
    if latent is None:
        return architecture
    wide = architecture.heads * (latent.nope_dim + architecture.value_dim)
    rows = [shape.m for shape, _ in count.matrices if (shape.k, shape.n) == (latent.kv_rank, wide)]
    if not rows or not work.cached_tokens:
        return architecture
    context = work.batch * (work.cached_tokens + work.new_tokens)
    return evolve(architecture, latent=evolve(latent, latent_cache=max(rows) >= context))


def skips_tiles(count: StageCount) -> bool:
    """The attention kernel was told of the causal mask, or has one query, so that it can leave out tiles."""
    return bool(count.attention) and all(
        shape.mask == "causal" or (shape.mask == "none" and shape.queries == 1) for shape, _ in count.attention
    )


def counted_parts(count: StageCount, architecture: Architecture, work: StageWork) -> dict[str, int]:
    """Matrix FLOPs of the counter, sorted into the parts the formulas have."""
    parts = dict.fromkeys(PARTS, 0)
    for attention, calls in count.attention:
        parts[ATTENTION] += attention.flops * calls
    for shape, calls in count.matrices:
        parts[_part_of(shape, architecture, work)] += shape.flops * calls
    # products without a known shape
    parts[PROJECTIONS] += count.matrix_flops - sum(parts.values())
    return parts


def _part_of(shape: MatrixShape, architecture: Architecture, work: StageWork) -> str:
    if _is_head(shape, architecture):
        return HEAD
    if "grouped_mm" in shape.operator:
        return EXPERTS
    experts = architecture.experts
    pairs = work.tokens * (experts.per_token if experts else 0)
    if experts and shape.batch == pairs and experts.width in (shape.m, shape.k, shape.m // 2) and shape.n == 1:
        return EXPERTS  # batched_mm: one product for each pair of token and expert
    heads = work.batch * architecture.heads
    if shape.batch in (heads, work.batch * architecture.kv_heads) and shape.batch > 1:
        return ATTENTION
    return PROJECTIONS


def _is_head(shape: MatrixShape, architecture: Architecture) -> bool:
    return bool(architecture.vocabulary) and (shape.k, shape.n) == (architecture.hidden, architecture.vocabulary)
