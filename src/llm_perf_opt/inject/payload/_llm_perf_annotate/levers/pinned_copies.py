"""Copies from page-locked memory, which the host does not wait for."""

from __future__ import annotations

import functools
from typing import Any

TITLE = "pinned, non-blocking copies"
RULES = ("copy.pinned", "copy.host")
NEEDS = ("cuda", "calls")
CHANGES = "nothing"
PATCH = "batch = batch.pin_memory().to(device, non_blocking=True)  # or DataLoader(…, pin_memory=True)"

_LEAST_BYTES = 1 << 16  # pinning costs more than the copy of less


def apply(program: Any) -> None:
    tensor = program.torch.Tensor
    for name in ("to", "cuda"):
        setattr(tensor, name, _pinned(getattr(tensor, name), program))


def _pinned(copy: Any, program: Any) -> Any:
    @functools.wraps(copy)
    def pinned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not program.models or self.device.type != "cpu" or self.nbytes < _LEAST_BYTES or self.requires_grad:
            return copy(self, *args, **kwargs)
        goes = copy.__name__ == "cuda" or any("cuda" in str(a) for a in (*args, kwargs.get("device")))
        if goes and len(args) <= 1 and "non_blocking" not in kwargs:
            program.count("pinned copies")
            return copy(self if self.is_pinned() else self.pin_memory(), *args, **{**kwargs, "non_blocking": True})
        return copy(self, *args, **kwargs)

    return pinned


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("pinned copies", 0)
    return bool(count), f"{count} copies" if count else "no copy of 64 KiB or more went to the GPU while the model ran"
