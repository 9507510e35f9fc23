"""Requests of several lengths through transformers' continuous batching; prints what the engine itself recorded of each step.

Few tokens go through the model at once, so that prompts are read in pieces beside requests that decode.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

sys.path.append(str(Path(__file__).parent))
from recorded_batching import record

records = record()
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
print(json.dumps({"steps": records.steps, "made": sum(len(request.generated_tokens) for request in ended.values())}))
