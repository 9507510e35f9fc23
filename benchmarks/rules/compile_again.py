"""A compiled function that is compiled again for every new number it is given."""

import itertools

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "compile.again"


def _program(at: Place, dynamic: bool) -> Step:
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 100_000
    n = at.size(4096, 16)
    x, weight, positions = at.randn(2048, n), at.weight(n, n), itertools.count(2)

    def forward(hidden: torch.Tensor, position: int) -> torch.Tensor:
        for _ in range(4):
            hidden = F.linear(hidden * (position / 4096), weight)
        return hidden

    compiled = torch.compile(forward, backend="eager", dynamic=dynamic)

    def step() -> None:
        with torch.no_grad():
            compiled(x, next(positions))

    return step


def before(at: Place) -> Step:
    return _program(at, dynamic=False)


def after(at: Place) -> Step:
    return _program(at, dynamic=True)
