"""FLOPs and bytes of a stage by closed formulas: what the mathematics of the model needs, term by term.

Pure functions over an `Architecture` and a `StageWork`; no torch. Every term carries its formula as text,
in the symbols of `SYMBOLS`. FLOPs are given three ways, which differ in attention and in small batches only:

- full: every query with every key, as torch's counter has it;
- needed: under the causal mask and the sliding window, what enters the result;
- tensor cores: an estimate of what the GPU's counters will show. Tensor cores work on tiles, so a decode
  step of one token fills one of at least eight columns, and a causal kernel leaves out whole tiles only.

Bytes are the least a pass can move: each weight once, the cache once, and for each product of matrices its
input and its result once. Everything element by element is taken to be fused into a neighbour.
"""

from __future__ import annotations

from math import ceil

from attrs import Factory, define, evolve, field, fields

from llm_perf_opt.static_analysis.architecture import Architecture, Experts, LatentAttention
from llm_perf_opt.static_analysis.stage import StageWork

# Rows of a product are padded to this on tensor cores (mma and wgmma both work on 8 columns at least).
ROW_TILE = 8
# Attention kernels take queries and keys in tiles; what was seen on an H200 (cuDNN, flash attention).
QUERY_TILE = 128
SMALL_QUERY_TILE = 16  # where a pass has fewer queries than QUERY_TILE: one tile for all heads of a key head
KEY_TILE = 128

SYMBOLS = {
    "B": "sequences in the batch",
    "n": "new tokens of each sequence",
    "c": "tokens of each sequence already in the cache",
    "T": "new tokens of the whole batch, B · n",
    "S": "keys a query is compared with, c + n; with a sliding window at most window - 1 + n",
    "P": "positions of each sequence the output head is applied to",
    "L": "layers",
    "h": "hidden size",
    "H": "query heads",
    "G": "key and value heads",
    "d": "width of a query or key of one head",
    "v": "width of a value of one head",
    "I": "intermediate size of a dense MLP",
    "V": "vocabulary",
    "w": "bytes of one value",
    "M": "matrices of an MLP: 3 with a gate, 2 without",
    "E": "experts",
    "k": "experts a token is sent to",
    "J": "intermediate size of one expert",
    "X": "experts that get at least one token, expected for even routing: E · (1 - (1 - k/E)^T)",
    "Lx": "layers with experts",
    "Js": "intermediate size of the shared experts together",
    "r": "rank of the key and value bottleneck",
    "q": "rank of the query bottleneck",
    "p": "width of the key part that carries the position",
    "o": "width of the key part that does not",
    "A": "values of one image patch",
}


@define
class Term:
    """One part of a stage."""

    name: str
    part: str  # PROJECTIONS | ATTENTION | EXPERTS | HEAD | EMBEDDING
    formula: str  # of the full FLOPs, in SYMBOLS
    flops_full: int = 0
    flops_needed: int = 0
    flops_tensor_cores: int = 0
    weight_bytes: int = 0
    cache_bytes_read: int = 0
    cache_bytes_written: int = 0
    activation_bytes_read: int = 0
    activation_bytes_written: int = 0
    bytes_formula: str = ""
    note: str = ""


@define
class StageFormula:
    """One run of a stage by formula."""

    terms: list[Term]
    symbols: dict[str, float] = field(factory=dict)  # the values that were put in
    notes: list[str] = Factory(list)
    # Sums over the terms.
    weight_bytes: int = field(init=False)
    cache_bytes_read: int = field(init=False)
    cache_bytes_written: int = field(init=False)
    bytes_read: int = field(init=False)  # of weights, cache and activations
    bytes_written: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        parts = ("weight_bytes", "cache_bytes_read", "cache_bytes_written")
        moved = ("activation_bytes_read", "activation_bytes_written")
        weights, read, written, *activations = (sum(getattr(t, name) for t in self.terms) for name in parts + moved)
        self.weight_bytes, self.cache_bytes_read, self.cache_bytes_written = weights, read, written
        self.bytes_read, self.bytes_written = weights + read + activations[0], written + activations[1]

    def flops(self, kind: str = "full", part: str | None = None) -> int:
        """FLOPs of one kind ("full", "needed", "tensor_cores"), of all terms or of one part."""
        return sum(getattr(term, f"flops_{kind}") for term in self.terms if part in (None, term.part))


