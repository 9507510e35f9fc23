"""AdamW as it is by default (foreach), and fused."""

import torch

from place import Place, Step

RULE = "optimizer.fused"


def _optimizer(at: Place, fused: bool) -> Step:
    n = at.size(2048, 16)
    parameters = [torch.nn.Parameter(at.weight(n, n, dtype=torch.float32)) for _ in range(48)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(parameters, foreach=not fused, fused=fused and at.gpu).step


def before(at: Place) -> Step:
    return _optimizer(at, fused=False)


def after(at: Place) -> Step:
    return _optimizer(at, fused=True)
