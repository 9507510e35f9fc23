"""FLOPs and bytes of a region, from its counters, and beside them FLOPs by formula."""

from __future__ import annotations

from llm_perf_opt.analysis.verdicts.counters import Amounts, amounts_of
from llm_perf_opt.regions.model import MetricValue, RegionWork
from llm_perf_opt.regions.quantity import Quantity

_CLOSE = (0.95, 1.05)  # counted over formula: within this they agree


def region_work(
    metrics: dict[str, MetricValue], good: set[str], formula: Quantity | None
) -> tuple[RegionWork, Amounts]:
    """The region's work, and the same as bare amounts."""
    used = {name: value for name, value in metrics.items() if name in good}
    amounts = amounts_of({name: value.value for name, value in used.items()})
    work = RegionWork(formula=formula)
    work.tensor = {k: Quantity(v, "FLOP") for k, v in amounts.flops.items() if k.startswith("tensor_")}
    work.cuda_core = {k: Quantity(v, "FLOP") for k, v in amounts.flops.items() if k.startswith("cuda_")}
    flops = amounts.all_flops()
    work.flops = None if flops is None else Quantity(flops, "FLOP")
    work.dram_read, work.dram_written, work.dram, work.l2 = (
        Quantity(amounts.bytes[k], "B") if k in amounts.bytes else None
        for k in ("dram_read", "dram_written", "dram", "l2")
    )
    sums = [value for name, value in used.items() if value.rollup == "sum"]
    coverages = [v.coverage for v in sums if v.coverage is not None]
    spreads = [v.spread for v in sums if v.spread is not None and v.value]
    work.coverage = min(coverages) if coverages else None
    work.spread = max(spreads) if spreads else None
    _compare(work)
    return work, amounts


def _compare(work: RegionWork) -> None:
    if work.formula is None or work.flops is None or not work.formula.value:
        return
    counted = sum((q.value for q in work.tensor.values()), 0.0) or work.flops.value
    ratio = counted / work.formula.value
    work.counted_over_formula = ratio
    if _CLOSE[0] <= ratio <= _CLOSE[1]:
        work.formula_note = "The counters find the work that the model's shapes ask for."
    elif ratio > 1:
        work.formula_note = (
            f"The tensor cores did {ratio:.2f} times the model's work: tiles padded beyond the shapes (most with few "
            "rows, as in decode), masked-out parts of attention, or work computed twice."
        )
    else:
        work.formula_note = (
            f"The counters find {100 * ratio:.0f} % of the model's work: the rest ran in a data type or on units that were not "
            "counted, was skipped (causal attention), or has no sample."
        )
