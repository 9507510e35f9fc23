"""GELU written out as eight kernels, and the same compiled into one."""

import torch

from place import Place, Step

RULE = "fuse.elementwise"


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def before(at: Place) -> Step:
    x = at.randn(at.size(8192, 16), at.size(8192, 16))

    def step() -> None:
        for _ in range(8):
            _gelu(x)

    return step


def after(at: Place) -> Step:
    x = at.randn(at.size(8192, 16), at.size(8192, 16))
    gelu = torch.compile(_gelu) if at.gpu else torch.nn.functional.gelu

    def step() -> None:
        for _ in range(8):
            gelu(x)

    return step
