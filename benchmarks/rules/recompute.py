"""Activation checkpointing where all activations would fit."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from place import Place, Step

RULE = "recompute"


def _block(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(hidden), weight)


def _training(at: Place, again: bool) -> Step:
    n = at.size(1024, 16)
    x = at.randn(at.size(32768, 16), n).requires_grad_()
    weights = [at.weight(n, n).requires_grad_() for _ in range(12)]
    gradient = at.randn(at.size(32768, 16), n)

    def step() -> None:
        hidden = x
        for weight in weights:
            hidden = checkpoint(_block, hidden, weight, use_reentrant=False) if again else _block(hidden, weight)
        hidden.backward(gradient)
        for tensor in (x, *weights):
            tensor.grad = None

    return step


def before(at: Place) -> Step:
    return _training(at, again=True)


def after(at: Place) -> Step:
    return _training(at, again=False)
