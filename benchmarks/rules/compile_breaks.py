"""A compiled model with a graph break in every layer."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "compile.breaks"


def _model(at: Place, breaks: bool) -> Step:
    n = at.size(1024, 16)
    x, weights = at.randn(256, n), [at.weight(n, n) for _ in range(8)]

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            hidden = hidden + F.linear(F.gelu(hidden, approximate="tanh") * 2.0, weight)
            if breaks:
                torch._dynamo.graph_break()
        return hidden

    compiled = torch.compile(forward, backend="inductor" if at.gpu else "eager")

    def step() -> None:
        with torch.no_grad():
            for _ in range(4):
                compiled(x)

    return step


def before(at: Place) -> Step:
    return _model(at, breaks=True)


def after(at: Place) -> Step:
    return _model(at, breaks=False)
