"""Programs as people write them, each slow in a way of its own; `benchmarks/try_levers.py` runs each as KIND.

    python benchmarks/programs/tried.py KIND

None of them knows of llm-perf: no range, no seed but for the weights, nothing prepared.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SIZE, LAYERS = (1024, 8) if ON_GPU else (64, 3)  # small: each program runs a dozen times in a trial
STEPS = 60 if ON_GPU else 12
TYPE = torch.bfloat16 if ON_GPU else torch.float32


def language_model(vocabulary: int = 32000, dtype: torch.dtype = TYPE, moe: bool = False):
    from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

    kind = MixtralConfig if moe else LlamaConfig
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if moe else {}
    config = kind(
        hidden_size=SIZE, intermediate_size=2 * SIZE, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=vocabulary, max_position_embeddings=2048, **more,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).to(DEVICE, dtype).eval()


def prompt(length: int = 32) -> torch.Tensor:
    return torch.arange(length, device=DEVICE).reshape(1, -1)


def generate(times: int, moe: bool = False) -> None:
    model = language_model(moe=moe)
    for _ in range(times):
        model.generate(prompt(), max_new_tokens=STEPS, do_sample=False, pad_token_id=0)


def generate_cold() -> None:
    generate(1)


def generate_warm() -> None:
    generate(5)


def moe() -> None:
    generate(2, moe=True)


def decode_loop(model: nn.Module | None = None) -> None:
    model = model or language_model()
    with torch.no_grad():
        found = model(prompt(), use_cache=True)
        for _ in range(STEPS):
            token = found.logits[:, -1:].argmax(-1)
            found = model(token, past_key_values=found.past_key_values, use_cache=True)


def compiled() -> None:
    model = language_model()
    model.compile()
    decode_loop(model)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(SIZE), nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))


class Net(nn.Module):
    def __init__(self, recompute: bool = False, out: int = 1000) -> None:
        super().__init__()
        self.layers, self.head, self.recompute = (
            nn.ModuleList(Block() for _ in range(LAYERS)),
            nn.Linear(SIZE, out),
            recompute,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x)


class Data(torch.utils.data.Dataset):
    def __init__(self, wait: float = 0.0) -> None:
        self.wait = wait

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.wait)
        return torch.sin(torch.arange(SIZE) * (number + 1.0)), number % 1000


def train(recompute: bool = False, wait: float = 0.0) -> None:
    model = Net(recompute).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in torch.utils.data.DataLoader(Data(wait), batch_size=8):
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_checkpointed() -> None:
    train(recompute=True)


def data_bound() -> None:
    train(wait=0.003)


def vision_language() -> None:
    """An encoder of pictures before each text; both are outermost models."""
    pictures, model = Net(out=SIZE).to(DEVICE).eval(), language_model()
    with torch.no_grad():
        for _ in range(3):
            seen = pictures(torch.ones(1, 64, SIZE, device=DEVICE)).to(TYPE)
            model.generate(inputs_embeds=seen, max_new_tokens=STEPS, do_sample=False, pad_token_id=0)


def fp32() -> None:
    model = Net().to(DEVICE).eval()
    x = torch.ones(2048 if ON_GPU else 16, SIZE, device=DEVICE)
    for _ in range(STEPS):  # and nobody thought of gradients
        model(x)


def unaligned() -> None:
    decode_loop(language_model(vocabulary=32003))


def synchronising() -> None:
    model = language_model()
    with torch.no_grad():
        tokens = prompt()
        for _ in range(STEPS):  # no cache, and the host waits for each token
            token = int(model(tokens, use_cache=False).logits[0, -1].argmax().item())
            tokens = torch.cat([tokens, torch.tensor([[token]], device=DEVICE)], 1)


KINDS = (
    *(generate_cold, generate_warm, decode_loop, compiled, train, train_checkpointed, moe, vision_language),
    *(fp32, unaligned, data_bound, synchronising),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]]()
