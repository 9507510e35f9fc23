"""A compiled model with a graph break behind every layer."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "compile.breaks"


def _layer(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden + F.linear(F.gelu(hidden, approximate="tanh") * 2.0, weight)


def _broken(hidden: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    hidden = _layer(hidden, weights[0])
    torch._dynamo.graph_break()
    hidden = _layer(hidden, weights[1])
    torch._dynamo.graph_break()
    hidden = _layer(hidden, weights[2])
    torch._dynamo.graph_break()
    hidden = _layer(hidden, weights[3])
    torch._dynamo.graph_break()
    return _layer(hidden, weights[4])


def _whole(hidden: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        hidden = _layer(hidden, weight)
    return hidden


def _program(at: Place, forward) -> Step:
    n = at.size(1536, 16)
    x, weights = at.randn(n, n), [at.weight(n, n) for _ in range(5)]
    compiled = torch.compile(forward, backend="inductor" if at.gpu else "eager")

    def step() -> None:
        with torch.no_grad():
            for _ in range(8):
                compiled(x, weights)

    return step


def before(at: Place) -> Step:
    return _program(at, _broken)


def after(at: Place) -> Step:
    return _program(at, _whole)
