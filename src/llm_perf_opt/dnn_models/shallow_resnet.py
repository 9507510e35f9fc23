"""A small residual network for pictures: the shortest example of a model that marks its own parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from llm_perf_opt.dnn_models.base import ProfileableModel


class _Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ShallowResNet(ProfileableModel):
    """Stem, four stages of one block each, head."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stage1 = _Block(width, width, 1)
        self.stage2 = _Block(width, 2 * width, 2)
        self.stage3 = _Block(2 * width, 4 * width, 2)
        self.stage4 = _Block(4 * width, 8 * width, 2)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))

    def forward(self, pixels: Any) -> Any:
        x = self.stem(pixels)
        for stage in (self.stage1, self.stage2, self.stage3, self.stage4):
            x = stage(x)
        return self.head(x)
