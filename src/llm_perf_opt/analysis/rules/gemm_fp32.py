"""Products in fp32 on the CUDA cores."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.above_roof import at_memory_roof
from llm_perf_opt.analysis.rules.gains import PRODUCTS, above_peak, found_in_kernels, named, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_FIRST_TENSOR_CORES, _FIRST_TF32 = 7, 8  # compute capability
_NEWER = ' or bf16, or torch.set_float32_matmul_precision("high") for TF32'
_NEWER_ELSEWHERE = " or bf16, or allow TF32 (CUBLAS_COMPUTE_32F_FAST_TF32, NVIDIA_TF32_OVERRIDE=1)"
_GUESS = (0.75, 0.5, 0.88)  # of their time


def _find(of: Evaluated) -> Iterator[Found]:
    capability = of.facts.numbers.get("compute_capability")
    if capability is None or capability >= _FIRST_TENSOR_CORES:
        at_roof = at_memory_roof(of)
        rows = unclaimed(of, lambda kind: is_single_precision(kind) and kind.kernel not in at_roof)
        old = capability is not None and capability < _FIRST_TF32
        peak = above_peak(of, rows, _GUESS, "tf32")
        types, others = ("", "") if old else (_NEWER, _NEWER_ELSEWHERE)
        yield from found_in_kernels(of, "gemm.fp32", rows, peak, newer_types=types, elsewhere_types=others)


def is_single_precision(kind: LaunchKind) -> bool:
    # cuDNN has kernels of that name that read 16 bits and multiply in fp32.
    return kind.family in PRODUCTS and named("fp32", kind.kernel) and not named("short", kind.kernel)


RULE = Rule(
    id="gemm.fp32",
    title="Matrix products in fp32 without TF32",
    costs="CUDA cores reach a fifteenth of the speed of tensor cores.",
    seen="Kernels of matrix products whose names say fp32 without tensor cores (sgemm), on a GPU that has them.",
    words=Words(
        because="{families}, {time} of {now}, in fp32 on the CUDA cores",
        action="use the tensor cores: torch.autocast with fp16{newer_types}",
        elsewhere="use the tensor cores: compute in fp16{elsewhere_types}",
    ),
    find=_find,
    gain="The time above what the FLOPs and bytes of the shapes need in TF32.",
    before="y = x @ w  # fp32",
    after='torch.set_float32_matmul_precision("high")\ny = x @ w',
    unless="The precision of fp32 is needed: TF32 keeps ten bits of the mantissa. TF32 and bf16 need Ampere or later.",
)