PROJECTIONS, ATTENTION, EXPERTS = "projections and MLP", "attention", "experts"
HEAD, EMBEDDING = "output head", "embedding"


def stage_formula(
    architecture: Architecture, work: StageWork, bytes_per_value: int = 2, *, skips_tiles: bool = True
) -> StageFormula:
    """FLOPs and bytes of one run.

    `skips_tiles`: the attention kernel knows the mask and leaves out tiles that are all masked.
    """
    terms = [*_inputs(architecture, work, bytes_per_value)]
    if architecture.latent is not None:
        terms += _latent_projections(architecture, architecture.latent, work, bytes_per_value)
    else:
        terms += _projections(architecture, work, bytes_per_value)
    terms.append(_attention(architecture, work, bytes_per_value, skips_tiles))
    if architecture.dense_layers:
        terms.append(_mlp(architecture, work, bytes_per_value))
    if architecture.experts is not None and architecture.experts.layers:
        terms += _experts(architecture, architecture.experts, work, bytes_per_value)
    if architecture.vocabulary and work.head_positions:
        terms.append(_head(architecture, work, bytes_per_value))
    return StageFormula(terms, symbols(architecture, work, bytes_per_value), _notes(architecture, work))


def matrix_parameters(architecture: Architecture) -> int:
    """Parameters of all matrices and tables; norms and biases are left out, learned positions too."""
    one = StageWork(batch=1, new_tokens=1, head_positions=1)
    plan = stage_formula(architecture, one, bytes_per_value=1)
    used = sum(term.weight_bytes for term in plan.terms if term.part != EXPERTS)
    if architecture.experts is not None:
        mixture = architecture.experts
        used += mixture.layers * mixture.count * architecture.mlp_matrices * architecture.hidden * mixture.width
    table = 0 if architecture.tied_embeddings else architecture.vocabulary * architecture.hidden
    return used + table


def symbols(architecture: Architecture, work: StageWork, bytes_per_value: int) -> dict[str, float]:
    a = architecture
    values: dict[str, float] = {
        "B": work.batch,
        "n": work.new_tokens,
        "c": work.cached_tokens,
        "T": work.tokens,
        "S": work.cached_tokens + work.new_tokens,
        "P": work.head_positions,
        "L": a.layers,
        "h": a.hidden,
        "H": a.heads,
        "G": a.kv_heads,
        "d": a.key_dim,
        "v": a.value_dim,
        "I": a.intermediate,
        "V": a.vocabulary,
        "w": bytes_per_value,
        "M": a.mlp_matrices,
    }
    if a.experts is not None:
        e = a.experts
        touched = round(distinct_experts(e, work.tokens), 3)
        values |= {"E": e.count, "k": e.per_token, "J": e.width, "X": touched, "Lx": e.layers, "Js": e.shared_width}
    if a.latent is not None:
        values |= {"r": a.latent.kv_rank, "p": a.latent.rope_dim, "o": a.latent.nope_dim}
        if a.latent.query_rank:
            values["q"] = a.latent.query_rank
    if a.patch_inputs:
        values["A"] = a.patch_inputs
    return values


def padded(rows: int, tile: int) -> int:
    return ceil(rows / tile) * tile


