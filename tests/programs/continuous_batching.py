"""Requests of several lengths through transformers' continuous batching; prints what the engine itself recorded of each step.

Few tokens go through the model at once, so that prompts are read in pieces beside requests that decode.
"""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import continuous_api

steps: list[list[list[int]]] = []


class Recorded(continuous_api.ContinuousBatchProcessor):
    """Notes of each request of a step: tokens read, whether one comes out, and how many had come out before."""

    def update_batch(self) -> None:
        requests = self.inputs_and_outputs.requests_in_batch
        steps.append([[r.query_length, int(r.has_new_token), r.state.generated_len()] for r in requests])
        super().update_batch()


continuous_api.ContinuousBatchProcessor = Recorded
torch.manual_seed(0)
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2, vocab_size=64)).eval()
model.set_attn_implementation("sdpa")
prompts = [[1 + i % 60 for i in range(length)] for length in (1, 5, 40, 3, 70)]
sizes = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=32)
ended = model.generate_batch(
    prompts,
    generation_config=GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0),
    continuous_batching_config=sizes,
    progress_bar=False,
)
print(json.dumps({"steps": steps, "made": sum(len(request.generated_tokens) for request in ended.values())}))
