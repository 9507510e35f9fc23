"""Experts one after the other in a Python loop, and all of them as grouped products."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "moe.loop"


def _inputs(at: Place):
    experts, n = at.size(64, 4), at.size(2048, 16)
    x = at.randn(at.size(8192, 16), n)
    weights = [at.weight(n, n) for _ in range(experts)]
    chosen = torch.randint(experts, (len(x),), device=at.device)
    return x, torch.stack(weights), chosen


def before(at: Place) -> Step:
    x, weights, chosen = _inputs(at)

    def step() -> None:
        for _ in range(2):
            out = torch.zeros_like(x)
            for expert in range(len(weights)):
                rows = torch.where(chosen == expert)[0]
                out.index_add_(0, rows, F.linear(x[rows], weights[expert]))

    return step


def after(at: Place) -> Step:
    x, weights, chosen = _inputs(at)
    if not at.gpu:
        return before(at)

    def step() -> None:
        for _ in range(2):
            ordered, order = chosen.sort()
            ends = torch.searchsorted(ordered, torch.arange(len(weights), device=at.device), right=True)
            mixed = torch._grouped_mm(x[order], weights.transpose(-1, -2), offs=ends.to(torch.int32))
            torch.empty_like(x).index_copy_(0, order, mixed)

    return step
