"""Modules below modules below modules, for the names of ranges."""

import sys

import torch
from parts import part
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.mix(x))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.named = nn.ModuleDict({"last": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.named["last"](x)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision = Tower()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.vision(x))


torch.set_grad_enabled(False)
model, x = Both().eval(), torch.randn(1, 4)
part("whole")
model(x)
if sys.argv[1:] == ["whole"]:
    sys.exit()
part("a part called alone")
model.vision(x)
part("a block called alone")
model.vision.blocks[1](x)
part("a second model")
Tower()(x)
part("wrapped")
torch.compile(Both().eval(), backend="eager")(x)
nn.DataParallel(Both().eval())(x)
part("grown")
model.vision.blocks.append(Block())
model(x)
model(x)
