"""The LM head of GPT-2, forward and backward: 50257 words are odd, 50304 are a multiple of 128."""

import torch.nn.functional as F

from place import Place, Step

RULE = "gemm.align"


def _head(at: Place, words: int) -> Step:
    hidden = at.randn(at.size(8192, 16), 768).requires_grad_()
    weight = at.weight(words, 768).requires_grad_()
    gradient = at.randn(at.size(8192, 16), words, scale=1e-3)

    def step() -> None:
        hidden.grad = weight.grad = None
        F.linear(hidden, weight).backward(gradient)

    return step


def before(at: Place) -> Step:
    return _head(at, at.size(50257, 257))


def after(at: Place) -> Step:
    return _head(at, at.size(50304, 256))
