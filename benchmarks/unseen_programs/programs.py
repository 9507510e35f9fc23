"""The programs of this examination by name; those who write rules have seen none of them."""

from __future__ import annotations

from collections.abc import Callable

import inference
import training
from parts import Bench, Program

PROGRAMS: dict[str, Callable[[Bench], Program]] = {
    "sft_dataloader": training.sft_dataloader,
    "lora_grad_logging": training.lora_grad_logging,
    "pretrain_tuned": training.pretrain_tuned,
    "fp32_training": training.fp32_training,
    "grad_accumulation": training.grad_accumulation,
    "checkpointed": training.checkpointed,
    "big_vocabulary_loss": training.big_vocabulary_loss,
    "odd_hidden": training.odd_hidden,
    "empty_cache": training.empty_cache,
    "rlhf": training.rlhf,
    "pageable_features": inference.pageable_features,
    "two_streams": inference.two_streams,
    "moe_loop": inference.moe_loop,
    "clip_small_batch": inference.clip_small_batch,
    "decode_graph": inference.decode_graph,
    "decode_eager": inference.decode_eager,
    "embedding_large_batch": inference.embedding_large_batch,
    "beam_search": inference.beam_search,
    "speculative": inference.speculative,
    "long_context_math": inference.long_context_math,
    "numpy_sampling": inference.numpy_sampling,
    "dit_sampling": inference.dit_sampling,
    "waiting_server": inference.waiting_server,
    "mamba_scan": inference.mamba_scan,
    "kv_offload": inference.kv_offload,
    "dequantised": inference.dequantised,
    # Last: it takes longest to set up.
    "compiled": inference.compiled,
}
