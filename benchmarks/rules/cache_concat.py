"""A KV cache that is concatenated with every token, and one that was allocated before."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from place import Place, Step

RULE = "cache.concat"


def _inputs(at: Place):
    backend = SDPBackend.FLASH_ATTENTION if at.gpu else SDPBackend.MATH  # cuDNN would plan for every length
    return at.randn(16, 16, 1, 128), at.size(4096, 16), at.size(4, 1), backend


def before(at: Place) -> Step:
    query, length, layers, backend = _inputs(at)
    cache = [[at.randn(16, 16, length, 128) for _ in range(2)] for _ in range(layers)]

    def step() -> None:
        with sdpa_kernel(backend):
            for layer in cache:
                layer[:] = (torch.cat([kept, query], 2) for kept in layer)
                F.scaled_dot_product_attention(query, *layer)

    return step


def after(at: Place) -> Step:
    query, length, layers, backend = _inputs(at)
    cache = [[at.randn(16, 16, length + 1024, 128) for _ in range(2)] for _ in range(layers)]
    used = [length]

    def step() -> None:
        end = used[0] = used[0] + 1
        with sdpa_kernel(backend):
            for layer in cache:
                for kept in layer:
                    kept[:, :, end - 1 : end] = query
                F.scaled_dot_product_attention(query, *(kept[:, :, :end] for kept in layer))

    return step
