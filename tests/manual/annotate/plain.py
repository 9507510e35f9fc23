"""A plain generate() script, written knowing nothing of annotation. MODEL_* choose its size."""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
hidden, layers = int(os.environ.get("MODEL_HIDDEN", 1024)), int(os.environ.get("MODEL_LAYERS", 8))
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=hidden,
    intermediate_size=hidden * 4,
    num_hidden_layers=layers,
    num_attention_heads=hidden // 64,
    num_key_value_heads=hidden // 128,
    eos_token_id=None,
    pad_token_id=0,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompt = torch.randint(0, 32000, (1, 512), device="cuda")
options = {"do_sample": False, "max_new_tokens": 16}
if os.environ.get("STATIC"):  # transformers compiles the decode step and captures CUDA graphs by itself
    options["cache_implementation"] = "static"
model.generate(prompt, **options)  # warm-up
tokens = model.generate(prompt, **options)
torch.cuda.synchronize()
print(tokens[0, -16:].tolist())
