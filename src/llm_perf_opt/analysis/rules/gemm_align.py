"""Products whose rows do not begin at multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import PRODUCTS, above_peak, found_in_kernels, named, product_of, unclaimed
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found
from llm_perf_opt.analysis.verdicts.launched import LaunchKind

_GUESS = (0.7, 0.4, 0.9)  # of their time: from twice to eight times as fast was seen


def _find(of: Evaluated) -> Iterator[Found]:
    rows = unclaimed(of, _is_unaligned)
    sizes = sorted({_odd(kind) for kind in of.launched.kinds if _is_unaligned(kind)} - {0}, reverse=True)
    what = f" (a size of {', '.join(map(str, sizes[:2]))})" if sizes else ""
    yield from found_in_kernels(of, "gemm.align", rows, above_peak(of, rows, _GUESS), least=0.02, what=what)


def _is_unaligned(kind: LaunchKind) -> bool:
    # CUDA cores read value by value anyway: of their kernels that word says nothing about the sizes.
    found = kind.family in PRODUCTS and named("unaligned", kind.kernel)
    return found and not named("cuda_cores", kind.kernel)


def _odd(kind: LaunchKind) -> int:
    """The largest size that is no multiple of 8; 0 where it is not known."""
    product = product_of(kind)
    sizes = (product.rows, product.columns, product.depth) if product else ()
    return max((size for size in sizes if size % 8), default=0)


RULE = Rule(
    id="gemm.align",
    title="Matrix products with unaligned sizes",
    costs="Tensor cores are fed 16 bytes at a time. Rows that start elsewhere are read value by value, by slower kernels.",
    seen="Kernels of matrix products whose names end in align1 or align2 (align4 for 16-bit types).",
    words=Words(
        because="{families}, {time} of {now}, with sizes that are not multiples of 16 bytes{what}",
        action="pad the sizes to multiples of 8 values, better 64 (a vocabulary of 50257 to 50304)",
    ),
    find=_find,
    gain="The time above what the FLOPs and bytes of the shapes need in a good kernel.",
    before="head = nn.Linear(768, 50257, bias=False)",
    after="head = nn.Linear(768, 50304, bias=False)  # and logits[..., :50257] where it matters",
    unless="The dimension is small and read once: padding then moves more than it saves.",
)
