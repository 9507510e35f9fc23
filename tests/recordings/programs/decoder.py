"""A Qwen3-style decoder with random weights: prefill, then decode.

Every stage, step, layer and block is a range of domain LLM.
Needs torch, transformers and nvtx, and a CUDA GPU.
"""

import argparse
import contextlib
import time

import nvtx
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--mlp", type=int, default=6144)
parser.add_argument("--prompt", type=int, default=2048)
parser.add_argument("--steps", type=int, default=8)
# With as many steps as are recorded, nothing is planned or compiled for a new length while recording.
parser.add_argument("--warmup", type=int, default=2, help="decode steps before recording")
parser.add_argument("--ranges", choices=["stages", "layers"], default="layers")
parser.add_argument("--trace", default="", help="write a PyTorch profiler trace instead of NVTX ranges")
args = parser.parse_args()

torch.manual_seed(0)
config = Qwen3Config(
    hidden_size=2048,
    intermediate_size=args.mlp,
    num_hidden_layers=args.layers,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    tie_word_embeddings=False,
)
with torch.device("cuda"):
    model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()

marking = False  # off while warming up


def region(name):
    if not marking:
        return contextlib.nullcontext()
    if args.trace:
        return torch.profiler.record_function(name)
    return nvtx.annotate(name, domain="LLM")


def wrap(module, name):
    forward = module.forward

    def marked(*positional, **keyword):
        with region(name):
            return forward(*positional, **keyword)

    module.forward = marked


if args.ranges == "layers":
    for i, layer in enumerate(model.model.layers):
        wrap(layer, f"layer{i}")
        wrap(layer.self_attn, "attention")
        wrap(layer.mlp, "mlp")
    wrap(model.lm_head, "lm_head")

ids = torch.randint(0, 1000, (1, args.prompt), device="cuda")


def generate(steps):
    """Prefill and decode; how long each took, by the clock of the host."""
    began = time.perf_counter()
    with torch.inference_mode():
        with region("prefill"):
            out = model(ids, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
        first = time.perf_counter()
        with region("decode"):
            for _ in range(steps):
                with region("decode_step"):
                    out = model(token, past_key_values=out.past_key_values, use_cache=True)
                    token = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
    return first - began, time.perf_counter() - first


generate(args.warmup)
marking = True
if args.trace:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        times = generate(args.steps)
    profiler.export_chrome_trace(args.trace)
else:
    times = generate(args.steps)
print(f"prefill {times[0] * 1e3:.3f} ms, decode {times[1] * 1e3:.3f} ms")
print("parameters", sum(p.numel() for p in model.parameters()))
