"""Products by kernels that were written for an older GPU."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import PRODUCTS, above_peak, found_in_kernels, generation_of, unclaimed
from llm_perf_opt.analysis.rules.gemm_fp32 import is_single_precision
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_GUESS = (0.3, 0.1, 0.5)  # of their time


def _find(of: Evaluated) -> Iterator[Found]:
    capability = of.facts.numbers.get("compute_capability")
    if capability is None:
        return

    def fits(kind: LaunchKind) -> bool:
        older = generation_of(kind.kernel) if kind.family in PRODUCTS and not is_single_precision(kind) else None
        return older is not None and older < capability

    rows = unclaimed(of, fits)
    yield from found_in_kernels(of, "gemm.old_kernel", rows, above_peak(of, rows, _GUESS))


RULE = Rule(
    id="gemm.old_kernel",
    title="Kernels of an older architecture",
    costs="They do not use the new features of the GPU: on Hopper, its asynchronous matrix products and copies.",
    seen="Kernels of matrix products whose names point to an older generation (ampere_, sm80_, cutlass_80) than that of the GPU.",
    words=Words(
        because="{families}, {time} of {now}, by kernels that were written for older GPUs",
        action="use newer versions of CUDA and its libraries, or shapes, layouts and data types that have kernels for this GPU",
    ),
    find=_find,
    gain="The time above what the FLOPs and bytes of the shapes need in a good kernel; without shapes, 30 % of the time.",
    before="y = x @ w  # TF32; w is K x N: no kernel of Hopper takes that",
    after="y = F.linear(x, w_t)  # w_t is N x K",
    unless="The installed libraries have no newer kernel for these shapes and types.",
)
