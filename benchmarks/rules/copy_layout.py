"""Heads that are made contiguous before attention, which takes them as they lie."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "copy.layout"


def _block(at: Place, contiguous: bool) -> Step:
    batch, length, heads, size = at.size(32, 2), at.size(256, 8), 16, at.size(128, 8)
    x = at.randn(batch, length, heads * size)
    inwards, outwards = at.weight(3 * heads * size, heads * size), at.weight(heads * size, heads * size)

    def split(part: torch.Tensor) -> torch.Tensor:
        part = part.view(batch, length, heads, size).transpose(1, 2)
        return part.contiguous() if contiguous else part

    def step() -> None:
        hidden = x
        for _ in range(6):
            query, key, value = map(split, F.linear(hidden, inwards).chunk(3, -1))
            mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
            hidden = F.linear(mixed.reshape(batch, length, heads * size), outwards)

    return step


def before(at: Place) -> Step:
    return _block(at, contiguous=True)


def after(at: Place) -> Step:
    return _block(at, contiguous=False)
