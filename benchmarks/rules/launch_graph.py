"""Many small layers, launched one by one or as a CUDA graph."""

import torch.nn.functional as F

from place import Place, Step

RULE = "launch.graph"


def before(at: Place) -> Step:
    n = at.size(1024, 16)
    x, weights = at.randn(4, n), [at.weight(n, n) for _ in range(96)]

    def step() -> None:
        hidden = x
        for weight in weights:
            hidden = F.linear(F.gelu(hidden), weight)

    return step


def after(at: Place) -> Step:
    return at.graph(before(at))
