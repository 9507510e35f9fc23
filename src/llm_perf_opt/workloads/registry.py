"""From the name of a model to its session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_perf_opt.errors import UserError
from llm_perf_opt.workloads.device import import_torch, import_transformers
from llm_perf_opt.workloads.options import InferOptions, ModelOptions, nearest
from llm_perf_opt.workloads.session import Session

Maker = Callable[[ModelOptions, InferOptions], Session[Any]]


def _causal_lm(model: ModelOptions, infer: InferOptions) -> Session[Any]:
    import_transformers()
    from llm_perf_opt.workloads.causal_lm import CausalLmSession

    return CausalLmSession(model, infer)


def _tiny_llm(model: ModelOptions, infer: InferOptions) -> Session[Any]:
    import_transformers()
    from llm_perf_opt.workloads.causal_lm import TinyLlmSession

    return TinyLlmSession(model, infer)


def _deepseek_ocr(model: ModelOptions, infer: InferOptions) -> Session[Any]:
    import_transformers()
    from llm_perf_opt.workloads.own_code import OwnCodeOcrSession, has_own_code
    from llm_perf_opt.workloads.vision_language import DeepseekOcrSession

    if model.path is not None and has_own_code(model.path):
        return OwnCodeOcrSession(model, infer)
    return DeepseekOcrSession(model, infer)


def _shallow_resnet(model: ModelOptions, infer: InferOptions) -> Session[Any]:
    import_torch()
    from llm_perf_opt.workloads.image_classifier import ShallowResNetSession

    return ShallowResNetSession(model, infer)


SESSIONS: dict[str, Maker] = {
    "tiny_llm": _tiny_llm,
    "hf_causal_lm": _causal_lm,
    "deepseek_ocr": _deepseek_ocr,
    "dummy_shallow_resnet": _shallow_resnet,
}


def open_session(model: ModelOptions, infer: InferOptions) -> Session[Any]:
    """The session of `model.name`, not loaded yet."""
    if model.name not in SESSIONS:
        raise UserError(
            f"There is no model called {model.name!r}.{nearest(model.name, SESSIONS)}",
            f"Known are {', '.join(SESSIONS)}; any model of Hugging Face is model=hf_causal_lm model.path=FOLDER.",
        )
    return SESSIONS[model.name](model, infer)