def _product(
    name: str,
    formula: str,
    bytes_formula: str,
    rows: int,
    products: list[tuple[int, int]],
    times: int,
    w: int,
    keeps: int | None = None,
) -> Term:
    """Products of `rows` rows with matrices (inputs, outputs), in `times` layers.

    `keeps` is the number of values of a row that go in and out of memory where neighbours are fused; by
    default each product reads its input and writes its result.
    """
    weights = sum(inputs * outputs for inputs, outputs in products) * times
    read = products[0][0] if keeps is None else products[0][0] + keeps
    written = sum(outputs for _, outputs in products) if keeps is None else products[-1][1] + keeps
    return Term(
        name,
        PROJECTIONS,
        formula,
        flops_full=2 * rows * weights,
        flops_needed=2 * rows * weights,
        flops_tensor_cores=2 * padded(rows, ROW_TILE) * weights,
        weight_bytes=weights * w,
        activation_bytes_read=rows * read * times * w,
        activation_bytes_written=rows * written * times * w,
        bytes_formula=bytes_formula,
    )


def _inputs(a: Architecture, work: StageWork, w: int) -> list[Term]:
    rows = work.tokens
    if a.patch_inputs:
        moved = "(A · h + T · A + T · h) · w"
        return [_product("patch embedding", "2 · T · A · h", moved, rows, [(a.patch_inputs, a.hidden)], 1, w)]
    if not a.vocabulary:
        return []
    lookups = 2 if a.learned_positions else 1
    return [
        Term(
            "embedding",
            EMBEDDING,
            "0: rows are copied",
            activation_bytes_read=lookups * rows * a.hidden * w,
            activation_bytes_written=rows * a.hidden * w,
            bytes_formula=f"rows read {lookups} · T · h · w, written T · h · w",
            note="only the rows of the tokens are read, not the table",
        )
    ]


def _projections(a: Architecture, work: StageWork, w: int) -> list[Term]:
    widths = [a.heads * a.key_dim, a.kv_heads * a.key_dim, a.kv_heads * a.value_dim]
    name, formula = "query, key and value projections", "2 · T · h · (H·d + G·d + G·v) · L"
    moved = "weights h · (H·d + G·d + G·v) · L · w; activations T · (h + H·d + G·d + G·v) · L · w"
    into = _product(name, formula, moved, work.tokens, [(a.hidden, width) for width in widths], a.layers, w)
    return [into, _output_projection(a, work, w)]


def _output_projection(a: Architecture, work: StageWork, w: int) -> Term:
    name, formula = "output projection of attention", "2 · T · H·v · h · L"
    moved = "weights H·v · h · L · w; activations T · (H·v + h) · L · w"
    return _product(name, formula, moved, work.tokens, [(a.heads * a.value_dim, a.hidden)], a.layers, w)


def _latent_projections(a: Architecture, latent: LatentAttention, work: StageWork, w: int) -> list[Term]:
    def product(name: str, formula: str, rows: int, *products: tuple[int, int]) -> Term:
        moved = "weights, inputs and results of the products, each once"
        return _product(name, formula, moved, rows, list(products), a.layers, w)

    rows, rank, queries = work.tokens, latent.query_rank, a.heads * a.key_dim
    if rank:
        name, formula = "query projection through its bottleneck", "2 · T · (h·q + q · H·d) · L"
        query = product(name, formula, rows, (a.hidden, rank), (rank, queries))
        query.activation_bytes_read += rows * rank * a.layers * w
    else:
        query = product("query projection", "2 · T · h · H·d · L", rows, (a.hidden, queries))
    bottleneck = (a.hidden, latent.kv_rank + latent.rope_dim)
    down = product("key and value bottleneck", "2 · T · h · (r + p) · L", rows, bottleneck)
    name, wide = "keys and values from the bottleneck", a.heads * (latent.nope_dim + a.value_dim)
    if latent.latent_cache:
        context = work.batch * (work.cached_tokens + work.new_tokens)
        up = product(name, "2 · B · S · r · H · (o + v) · L", context, (latent.kv_rank, wide))
        up.note = "made anew for the whole context in every pass, because the cache holds the bottleneck only"
        up.activation_bytes_read = 0  # read from the cache, counted with attention
    else:
        up = product(name, "2 · T · r · H · (o + v) · L", rows, (latent.kv_rank, wide))
    return [query, down, up, _output_projection(a, work, w)]


