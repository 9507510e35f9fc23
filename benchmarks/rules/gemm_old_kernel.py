"""TF32 products on Hopper: its own kernels want both operands with the summed dimension innermost."""

import torch

from place import Place, Step

RULE = "gemm.old_kernel"


def _products(at: Place, transposed: bool) -> Step:
    n = at.size(4096, 32)
    x = at.randn(2 * n, n, dtype=torch.float32)
    weights = [at.weight(n, n, dtype=torch.float32) for _ in range(4)]
    weights = [w.t() if transposed else w for w in weights]

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        for weight in weights:
            x @ weight

    return step


def before(at: Place) -> Step:
    return _products(at, transposed=False)


def after(at: Place) -> Step:
    return _products(at, transposed=True)
