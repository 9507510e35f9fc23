"""Decode with a KV length that grows: cuDNN plans anew for each length."""

import itertools

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from place import Place, Step

RULE = "attention.replan"


def _decode(at: Place, backend: SDPBackend) -> Step:
    query = at.randn(8, 16, 1, 128)
    keys, values = (at.randn(8, 16, at.size(4096, 256), 128) for _ in range(2))
    weight = at.weight(at.size(8192, 64), at.size(8192, 64))
    x = at.randn(at.size(1024, 8), at.size(8192, 64))
    lengths = itertools.count(at.size(1024, 8))

    def step() -> None:
        length = next(lengths)
        with sdpa_kernel(backend if at.gpu else SDPBackend.MATH):
            for _ in range(4):
                F.linear(x, weight)
                F.scaled_dot_product_attention(query, keys[:, :, :length], values[:, :, :length])

    return step


def before(at: Place) -> Step:
    return _decode(at, SDPBackend.CUDNN_ATTENTION)


def after(at: Place) -> Step:
    return _decode(at, SDPBackend.FLASH_ATTENTION)
