"""Batches that are copied from pageable or from pinned memory."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "copy.pinned"


def _steps(at: Place, pinned: bool) -> Step:
    n = at.size(4096, 16)
    batch = torch.randn(at.size(8192, 16), n).to(torch.bfloat16)
    batch = batch.pin_memory() if pinned and at.gpu else batch
    weights = [at.weight(n, n) for _ in range(2)]

    def step() -> None:
        hidden = batch.to(at.device, non_blocking=pinned)
        for weight in weights:
            hidden = F.linear(hidden, weight)

    return step


def before(at: Place) -> Step:
    return _steps(at, pinned=False)


def after(at: Place) -> Step:
    return _steps(at, pinned=True)
