"""A compiled model with a graph break behind every layer, each piece with a CUDA graph of its own."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "compile.breaks"
_LAYERS, _CALLS = 8, 8


class _Layers(torch.nn.Module):
    def __init__(self, at: Place) -> None:
        super().__init__()
        n = at.size(1536, 16)
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(at.weight(n, n)) for _ in range(_LAYERS)])

    def layer(self, hidden: torch.Tensor, number: int) -> torch.Tensor:
        return hidden + F.linear(F.gelu(hidden, approximate="tanh") * 2.0, self.weights[number])


class _Whole(_Layers):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for number in range(_LAYERS):
            hidden = self.layer(hidden, number)
        return hidden


class _Broken(_Layers):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # no loop: one with a break is not compiled at all
        hidden = self.layer(hidden, 0)
        torch._dynamo.graph_break()
        hidden = self.layer(hidden, 1)
        torch._dynamo.graph_break()
        hidden = self.layer(hidden, 2)
        torch._dynamo.graph_break()
        hidden = self.layer(hidden, 3)
        torch._dynamo.graph_break()
        hidden = self.layer(hidden, 4)
        torch._dynamo.graph_break()
        hidden = self.layer(hidden, 5)
        torch._dynamo.graph_break()
        hidden = self.layer(hidden, 6)
        torch._dynamo.graph_break()
        return self.layer(hidden, 7)


def _program(at: Place, layers: _Layers) -> Step:
    n = at.size(1536, 16)
    x = at.randn(n, n)
    compiled = torch.compile(layers, mode="reduce-overhead") if at.gpu else torch.compile(layers, backend="eager")

    def step() -> None:
        with torch.no_grad():
            for _ in range(_CALLS):
                compiled(x)

    return step


def before(at: Place) -> Step:
    return _program(at, _Broken(at))


def after(at: Place) -> Step:
    return _program(at, _Whole(at))
