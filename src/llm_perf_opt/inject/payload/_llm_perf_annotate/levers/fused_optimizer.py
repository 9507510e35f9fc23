"""The optimiser updates all parameters in a few kernels, if its class supports that."""

from __future__ import annotations

import functools
from typing import Any

TITLE = "fused optimiser"
RULES = ("optimizer.fused",)
NEEDS = ("optimizers that can be fused",)
GENERAL = True
CHANGES = "rounding: the update is computed in a different order"
PATCH = "optimizer = torch.optim.AdamW(model.parameters(), …, fused=True)"


def apply(program: Any) -> None:
    optimizer = program.torch.optim.Optimizer
    start = optimizer.__init__

    @functools.wraps(start)
    def fused(self: Any, params: Any, defaults: Any) -> None:
        if "fused" in defaults and not (defaults["fused"] or defaults.get("differentiable")):
            defaults = {**defaults, "fused": True, **({"foreach": False} if "foreach" in defaults else {})}
            program.count("optimizers fused")
        start(self, params, defaults)

    optimizer.__init__ = fused


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("optimizers fused", 0)
    return bool(count), f"{count} fused" if count else "no optimiser was made that can be fused and is not"
