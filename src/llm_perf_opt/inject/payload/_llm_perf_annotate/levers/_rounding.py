"""No lever: moves each weight by one unit in its last place, to see what rounding alone does to the outputs."""

from __future__ import annotations

from typing import Any

TITLE = "weights moved by their last digit"


def apply(program: Any) -> None:
    torch = program.torch

    def move(module: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point() and parameter.dtype.itemsize >= 2:
                    # Signs of the host: every GPU draws the same.
                    signs = torch.randint(0, 2, (min(parameter.numel(), 4096),), generator=generator) * 2 - 1
                    times = -(-parameter.numel() // max(len(signs), 1))
                    step = signs.repeat(times)[: parameter.numel()].reshape(parameter.shape).to(parameter.device)
                    parameter.data.mul_(1 + torch.finfo(parameter.dtype).eps * step.to(torch.float32))
                    program.count("weights moved")

    program.on_model(move)


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("weights moved", 0)
    return bool(count), f"{count} tensors"
