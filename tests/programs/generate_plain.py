"""What a user writes: a model, a prompt, generate()."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(0, 128, (1, 8))
tokens = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
print(tokens.tolist())
