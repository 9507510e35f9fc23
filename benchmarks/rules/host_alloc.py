"""Memory that is given back every step and taken again."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "host.alloc"


def _layers(at: Place, empty: bool) -> Step:
    n = at.size(4096, 16)
    x, weights = at.randn(4 * n, n), [at.weight(n, n) for _ in range(8)]

    def step() -> None:
        kept = [x]
        for weight in weights:
            kept.append(F.linear(kept[-1], weight))
        kept.clear()
        if empty and at.gpu:
            torch.cuda.empty_cache()

    return step


def before(at: Place) -> Step:
    return _layers(at, empty=True)


def after(at: Place) -> Step:
    return _layers(at, empty=False)
