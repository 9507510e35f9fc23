"""Experts in a loop."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.analysis.rules.gains import Gain, above_peak, found_in_kernels
from llm_perf_opt.analysis.rules.rule import Rule, Words
from llm_perf_opt.analysis.verdicts.evaluated import Evaluated
from llm_perf_opt.analysis.verdicts.findings import Found

_SELECTS = ("aten::nonzero", "aten::where", "aten::index", "aten::index_select", "aten::masked_select")
_PUTS = ("aten::index_add_", "aten::index_put_", "aten::index_copy_", "aten::scatter_add_", "aten::_index_put_impl_")
_FEWEST = 8  # experts that are called one behind the other in a step
_CAUSES = ("host.sync", "launch.graph", "copy.host")


def _find(of: Evaluated) -> Iterator[Found]:
    launched = of.launched
    if not launched.ordered:
        return
    selects = launched.fits(lambda kind: kind.under(*_SELECTS))
    puts = launched.fits(lambda kind: kind.under(*_PUTS))
    product = launched.fits(lambda kind: kind.family == "gemm")
    experts = int((puts[1:] & ~puts[:-1]).sum()) * launched.scale / launched.instances
    if experts < _FEWEST or not product.any() or not selects.any():
        return
    rows = (selects | puts | product) & of.free.rows
    products = above_peak(of, rows & product, (0.3, 0.1, 0.5))
    idle = of.free.take_idle(_CAUSES, of.light.waiting.of("ns"))
    around = launched.time(rows & ~product)
    gain = Gain(products.likely + 0.7 * around + idle, 0.6 * (around + idle), products.high + around + idle)
    yield from found_in_kernels(of, "moe.loop", rows, gain, experts=f"{experts:.0f}")


RULE = Rule(
    id="moe.loop",
    title="Experts one behind the other in Python",
    costs="Each expert selects its tokens (the host waits to know how many), multiplies a few rows, and puts them back.",
    seen="Eight times or more in a step: rows selected (nonzero, where, index), a product, rows put back (index_add_, index_put_).",
    words=Words(
        because="{experts} experts are called one behind the other, {time} of {now} in their kernels",
        action="sort tokens by expert and multiply all experts at once (torch.nn.functional.grouped_mm, a fused MoE kernel)",
    ),
    find=_find,
    operators=True,
    gain="The idle time between the experts, most of selecting and putting back, and products down to their roof.",
    before="for e, expert in enumerate(experts):\n    rows = torch.where(chosen == e)[0]\n    out.index_add_(0, rows, expert(x[rows]))",
    after="y = torch.nn.functional.grouped_mm(x[order], weights, offs=ends)",
)