def keys_seen(work: StageWork, window: int | None) -> int:
    """Keys the queries of a pass are compared with: the cache, which may slide, and the new tokens."""
    kept = work.cached_tokens if window is None else min(work.cached_tokens, window - 1)
    return kept + work.new_tokens


def scores(work: StageWork, window: int | None, causal: bool) -> tuple[int, int]:
    """Pairs of a query and a key of one head and sequence: in full, and needed under the mask."""
    new, cached = work.new_tokens, work.cached_tokens
    full = new * keys_seen(work, window)
    if not causal:
        return full, full
    reach = window if window is not None else cached + new
    # the i-th new token (from 1) sees the cache and the new tokens up to itself, at most `reach`
    short = max(0, min(new, reach - cached))  # tokens that see fewer than `reach`
    return full, short * cached + short * (short + 1) // 2 + (new - short) * reach


def tiled_scores(work: StageWork, window: int | None, skips: bool, group: int = 1) -> int:
    """Pairs in whole tiles, of one sequence and one key head with its `group` of query heads.

    Many queries: tiles of 128 by 128 for each head, of which those behind the mask are left out if the kernel
    `skips`. Few queries: those of the whole group share tiles of 16 rows.
    """
    new = work.new_tokens
    keys = keys_seen(work, window)
    if new < QUERY_TILE:
        return padded(new * group, SMALL_QUERY_TILE) * padded(keys, KEY_TILE)
    if not skips:
        return group * padded(new, QUERY_TILE) * padded(keys, KEY_TILE)
    before = keys - new  # keys older than the first query
    tiles = 0
    for first in range(0, new, QUERY_TILE):
        last_key = before + min(first + QUERY_TILE, new)
        first_key = 0 if window is None else max(0, before + first + 1 - window)
        tiles += ceil(last_key / KEY_TILE) - first_key // KEY_TILE
    return group * tiles * QUERY_TILE * KEY_TILE


