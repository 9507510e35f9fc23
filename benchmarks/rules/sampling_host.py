"""Sampling on the CPU, and on the GPU."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "sampling.host"
ALSO = ("memory.bound",)  # 32 rows


def _decode(at: Place, host: bool) -> Step:
    n = at.size(8192, 16)
    x, head = at.randn(32, n), at.weight(at.size(128256, 512), n)
    weights = [at.weight(n, n) for _ in range(16)]

    def step() -> None:
        hidden = x
        for weight in weights:
            hidden = F.linear(hidden, weight)
        logits = F.linear(hidden, head)
        logits = logits.cpu() if host else logits
        best, words = logits.float().topk(50, -1)
        word = words.gather(-1, torch.multinomial(best.softmax(-1), 1))
        if host:
            word.to(at.device)

    return step


def before(at: Place) -> Step:
    return _decode(at, host=True)


def after(at: Place) -> Step:
    return _decode(at, host=False)
