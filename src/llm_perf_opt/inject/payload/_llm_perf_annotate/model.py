"""Which stage a call of a model is, from its arguments alone.

Only shapes and types are looked at, never the contents of a tensor: reading those would make the program
wait for the GPU.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch

from .ticker import is_asked

# Names under which models take tokens, the more telling first.
TOKENS = (
    *("decoder_input_ids", "input_ids", "decoder_inputs_embeds", "inputs_embeds"),
    *("tokens", "token_ids", "input_tokens", "idx"),
)
CACHES = (
    *("past_key_values", "past_key_value", "cache_params", "kv_cache", "kv_caches", "past_kv"),
    *("past", "cache", "caches", "layer_past", "inference_params", "mems"),
)
# Given where the tokens of several requests stand in one row.
PACKED = (
    *("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q", "seq_lens", "seqlens", "lengths"),
    *("slot_mapping", "block_tables", "block_table"),
)
# What the tokens should have been: a loss is computed, in training or to evaluate.
TARGETS = ("labels", "targets", "target")
# Plain numbers that say how many tokens came before.
OFFSETS = ("start_pos", "cur_pos", "start_position", "offset")
# A pass over more tokens than this onto a filled cache is a new piece of prompt (the next turn of a chat), over
# fewer it is a check of guessed tokens.
MOST_GUESSED = 64

EMPTY, FILLED, UNKNOWN, ABSENT = "empty", "filled", "unknown", "absent"


class _Cache:
    """What the calls with a cache were, so far."""

    def __init__(self, alive: weakref.ref[Any]) -> None:
        self.alive = alive  # while this is
        self.decodes = False  # the last of them
        self.reads = False  # it was empty at first, and prompts alone came into it


class Model:
    """A module that is called as the outermost one, and what its signature says."""

    def __init__(self, module: Any) -> None:
        self.stale = False  # a module was met inside it that was not there when it was looked through
        self.looked_through = 0
        # Of a server: its scheduler may put prompts and tokens of several requests into one call.
        self._serves = is_asked()
        self._stepped = False  # single tokens have been decoded since the last prefill
        self._caches: dict[int, _Cache] = {}  # by identity: a server may have one for each request
        places = _parameters(unwrapped(module))
        self._tokens = _Argument(TOKENS, places)
        self._cache = _Argument(CACHES, places)
        self._offset = _Argument(OFFSETS, places)
        self._packed = _Argument(PACKED, places)
        self._targets = _Argument(TARGETS, places)
        self._encodes: bool | None = None
        self._part = ""
        self._first = next(iter(places), "")
        # A server packs several requests into one flat row of tokens: it is neither prefill nor decode.
        self._flat = "positions" in places

    def stage(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """`prefill`, `decode_step`, `step` where that cannot be told, as of several requests, `evaluate` for a loss without gradients, or `forward` for all else that is not inference over tokens."""
        tokens = self._tokens.of(args, kwargs)
        if tokens is None:
            tokens = self._unnamed_tokens(args, kwargs)
        length = _length(tokens)
        if self._encodes is None:
            self._encodes = _encodes(module)
        if length is not None and self._targets.of(args, kwargs) is not None:
            return "forward" if torch.is_grad_enabled() else "evaluate"
        if length is None or self._encodes or (self._flat and tokens.dim() == 1):
            return "forward"
        fill = self._fill(args, kwargs)
        if fill is None:
            return "step"
        if fill != FILLED and module.training and torch.is_grad_enabled():
            return "forward"
        cache = self._cache.of(args, kwargs)
        known = self._caches.get(object.__hash__(cache))
        reads = fill == EMPTY or (known is not None and known.reads)
        if length > 1 and (self._may_be_several(tokens, fill, args, kwargs) or (self._serves and not reads)):
            if known is not None:
                known.reads = False
            return "step"
        # Several tokens onto a filled cache are the rest of a prompt given in pieces, unless decoding has begun.
        has_stepped = known.decodes if known is not None else self._stepped and not _lasts(cache)
        several_decode = fill == FILLED and length <= MOST_GUESSED and has_stepped
        decodes = fill != EMPTY if length == 1 else several_decode
        self._note_step(cache, decodes, reads)
        return "decode_step" if decodes else "prefill"

    def name_in(self, whole: Any, module: Any) -> str:
        """The stage of a part that `generate()` calls by itself, such as an encoder or a vision tower."""
        if not self._part:
            paths = (path for path, part in whole.named_modules() if part is module)
            name = next(paths, "").rpartition(".")[2]
            self._part = "forward" if not name or name.isdigit() else name
        return self._part

    def _note_step(self, cache: Any, decodes: bool, reads: bool) -> None:
        self._stepped, key = decodes, object.__hash__(cache)
        if key not in self._caches and _lasts(cache):
            self._caches[key] = _Cache(weakref.ref(cache, lambda _: self._caches.pop(key, None)))
        if key in self._caches:
            self._caches[key].decodes, self._caches[key].reads = decodes, reads and not decodes

    def _may_be_several(self, tokens: Any, fill: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a row of tokens may be of several requests, a piece of a prompt or one token of each."""
        if tokens.dim() > 1:
            return tokens.shape[0] == 1 and self._packed.of(args, kwargs) is not None
        if type(self._offset.of(args, kwargs)) is int:
            return False
        others = (*args, *kwargs.values())
        beside = sum(isinstance(other, torch.Tensor) and other.shape == tokens.shape for other in others)
        return fill in (FILLED, UNKNOWN) or beside > 1 or self._packed.of(args, kwargs) is not None

    def _unnamed_tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Models of one's own name their input as they like: whole numbers in one or two dimensions are tokens."""
        first = args[0] if args else kwargs.get(self._first)
        if isinstance(first, torch.Tensor) and first.dim() in (1, 2) and first.dtype in (torch.int64, torch.int32):
            return first
        return None

    def _fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """How full the key-value cache is; None where it serves several requests at once."""
        if _is_paged(kwargs.get("cache")):  # of continuous batching, which models do not declare
            return None
        offset = self._offset.of(args, kwargs)
        if type(offset) is int:
            return FILLED if offset > 0 else EMPTY
        cache = self._cache.of(args, kwargs)
        if cache is None:
            return EMPTY if self._cache.declared else ABSENT
        return None if _is_paged(cache) else fill_of(cache)


