"""Activation checkpointing where all activations would fit."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from place import Place, Step

RULE = "recompute"
_BLOCKS, _WIDER = 6, 4


def _block(hidden: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    normal = F.layer_norm(hidden, hidden.shape[-1:])
    return hidden + F.linear(F.gelu(F.linear(normal, up)), down)


def _training(at: Place, again: bool) -> Step:
    n = at.size(1024, 16)
    x = at.randn(at.size(32768, 16), n).requires_grad_()
    weights = [
        (at.weight(_WIDER * n, n).requires_grad_(), at.weight(n, _WIDER * n).requires_grad_()) for _ in range(_BLOCKS)
    ]
    gradient = at.randn(at.size(32768, 16), n)

    def step() -> None:
        hidden = x
        for up, down in weights:
            hidden = checkpoint(_block, hidden, up, down, use_reentrant=False) if again else _block(hidden, up, down)
        hidden.backward(gradient)
        for tensor in (x, *(weight for pair in weights for weight in pair)):
            tensor.grad = None

    return step


def before(at: Place) -> Step:
    return _training(at, again=True)


def after(at: Place) -> Step:
    return _training(at, again=False)
