"""How many graphs torch.compile makes of models, and why it stops: printed, to be compared."""

import copy
from collections.abc import Callable

import torch
import torch._dynamo as dynamo
from torch import nn
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(0, 128, (1, 8))


class Small(nn.Module):
    """Compiled in a fraction of the time: for the ways of compiling that have nothing to do with what a model is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(128, 8), nn.Linear(8, 128)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


small = Small().eval()


def count(what: str, call: Callable[..., object], *args: object, **kwargs: object) -> None:
    counters.clear()
    for _ in range(2):
        call(*args, **kwargs)
    stopped = sum(counters["graph_break"].values())
    print(what, dict(counters["stats"]), dict(counters["frames"]), stopped, dict(counters["recompiles"]))
    dynamo.reset()


def whole(what: object) -> Callable[..., object]:
    return torch.compile(what, backend="eager", fullgraph=True)


def with_a_hook() -> nn.Module:
    hooked = copy.deepcopy(model)
    hooked.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output * 1.0)
    hooked.compile(backend="eager", fullgraph=True)
    return hooked


with torch.no_grad():
    count("never called before", torch.compile(model, backend="eager"), prompt, use_cache=False)
    model(prompt)
    count("model", whole(model), prompt, use_cache=False)
    count("in place, with a hook", with_a_hook(), prompt, use_cache=False)
    small(prompt)
    count("its call", whole(small.__call__), prompt)
    count("a function", whole(lambda tokens: small(tokens).sum()), prompt)
    layered = copy.deepcopy(small)
    layered.layers[0].compile(backend="eager")
    count("a layer in place", layered, prompt)
    count("and all around it", whole(layered), prompt)
    hooked = copy.deepcopy(small)
    hooked.layers[0][0].register_forward_hook(lambda module, inputs, output: output * 1.0)
    count("with a hook", whole(hooked), prompt)


class Stops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        dynamo.graph_break()
        return self.rest(x)


stops = Stops()
optimizer = torch.optim.SGD(stops.parameters(), lr=0.1)


def step(x: torch.Tensor) -> torch.Tensor:
    loss = stops(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


count("a stop in the middle", torch.compile(stops, backend="eager"), torch.randn(2, 4))
count("a training step", torch.compile(step, backend="eager"), torch.randn(2, 4))
count("the optimizer", torch.compile(lambda: optimizer.step(), backend="eager"))
