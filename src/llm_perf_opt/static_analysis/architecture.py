"""The numbers of a transformer that its FLOPs and bytes follow from, read from its configuration.

The configuration is any object with the fields of a transformers config; neither transformers nor torch is
needed here. What has no closed formula is said with the reason, never guessed in silence.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import define

from llm_perf_opt.package_data import read_toml


@cache
def _table() -> dict[str, Any]:
    return read_toml(__package__, "architectures.toml")


@define(frozen=True)
class LatentAttention:
    """Keys and values through a low-rank bottleneck (DeepSeek's MLA)."""

    query_rank: int | None  # None: queries straight from the hidden state
    kv_rank: int
    rope_dim: int  # width of a key that carries the position, shared by all heads
    nope_dim: int  # width of a key that does not
    # True: the cache holds the bottleneck, and keys and values of the whole context are made anew in every pass.
    # False: the cache holds keys and values of all heads. Versions of transformers differ in this.
    latent_cache: bool = True


@define(frozen=True)
class Experts:
    """Mixture of experts, the same in all layers that have one."""

    layers: int  # layers with experts; the others have a dense MLP
    count: int
    per_token: int
    width: int  # intermediate size of one expert
    shared_width: int = 0  # of the experts every token passes, together
    shared_gate: bool = False  # a learned factor on the shared experts


@define(frozen=True)
class Architecture:
    """A stack of transformer layers."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    key_dim: int  # width of a query or key of one head
    value_dim: int
    intermediate: int  # of a dense MLP
    mlp_matrices: int  # 3: gate, up, down; 2: up, down
    vocabulary: int = 0  # 0: no embedding and no output head, as in a vision encoder
    tied_embeddings: bool = False  # the output head uses the embedding table
    learned_positions: bool = False
    causal: bool = True
    windows: tuple[int | None, ...] = ()  # for each layer the keys a query sees; None: all
    latent: LatentAttention | None = None
    experts: Experts | None = None
    patch_inputs: int = 0  # values of one image patch; 0: no patches
    known: bool = True  # the model type is one whose formulas are tested

    def layer_windows(self) -> tuple[int | None, ...]:
        return self.windows or (None,) * self.layers

    @property
    def dense_layers(self) -> int:
        return self.layers - (self.experts.layers if self.experts else 0)


@define(frozen=True)
class NoFormula:
    """Why there is no closed formula; an empty reason where nobody would expect one."""

    reason: str


def text_config(config: Any) -> Any:
    """The language part of a configuration: itself, unless it has parts."""
    found = getattr(config, "text_config", None) or getattr(config, "language_config", None)
    return config if found is None else found


def architecture_of(config: Any) -> Architecture | NoFormula:
    """The language model of a configuration."""
    if config is None:
        return NoFormula("the model has no transformers configuration to take the numbers from")
    config = text_config(config)
    model_type = str(_get(config, "model_type") or type(config).__name__)
    table = _table()
    if model_type in table["no_formula"]:
        return NoFormula(f"model type {model_type}: {table['no_formula'][model_type]}")
    if _get(config, "is_encoder_decoder"):
        return NoFormula(f"model type {model_type} has an encoder and a decoder")
    layer_types = _get(config, "layer_types") or []
    strange = sorted({str(kind) for kind in layer_types} - set(table["attention_layers"]))
    if strange:
        return NoFormula(f"model type {model_type} has layers of kind {', '.join(strange)}")
    sizes = {name: _number(config, name) for name in ("layers", "hidden", "heads")}
    missing = [name for name, value in sizes.items() if not value]
    if missing or not _get(config, "vocab_size"):
        return NoFormula(
            f"model type {model_type}: its configuration does not give {', '.join(missing) or 'a vocabulary'}"
        )
    if _number(config, "experts") and not _number(config, "experts_per_token"):
        return NoFormula(f"model type {model_type}: its configuration does not say how many experts a token is sent to")
    layers, hidden, heads = (int(sizes[name] or 0) for name in ("layers", "hidden", "heads"))
    latent, key_dim, value_dim = _latent(config)
    head_dim = int(_get(config, "head_dim") or hidden // heads)
    return Architecture(
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        key_dim=key_dim or head_dim,
        value_dim=value_dim or head_dim,
        intermediate=_number(config, "intermediate") or 4 * hidden,
        mlp_matrices=2 if model_type in table["plain_mlp"] else 3,
        vocabulary=int(_get(config, "vocab_size")),
        tied_embeddings=bool(_get(config, "tie_word_embeddings")),
        learned_positions=model_type in table["learned_positions"],
        windows=_windows(config, layers, layer_types),
        latent=latent,
        experts=_experts(config, model_type, layers),
        known=model_type in table["plain_mlp"] or model_type in table["gated_mlp"],
    )


def vision_architecture_of(config: Any) -> Architecture | NoFormula:
    """The vision encoder of a vision-language model, where it is a plain stack of layers over patches."""
    part = getattr(config, "vision_config", None)
    model_type = str(_get(config if part is None else part, "model_type") or "")
    table = _table()
    if model_type not in table["vision"]:
        return NoFormula("" if part is None else f"vision encoder {model_type} is no plain stack of layers")
    config = config if part is None else part
    layers, hidden, heads = (_number(config, name) or 0 for name in ("layers", "hidden", "heads"))
    patch = _get(config, "patch_size")
    if not (layers and hidden and heads and isinstance(patch, int)):
        return NoFormula(f"vision encoder {model_type}: its configuration does not give all sizes")
    head_dim = int(_get(config, "head_dim") or hidden // heads)
    gated = model_type in table["vision_gated_mlp"]
    return Architecture(
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=_number(config, "intermediate") or int(hidden * (_get(config, "mlp_ratio") or 4)),
        mlp_matrices=3 if gated else 2,
        causal=False,
        patch_inputs=patch * patch * int(_get(config, "num_channels") or 3),
    )


def _get(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _number(config: Any, name: str) -> int | None:
    """The first of the names for a number that the configuration has."""
    for field in _table()["fields"][name]:
        value = _get(config, field)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _kv_heads(config: Any, heads: int) -> int:
    if _get(config, "new_decoder_architecture") is False and _get(config, "multi_query"):
        return 1  # falcon-7b: num_kv_heads is there and not used
    return _number(config, "kv_heads") or heads


def _latent(config: Any) -> tuple[LatentAttention | None, int, int]:
    rank = _get(config, "kv_lora_rank")
    if not isinstance(rank, int):
        return None, 0, 0
    rope, nope = int(config.qk_rope_head_dim), int(config.qk_nope_head_dim)
    latent = LatentAttention(query_rank=_get(config, "q_lora_rank"), kv_rank=rank, rope_dim=rope, nope_dim=nope)
    return latent, rope + nope, int(config.v_head_dim)


def _windows(config: Any, layers: int, layer_types: list[str]) -> tuple[int | None, ...]:
    window = _get(config, "sliding_window")
    if not isinstance(window, int) or window <= 0 or _get(config, "use_sliding_window") is False:
        return ()
    if layer_types:
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    return (window,) * layers


def _experts(config: Any, model_type: str, layers: int) -> Experts | None:
    count = _number(config, "experts")
    per_token = _number(config, "experts_per_token")
    width = _number(config, "expert_width")
    if not count or not per_token or not width:
        return None
    sparse = _sparse_layers(config, layers)
    shared = _number(config, "shared_width")
    gate = bool(shared) and model_type == "qwen2_moe"
    if not shared:
        shared = (_number(config, "shared_experts") or 0) * width
    return Experts(layers=sparse, count=count, per_token=per_token, width=width, shared_width=shared, shared_gate=gate)


def _sparse_layers(config: Any, layers: int) -> int:
    """How many layers have experts; every family says it in another way."""
    kinds = _get(config, "mlp_layer_types")
    if kinds:
        return sum(kind == "sparse" for kind in kinds)
    dense_first = _get(config, "first_k_dense_replace")
    if isinstance(dense_first, int):
        step = _get(config, "moe_layer_freq") or 1
        return sum(layer >= dense_first and layer % int(step) == 0 for layer in range(layers))
    start = _get(config, "moe_layer_start_index")
    if isinstance(start, int):
        end = _get(config, "moe_layer_end_index")
        last = layers - 1 if end in (None, -1) else int(end)
        step = int(_get(config, "moe_layer_interval") or 1)
        return sum(start <= layer <= last and (layer + 1) % step == 0 for layer in range(layers))
    dense = set(_get(config, "mlp_only_layers") or [])
    step = int(_get(config, "decoder_sparse_step") or 1)
    return sum(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
