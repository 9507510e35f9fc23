"""The same program with its stages marked by hand: a hook of its own at every call of the model."""

import os

import torch
from torch.cuda import nvtx
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
calls = 0


def before(*_):
    global calls
    calls += 1
    if calls == 1:
        nvtx.range_push("prefill")
        return
    nvtx.range_pop()
    if calls == 2:
        nvtx.range_push("decode")
    nvtx.range_push("decode_step")


model.register_forward_pre_hook(before)
for _ in range(2):
    calls = 0
    nvtx.range_push("generate")
    tokens = model.generate(prompt, **options)
    nvtx.range_pop()  # decode_step
    nvtx.range_pop()  # decode
    nvtx.range_pop()
torch.cuda.synchronize()
print(tokens[0, -16:].tolist())
