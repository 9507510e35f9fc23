"""Activations in fp32 that are cast to bf16 before each product and back behind it."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "cast.pingpong"


def _layers(at: Place, dtype: torch.dtype) -> Step:
    n = at.size(2048, 16)
    x = at.randn(8 * n, n, dtype=dtype)
    weights = [at.weight(n, n) for _ in range(8)]

    def step() -> None:
        hidden = x
        for weight in weights:
            hidden = F.linear(hidden.to(torch.bfloat16), weight).to(dtype)

    return step


def before(at: Place) -> Step:
    return _layers(at, torch.float32)


def after(at: Place) -> Step:
    return _layers(at, torch.bfloat16)
