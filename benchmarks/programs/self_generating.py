"""`generate()` of transformers as people call it, timing itself; what it took is printed, as JSON, at its end.

    python benchmarks/programs/self_generating.py cold|compiled [--tiny]

`cold`: the first call uses everything for the first time. `compiled`: a static cache, for which `generate()` compiles, so
that the first call compiles. Steps are timed from inside, where a stopping criterion is asked after each of them: by CUDA events on a
GPU, by the host clock without one. Nothing is downloaded: weights are random. `--tiny`: sizes for a CPU.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["cold", "compiled"])
parser.add_argument("--tiny", action="store_true")
args = parser.parse_args()
CUDA = torch.cuda.is_available() and not args.tiny
DEVICE = "cuda" if CUDA else "cpu"
BATCH, PROMPT, STEPS, CALLS = (
    (1, 32, 16, 4) if args.tiny else ((4, 512, 48, 4) if args.kind == "cold" else (1, 256, 64, 4))
)
torch.manual_seed(0)
if not CUDA:
    torch.set_num_threads(1)


class Clock(StoppingCriteria):
    """When each token was there. Stops nothing."""

    def __init__(self):
        self.moments = []

    def __call__(self, ids, scores, **kwargs):
        self.moments.append(now())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def now():
    if not CUDA:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def milliseconds(first, last):
    return first.elapsed_time(last) if CUDA else 1e3 * (last - first)


def model():
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32}
    if args.kind == "compiled":
        sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    if args.tiny:
        sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        **sizes, num_key_value_heads=4, vocab_size=32000 if CUDA else 500, max_position_embeddings=2048
    )
    with torch.device(DEVICE):
        found = LlamaForCausalLM(config).eval()
    return found.to(torch.bfloat16) if CUDA else found


llama = model()
options = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "pad_token_id": 0}
if args.kind == "compiled":
    options["cache_implementation"] = "static"
    if not CUDA:  # on a GPU generate() compiles by itself where the cache is static
        llama.forward = torch.compile(llama.forward, backend="eager")
ids = torch.randint(0, llama.config.vocab_size, (BATCH, PROMPT), device=DEVICE)
whole, steps = [], []
for _ in range(CALLS):
    clock = Clock()
    began = now()
    llama.generate(ids, stopping_criteria=StoppingCriteriaList([clock]), **options)
    ended = now()
    if CUDA:
        torch.cuda.synchronize()
    whole.append(milliseconds(began, ended))
    steps.append([milliseconds(*pair) for pair in zip(clock.moments, clock.moments[1:], strict=False)])
last = [step for call in steps[1:] for step in call]
result = {
    "keys": {"generate": "LLM@generate", "decode_step": "LLM@generate/decode/decode_step"},
    "steady_ms": {"generate": statistics.median(whole[1:]), "decode_step": statistics.median(last)},
    "first_ms": {"generate": whole[0]},
    "tokens_per_second": {"LLM@generate/decode": 1e3 / statistics.mean(last)},  # of each sequence
    "warmup": {"LLM@generate": ["compilation", "graph capture"] if args.kind == "compiled" else ["first use"]},
}
where = torch.cuda.get_device_name() if CUDA else "CPU"
print("RESULT " + json.dumps({**result, "where": where, "torch": torch.__version__, "started_at": 0}))
