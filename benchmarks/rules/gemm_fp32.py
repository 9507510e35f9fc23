"""Products in fp32 on the CUDA cores, and the same with TF32."""

import torch
import torch.nn.functional as F

from place import Place, Step

RULE = "gemm.fp32"


def _layers(at: Place, precision: str) -> Step:
    n = at.size(4096, 32)
    x = at.randn(n, n, dtype=torch.float32)
    weights = [at.weight(n, n, dtype=torch.float32) for _ in range(4)]

    def step() -> None:
        torch.set_float32_matmul_precision(precision)
        for weight in weights:
            F.linear(x, weight)

    return step


def before(at: Place) -> Step:
    return _layers(at, "highest")


def after(at: Place) -> Step:
    return _layers(at, "high")