class _Argument:
    """An argument that models have under one of several names."""

    def __init__(self, names: tuple[str, ...], places: dict[str, int | None]) -> None:
        self.declared = any(name in places for name in names)
        # A signature of *args, **kwargs tells nothing: then any of the names may come.
        self._names = tuple(name for name in names if name in places or (not self.declared and None in places.values()))
        self._places = tuple(place for name in names if (place := places.get(name)) is not None)

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for name in self._names:
            value = kwargs.get(name)
            if value is not None:
                return value
        for place in self._places:
            if place < len(args) and args[place] is not None:
                return args[place]
        return None


def _lasts(cache: Any) -> bool:
    """Whether a cache can be known again by its identity: a tuple is another one after every step."""
    return bool(type(cache).__weakrefoffset__)


def _is_paged(cache: Any) -> bool:
    return type(cache).__name__.startswith("Paged")


def fill_of(cache: Any) -> str:
    """Whether a cache holds tokens already, without asking the GPU."""
    if isinstance(cache, (tuple, list)):
        return _fill_of_layers(cache)
    if isinstance(cache, dict):
        return UNKNOWN if cache else EMPTY
    own = getattr(cache, "self_attention_cache", None)  # of encoder-decoder models
    if own is not None:
        return fill_of(own)
    offset = getattr(cache, "seqlen_offset", None)
    if type(offset) is int:
        return FILLED if offset > 0 else EMPTY
    for attribute in ("layers", "key_cache"):
        layers = getattr(cache, attribute, None)
        if isinstance(layers, (tuple, list)):
            # Buffers of fixed size look the same however full they are.
            fixed = "Static" in type(cache).__name__ or getattr(type(cache), "is_compileable", False) is True
            fill = _fill_of_layers(layers)
            return UNKNOWN if fixed and fill == FILLED else fill
    return UNKNOWN


def _fill_of_layers(layers: Any) -> str:
    if not layers:
        return EMPTY
    layer = layers[0]
    if isinstance(layer, (tuple, list)):
        layer = layer[0] if layer else None
    if layer is None:
        return EMPTY
    if isinstance(layer, torch.Tensor):
        return FILLED if layer.numel() else EMPTY
    if getattr(layer, "is_initialized", None) is False:
        return EMPTY
    if "Static" in type(layer).__name__:
        return UNKNOWN
    seen = getattr(layer, "cumulative_length", None)
    if type(seen) is int:
        return FILLED if seen > 0 else EMPTY
    keys = getattr(layer, "keys", None)
    if isinstance(keys, torch.Tensor):
        return FILLED if keys.numel() else EMPTY
    return UNKNOWN


def unwrapped(module: Any) -> Any:
    """The model inside DataParallel, DistributedDataParallel, FSDP, torch.compile, PEFT."""
    while (name := wrapped_name(module)) is not None:
        module = module._modules[name]
    return module


def wrapped_name(module: Any) -> str | None:
    """The attribute under which a wrapper holds the one module it wraps; None for modules that are no wrappers."""
    children = module._modules
    if len(children) != 1:
        return None
    (name,) = children
    if children[name] is None:
        return None
    known = name in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    known = known or (name == "module" and _package(module) in ("torch", "deepspeed", "accelerate"))
    return name if known or _package(module) == "peft" else None


def _package(module: Any) -> str:
    return type(module).__module__.partition(".")[0]


def _parameters(module: Any) -> dict[str, int | None]:
    """The places of what `forward` takes, by name, in order; None for what has none, `**kwargs` among it."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError, AttributeError):
        return {"**kwargs": None}
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places: dict[str, int | None] = {}
    for place, parameter in enumerate(parameters):
        places[parameter.name] = place if parameter.kind in by_position else None
    return places


def _encodes(module: Any) -> bool:
    """Whether every token sees every other, as in an encoder: nothing is ever decoded after such a call."""
    causal = {part.__dict__.get("is_causal") for part in module.modules()} - {None}
    return causal == {False}


def _length(tokens: Any) -> int | None:
    if not isinstance(tokens, torch.Tensor) or tokens.dim() == 0:
        return None
    length = tokens.shape[1] if tokens.dim() > 1 else tokens.shape[0]
    return length if type(length) is int else None  # symbolic while a graph is traced
