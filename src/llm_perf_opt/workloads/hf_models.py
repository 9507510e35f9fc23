"""Builds models of Hugging Face transformers: from a local folder, or with random weights from a configuration.

Random weights are made directly on the device in the type they will have, so a model of 30 billion
parameters needs no more memory than its weights and no download. Nothing here ever reaches for a network.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch

from llm_perf_opt.errors import ExitCode, MissingTool, UserError
from llm_perf_opt.package_data import read_toml
from llm_perf_opt.workloads.device import explained_failures, import_transformers
from llm_perf_opt.workloads.workload_options import ModelOptions, nearest, refuse_no_folder

# Accepted by every configuration although no field is called so.
_OLDER_KEYS = frozenset({"rope_theta", "rope_scaling", "partial_rotary_factor", "torch_dtype"})
# What a generation configuration may ask for and plain greedy decoding does not do.
_BEYOND_GREEDY = {
    "do_sample": (None, False),
    "num_beams": (None, 1),
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "min_new_tokens": (None, 0),
    "min_length": (None, 0),
}


def preset(name: str) -> dict[str, Any]:
    """A shape from `model_configs.toml`."""
    return dict(read_toml(__package__, "model_configs.toml")[name])


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with changes in it, also inside nested tables."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def read_config(options: ModelOptions, default: Mapping[str, Any] | None = None) -> Any:
    """The model's configuration: that of the folder with changes, or one made of `model.config` alone."""
    transformers = import_transformers()
    if options.path is not None:
        return _config_of_folder(options, transformers)
    wanted = dict(options.config)
    if not wanted and default is None and options.name == "hf_causal_lm":
        wanted = preset(options.name)
    if default is not None and wanted.get("model_type", default["model_type"]) == default["model_type"]:
        wanted = merged(default, wanted)
    kind = wanted.pop("model_type", None)
    known = transformers.CONFIG_MAPPING
    if kind is None:
        raise UserError(
            f"model={options.name} needs model.path=FOLDER or model.config with a model_type.",
            "For random weights write, for example, "
            "'model.config={model_type: qwen3, num_hidden_layers: 8, hidden_size: 1024}'.",
        )
    if kind not in known:
        raise UserError(
            f"model.config.model_type={kind!r} is not known to transformers {transformers.__version__}."
            f"{nearest(str(kind), known.keys())}",
            "Use the model_type in the config.json of such a model.",
        )
    config_class = known[kind]
    _refuse_unknown(wanted, config_class)
    try:
        return transformers.AutoConfig.for_model(kind, **wanted)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"transformers refuses model.config: {reason}", "Correct that value.") from error


