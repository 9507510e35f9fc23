"""Attention written out: scores, softmax and products as kernels of their own."""

import torch.nn.functional as F

from place import Place, Step

RULE = "attention.unfused"


def before(at: Place) -> Step:
    query, key, value = _heads(at)

    def step() -> None:
        for _ in range(8):
            scores = query @ key.transpose(-1, -2) * 128**-0.5
            scores.softmax(-1) @ value

    return step


def after(at: Place) -> Step:
    query, key, value = _heads(at)

    def step() -> None:
        for _ in range(8):
            F.scaled_dot_product_attention(query, key, value)

    return step


def _heads(at: Place):
    return [at.randn(4, 16, at.size(2048, 16), at.size(128, 8)) for _ in range(3)]
