"""Where a program of the rules' benchmark runs, and how large it is: a GPU, or tiny on the CPU to test the mechanism."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from attrs import define

Step = Callable[[], Any]


@define(frozen=True)
class Place:
    """Programs take their tensors and sizes from here."""

    device: str

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    def size(self, large: int, tiny: int) -> int:
        return large if self.gpu else tiny

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device=self.device, dtype=torch.float32) * scale).to(dtype)

    def weight(self, rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Weights of a linear layer that neither grow nor shrink what goes through them."""
        return self.randn(rows, columns, dtype=dtype, scale=columns**-0.5)

    def graph(self, step: Step) -> Step:
        """The step as a CUDA graph."""
        if not self.gpu:
            return step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def work_on_the_host(seconds: float) -> int:
    """Python that computes for so long."""
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        count += 1
    return count
