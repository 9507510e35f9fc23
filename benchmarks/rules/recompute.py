"""Activation checkpointing where all activations would fit."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from place import Place, Step

RULE = "recompute"


def _training(at: Place, again: bool) -> Step:
    n = at.size(2048, 16)
    x = at.randn(at.size(8192, 16), n).requires_grad_()
    weights = [(at.weight(4 * n, n).requires_grad_(), at.weight(n, 4 * n).requires_grad_()) for _ in range(4)]

    def block(hidden: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(F.linear(hidden, up)), down)

    def step() -> None:
        hidden = x
        for up, down in weights:
            hidden = checkpoint(block, hidden, up, down, use_reentrant=False) if again else block(hidden, up, down)
        hidden.backward(x.detach())
        for weight in (x, *(w for pair in weights for w in pair)):
            weight.grad = None

    return step


def before(at: Place) -> Step:
    return _training(at, again=True)


def after(at: Place) -> Step:
    return _training(at, again=False)
