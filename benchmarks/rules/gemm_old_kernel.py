"""Products in int8, for which there are kernels of Ampere only, and in fp8, for which there are those of Hopper."""

import torch

from place import Place, Step

RULE = "gemm.old_kernel"


def before(at: Place) -> Step:
    n = at.size(8192, 32)
    x, weight = (torch.randint(-100, 100, (n, n), device=at.device, dtype=torch.int8) for _ in range(2))

    def step() -> None:
        for _ in range(4):
            torch._int_mm(x, weight.t())

    return step


def after(at: Place) -> Step:
    if not at.gpu:
        return before(at)
    x, weight = (at.randn(8192, 8192).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=at.device)

    def step() -> None:
        for _ in range(4):
            torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return step
