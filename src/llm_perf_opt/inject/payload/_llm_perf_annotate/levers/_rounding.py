"""No lever: moves weights by one unit in their last place, to see what rounding alone does to the outputs.

A product of fp32 rounds often on its way, so that all its weights are moved. One of bf16 is summed in fp32 and rounded
once, by a quarter of what moving all weights would do: an eighth of them moved is about that.
"""

from __future__ import annotations

from typing import Any

TITLE = "weights moved by their last digit"

_ROW = 4096
_ONE_OF = 8


def apply(program: Any) -> None:
    torch = program.torch

    def move(module: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point() and parameter.dtype.itemsize >= 2 and parameter.is_contiguous():
                    # Signs of the host: every GPU draws the same. A row of them is enough, and takes no memory.
                    signs = torch.randint(0, 2, (_ROW,), generator=generator) * 2 - 1
                    if parameter.dtype.itemsize == 2:
                        signs *= torch.randint(0, _ONE_OF, (_ROW,), generator=generator) == 0
                    row = (1 + torch.finfo(parameter.dtype).eps * signs.float()).to(parameter.device)
                    flat = parameter.data.view(-1)
                    whole = flat.numel() // _ROW * _ROW
                    flat[:whole].view(-1, _ROW).mul_(row)
                    flat[whole:].mul_(row[: flat.numel() - whole])
                    program.count("weights moved")

    program.on_model(move)


def evidence(program: Any) -> tuple[bool, str]:
    count = program.counts.get("weights moved", 0)
    return bool(count), f"{count} tensors"
