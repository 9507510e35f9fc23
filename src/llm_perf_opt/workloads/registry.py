"""From the name of a model to its session."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads.device import import_torch, import_transformers
from llm_perf_opt.workloads.model_session import Session
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions, nearest, refuse_no_folder

MODELS = ("tiny_llm", "hf_causal_lm", "deepseek_ocr", "dummy_shallow_resnet")
_FROM_FOLDERS = ("hf_causal_lm", "deepseek_ocr")


def check_model(model: ModelOptions) -> None:
    """Raise where there is no such model; without torch, which takes its time to import."""
    if model.name not in MODELS:
        raise UserError(
            f"There is no model called {model.name!r}.{nearest(model.name, MODELS)}",
            f"Known are {', '.join(MODELS)}; any model of Hugging Face is model=hf_causal_lm model.path=FOLDER.",
        )
    if model.path is not None and model.name in _FROM_FOLDERS:
        refuse_no_folder(model.path)


def open_session(model: ModelOptions, infer: InferOptions) -> Session[Any]:
    """The session of `model.name`, not loaded yet. What it needs is asked for before its module, which imports it."""
    check_model(model)
    if model.name == "dummy_shallow_resnet":
        import_torch()
        from llm_perf_opt.workloads.image_classifier import ShallowResNetSession

        return ShallowResNetSession(model, infer)
    import_transformers()
    if model.name == "deepseek_ocr":
        from llm_perf_opt.workloads.own_code import OwnCodeOcrSession, has_own_code
        from llm_perf_opt.workloads.vision_language import DeepseekOcrSession

        own_code = model.path is not None and has_own_code(model.path)
        return OwnCodeOcrSession(model, infer) if own_code else DeepseekOcrSession(model, infer)
    from llm_perf_opt.workloads.causal_lm import CausalLmSession, TinyLlmSession

    return TinyLlmSession(model, infer) if model.name == "tiny_llm" else CausalLmSession(model, infer)