def _config_of_folder(options: ModelOptions, transformers: Any) -> Any:
    path = options.path
    assert path is not None
    refuse_no_folder(path)
    try:
        return transformers.AutoConfig.from_pretrained(
            str(path), trust_remote_code=options.trust_remote_code, local_files_only=True, **options.config
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        fix = "Correct it, or use a version of transformers that knows this model."
        if "trust_remote_code" in str(error):
            fix = "If you trust the Python code in that folder, set model.trust_remote_code=true."
        raise UserError(f"The configuration in {path} cannot be used: {reason}", fix) from error


def _refuse_unknown(wanted: Mapping[str, Any], config_class: Any) -> None:
    """transformers takes any key and forgets it: a slip of the pen would give a model of the default size."""
    if not dataclasses.is_dataclass(config_class):
        return
    known = {field.name for field in dataclasses.fields(config_class)} | _OLDER_KEYS
    known |= set(getattr(config_class, "attribute_map", {}))
    kind = getattr(config_class, "model_type", "this model")
    for key in wanted:
        if key not in known and not _read_by_code(key, config_class):
            raise UserError(
                f"model.config.{key} is not a setting of {kind}.{nearest(key, known)}",
                "See the config.json of such a model for its settings.",
            )


def _read_by_code(key: str, config_class: Any) -> bool:
    """Whether the architecture's code asks for a key that its configuration does not list, as many do."""
    name = config_class.__module__.replace(".configuration_", ".modeling_")
    try:
        source = inspect.getsource(importlib.import_module(name))
    except (ImportError, OSError, TypeError):
        return True  # nothing to tell a slip by
    return re.search(rf"\b{re.escape(key)}\b", source) is not None


def build(options: ModelOptions, config: Any, device: Any, auto_class: Any) -> Any:
    """The model in evaluation mode on the device."""
    dtype = getattr(torch, options.dtype)
    wanted: dict[str, Any] = {"dtype": dtype, "trust_remote_code": options.trust_remote_code}
    if options.attn_implementation is not None:
        wanted["attn_implementation"] = options.attn_implementation
    try:
        with explained_failures(options.name):
            if options.path is not None:
                model = auto_class.from_pretrained(str(options.path), config=config, local_files_only=True, **wanted)
                model = model.to(device)
            else:
                torch.manual_seed(options.seed)
                with device:
                    model = auto_class.from_config(config, **wanted)
    except UserError as error:
        raise _attention_error(options, error) from error
    return model.eval().requires_grad_(False)


def _attention_error(options: ModelOptions, error: UserError) -> UserError:
    """transformers explains attention implementations in its own words; say which key is meant."""
    cause = error.__cause__
    if options.attn_implementation is None or not isinstance(cause, ImportError | ValueError):
        return error
    reason = " ".join(str(cause).split())[:300]
    message = f"model.attn_implementation={options.attn_implementation} cannot be used: {reason}"
    fix = "Set model.attn_implementation=sdpa or eager, or install the package it needs."
    return MissingTool(message, fix) if isinstance(cause, ImportError) else UserError(message, fix)


def build_on_meta(options: ModelOptions, config: Any, auto_class: Any) -> Any:
    """The same model without memory, with attention and experts as operators that run on the meta device."""
    attention = "eager" if options.attn_implementation == "eager" else "sdpa"
    wanted = {"dtype": getattr(torch, options.dtype), "trust_remote_code": options.trust_remote_code}
    with explained_failures(options.name), torch.device("meta"):
        try:
            model = auto_class.from_config(config, attn_implementation=attention, **wanted)
        except ValueError:  # some architectures have no scaled dot product attention
            model = auto_class.from_config(config, attn_implementation="eager", **wanted)
    if hasattr(model, "set_experts_implementation"):
        with suppress(ValueError):  # the model has no experts
            # Looping over experts needs to know which expert each token goes to, and the meta device has no data.
            # The grouped product reads each expert once; torch's meta device knows it for bfloat16 alone.
            model.set_experts_implementation("grouped_mm" if options.dtype == "bfloat16" else "batched_mm")
    return model.eval().requires_grad_(False)


def size_of(model: Any) -> dict[str, int]:
    """Parameters and their bytes; tied weights count once."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
    }


def end_tokens(model: Any) -> list[int]:
    """The tokens that end a text, as `generate()` would take them."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return []
    return [int(token) for token in (found if isinstance(found, list | tuple) else [found])]


def padding_token(model: Any) -> int:
    """What stands where a finished sequence goes on, as `generate()` would take it."""
    found = getattr(model.generation_config, "pad_token_id", None)
    ends = end_tokens(model)
    token = int(found) if found is not None else ends[0] if ends else 0
    # A small vocabulary with the default end token of a large one: the token is fed to the model, so it must exist.
    return token if 0 <= token < model.config.get_text_config(decoder=True).vocab_size else 0


def beyond_greedy(model: Any) -> list[str]:
    """Settings of the model's generation configuration that plain greedy decoding leaves out."""
    config = model.generation_config
    found = {name: getattr(config, name, None) for name in _BEYOND_GREEDY}
    return [f"{name}={value}" for name, value in found.items() if value not in _BEYOND_GREEDY[name]]


def decode_mode(model: Any) -> Any:
    """What `generate()` switches on for decoding: experts as batched products on a GPU, which suits few tokens."""
    switch = getattr(model, "_optimize_model_for_decode", None)
    return nullcontext() if switch is None else switch()


def refuse_length(config: Any, needed: int, prompt: int, new: int) -> None:
    """A text longer than the model's positions would fail deep inside, or run on numbers without meaning."""
    most = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if isinstance(most, int) and needed > most:
        raise UserError(
            f"A prompt of {prompt} tokens and {new} new ones are {needed}, but the model has {most} positions.",
            "Lower infer.prompt_tokens or infer.max_new_tokens, or set model.config.max_position_embeddings.",
            ExitCode.BAD_INPUT,
        )
