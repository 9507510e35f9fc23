"""Grouped-query attention whose keys and values are copied for every query head."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "attention.repeat_kv"


def _inputs(at: Place):
    query = at.randn(8, 32, at.size(256, 4), 128)
    return query, *(at.randn(8, 8, at.size(8192, 16), 128) for _ in range(2))


def _repeat_kv(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, size = x.shape
    x = x[:, :, None].expand(batch, heads, times, length, size)
    return x.reshape(batch, heads * times, length, size)


def before(at: Place) -> Step:
    query, key, value = _inputs(at)

    def step() -> None:
        for _ in range(4):
            F.scaled_dot_product_attention(query, _repeat_kv(key, 4), _repeat_kv(value, 4))

    return step


def after(at: Place) -> Step:
    query, key, value = _inputs(at)

    def step() -> None:
        for _ in range(4):
            F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    return step
