"""Programs that call the model themselves."""

import contextlib
import threading

import torch
from parts import part
from torch import nn
from transformers import BertConfig, BertModel, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(0, 128, (2, 8))


def loop(steps: int = 3) -> None:
    out = model(prompt, use_cache=True)
    for _ in range(steps):
        token = out.logits[:, -1:].argmax(-1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)


torch.set_grad_enabled(False)
part("loop")
loop()
part("two requests")
loop(1)
loop(1)
part("pieces of prompt")
cache = DynamicCache(config=config)
model(input_ids=prompt[:, :5], past_key_values=cache)
model(input_ids=prompt[:, 5:], past_key_values=cache)
model(input_ids=prompt[:, :1], past_key_values=cache)
part("guessed tokens")
model(input_ids=prompt[:, :4], past_key_values=cache)
part("pieces of the prompts of two requests")
first, second = DynamicCache(config=config), DynamicCache(config=config)
model(input_ids=prompt, past_key_values=first)
model(input_ids=prompt[:, :5], past_key_values=second)
model(input_ids=prompt[:, :1], past_key_values=first)
model(input_ids=prompt[:, 5:], past_key_values=second)
model(input_ids=prompt[:, :4], past_key_values=first)
part("next turn")
model(input_ids=torch.randint(0, 128, (2, 80)), past_key_values=cache)
part("one token of prompt")
model(input_ids=prompt[:, :1], past_key_values=DynamicCache(config=config))
part("static cache used twice")
static = StaticCache(config=config, max_cache_len=32)
for _ in range(2):
    static.reset()
    model(input_ids=prompt, past_key_values=static)
    model(input_ids=prompt[:, :1], past_key_values=static)
part("decoder without its head")
model.lm_head(model.model(prompt).last_hidden_state)
part("evaluation")
model(input_ids=prompt, labels=prompt)
part("evaluation of a model of one's own")


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        return model(idx).logits


WithLoss().eval()(prompt, prompt)
WithLoss().eval()(prompt)
part("an encoder")
small = BertConfig(vocab_size=128, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
BertModel(small).eval()(prompt)
part("threads")
both = threading.Barrier(2)


def loop_in_thread() -> None:
    both.wait()
    with torch.no_grad():
        loop()
    both.wait()


threads = [threading.Thread(target=loop_in_thread) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()


class Recomputes(nn.Module):
    """A model of one's own that keeps no cache and calls its input what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))

    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        if h.shape[1] == 7:
            raise ValueError("on purpose")
        return h


own = Recomputes()
part("a model of one's own")
own(prompt)
own(prompt, 0)
own(prompt[:, :1], 8)
part("failure")
with contextlib.suppress(ValueError):
    own(prompt[:, :7])
part("after the failure")
own(prompt)


class Packs(nn.Module):
    """A model of a server that puts the tokens of several requests into one row."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3))

    def forward(self, ids: torch.Tensor, pos: object = None, cache: object = None, cu_seqlens: object = None) -> object:
        return self.blocks[0](self.embedding(ids))


packs, row = Packs(), prompt[0]
part("a row of one request")
packs(row, cache={})
packs(row[:1], cache={"layer": row})
part("a row that may be of several requests")
packs(row, cache={"layer": row})
packs(row, torch.arange(8))
packs(row[None], cu_seqlens=torch.tensor([0, 3, 8]))
part("guessed tokens on a cache that is a list")
filled = [(torch.ones(1, 2, 4, 8), torch.ones(1, 2, 4, 8))]
packs(prompt[:, :1], cache=filled)
packs(prompt[:, :4], cache=filled)
part("no tokens")
nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())(torch.randn(1, 3, 8, 8))
nn.Linear(4, 4)(torch.randn(1, 4))
nn.CrossEntropyLoss()(torch.randn(2, 4), torch.tensor([1, 2]))
part("compiled")
compiled = torch.compile(own, backend="eager")
compiled(prompt)
own.compile(backend="eager")
own(prompt[:, :1], 8)