def _attention(a: Architecture, work: StageWork, w: int, skips_tiles: bool) -> Term:
    term = Term(
        "attention: scores and values",
        ATTENTION,
        "2 · B · H · n · S · (d + v) · L",
        bytes_formula="cache read B · G · S · (d + v) · w and written B · G · n · (d + v) · w in each layer; "
        "queries read T · H·d · w, result written T · H·v · w",
    )
    if a.causal and work.new_tokens > 1:
        term.note = "needed: a query sees the keys up to its own position, about half of them where the cache is empty"
    per_pair = 2 * work.batch * a.heads * (a.key_dim + a.value_dim)
    cached_width = a.kv_heads * (a.key_dim + a.value_dim)
    rows = work.tokens
    for window in a.layer_windows():
        full, needed = scores(work, window, a.causal)
        tiled = a.kv_heads * tiled_scores(work, window, a.causal and skips_tiles, a.heads // a.kv_heads)
        term.flops_full += per_pair * full
        term.flops_needed += per_pair * needed
        term.flops_tensor_cores += per_pair * tiled // a.heads
        keys = work.batch * keys_seen(work, window)
        if a.latent is not None and a.latent.latent_cache:
            latent_width = a.latent.kv_rank + a.latent.rope_dim
            term.cache_bytes_read += keys * latent_width * w
            term.cache_bytes_written += rows * latent_width * w
            term.activation_bytes_read += keys * cached_width * w
        elif a.causal:
            term.cache_bytes_read += keys * cached_width * w
            term.cache_bytes_written += rows * cached_width * w
        else:
            term.activation_bytes_read += keys * cached_width * w
    term.activation_bytes_read += rows * a.heads * a.key_dim * a.layers * w
    term.activation_bytes_written += rows * a.heads * a.value_dim * a.layers * w
    if a.latent is not None and a.latent.latent_cache:
        term.bytes_formula = (
            "cache read B · S · (r + p) · w and written T · (r + p) · w in each layer; keys and values of all heads "
            "read B · G · S · (d + v) · w; queries read T · H·d · w, result written T · H·v · w"
        )
    return term


def _mlp(a: Architecture, work: StageWork, w: int) -> Term:
    layers = "L" if a.experts is None else "(L - Lx)"
    formula = f"2 · T · M · h · I · {layers}"
    moved = f"weights M · h · I · {layers} · w; activations T · (2·h + 2·I) · {layers} · w"
    products = _mlp_products(a, a.intermediate)
    return _product("MLP", formula, moved, work.tokens, products, a.dense_layers, w, keeps=a.intermediate)


def _mlp_products(a: Architecture, width: int) -> list[tuple[int, int]]:
    return [*[(a.hidden, width)] * (a.mlp_matrices - 1), (width, a.hidden)]


def distinct_experts(experts: Experts, tokens: int) -> float:
    """Experts of a layer that get at least one token, expected where all are equally likely."""
    return experts.count * (1 - (1 - experts.per_token / experts.count) ** tokens)


def _experts(a: Architecture, experts: Experts, work: StageWork, w: int) -> list[Term]:
    rows = work.tokens
    each_once = "weights, inputs and results, each once"
    router = _product("router", "2 · T · h · E · Lx", each_once, rows, [(a.hidden, experts.count)], experts.layers, w)
    pairs = rows * experts.per_token
    weights = a.mlp_matrices * a.hidden * experts.width
    touched = distinct_experts(experts, rows)
    chosen = Term(
        "chosen experts",
        EXPERTS,
        "2 · T · k · M · h · J · Lx",
        flops_full=2 * pairs * weights * experts.layers,
        flops_needed=2 * pairs * weights * experts.layers,
        flops_tensor_cores=round(
            2 * max(pairs, touched * padded(ceil(pairs / touched), ROW_TILE)) * weights * experts.layers
        ),
        weight_bytes=round(touched * weights * experts.layers * w),
        activation_bytes_read=pairs * (a.hidden + experts.width) * experts.layers * w,
        activation_bytes_written=pairs * (a.hidden + experts.width) * experts.layers * w,
        bytes_formula="weights X · M · h · J · Lx · w; activations T · k · (2·h + 2·J) · Lx · w",
        note="only the experts a token is sent to; which those are depends on the data, even routing is assumed for bytes",
    )
    if not (width := experts.shared_width):
        return [router, chosen]
    moved = "weights M · h · Js · Lx · w; activations T · (2·h + 2·Js) · Lx · w"
    name, formula, layers = "shared experts", "2 · T · M · h · Js · Lx", experts.layers
    shared = _product(name, formula, moved, rows, _mlp_products(a, width), layers, w, keeps=width)
    if experts.shared_gate:
        gate = _product("", "", "", rows, [(a.hidden, 1)], layers, w)
        shared.formula += " + 2 · T · h · Lx for their gate"
        for number in (field.name for field in fields(Term) if field.default == 0):
            setattr(shared, number, getattr(shared, number) + getattr(gate, number))
    return [router, chosen, shared]


def _head(a: Architecture, work: StageWork, w: int) -> Term:
    moved = "weights h · V · w; activations B · P · (h + V) · w"
    rows, head = work.batch * work.head_positions, [(a.hidden, a.vocabulary)]
    term = evolve(_product("output head", "2 · B · P · h · V", moved, rows, head, 1, w), part=HEAD)
    if work.new_tokens > 1:
        term.note = (
            "applied to every position, as a plain forward() of transformers does; generate() and logits_to_keep=1 "
            "need the last position only"
            if work.head_positions == work.new_tokens
            else "applied to the last positions only (logits_to_keep)"
        )
    return term


def _notes(a: Architecture, work: StageWork) -> list[str]:
    notes = ["Norms, rotary positions, activations, softmax and biases are not in the formulas."]
    if any(a.windows):
        seen = sorted({window for window in a.windows if window is not None})
        layers = sum(window is not None for window in a.windows)
        notes.append(
            f"{layers} of {a.layers} layers see at most {', '.join(map(str, seen))} keys: in full, a pass with an empty "
            "cache compares all keys and masks them; later ones compare what the sliding cache holds."
        )
    return notes
