"""A program that range and application replay allow: three linear layers and a layer norm, warmed up, alike in every run."""

from __future__ import annotations

import torch

SIZE, ROWS, TIMES = 1024, 512, 3


def main() -> None:
    torch.manual_seed(0)
    linear = [torch.nn.Linear(SIZE, SIZE) for _ in range(3)]
    layers = torch.nn.Sequential(*linear, torch.nn.LayerNorm(SIZE)).to("cuda", torch.bfloat16)
    x = torch.randn(ROWS, SIZE, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        for _ in range(TIMES):  # what CUDA does only once is no part of a range
            layers(x)
        torch.cuda.synchronize()
        for _ in range(TIMES):
            with torch.cuda.nvtx.range("block"):
                layers(x)
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
