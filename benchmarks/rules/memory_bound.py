"""Decode of 16 sequences: every step reads all weights, in bf16 or in fp8."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "memory.bound"


def _weights(at: Place) -> list[torch.Tensor]:
    small, large = at.size(8192, 32), at.size(28672, 64)
    return [at.weight(*shape) for _ in range(4) for shape in ((large, small), (small, large))]


def before(at: Place) -> Step:
    x, weights = at.randn(16, at.size(8192, 32)), _weights(at)

    def step() -> None:
        hidden = x
        for weight in weights:
            hidden = F.linear(hidden, weight)

    return step


def after(at: Place) -> Step:
    x, weights = at.randn(16, at.size(8192, 32)), _weights(at)
    one = torch.ones((), device=at.device)
    if not at.gpu:
        return before(at)
    short = [weight.to(torch.float8_e4m3fn) for weight in weights]

    def step() -> None:
        hidden = x
        for weight in short:
            hidden = torch._scaled_mm(
                hidden.to(torch.float8_e4m3fn), weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
            )

    return step
