"""FLOPs and bytes of a region, from its counters, and FLOPs by formula."""

from __future__ import annotations

import math

from attrs import define

from llm_perf_opt.analysis.fitted import WHOLE_SOURCES
from llm_perf_opt.analysis.verdicts.counted_work import Amounts, amounts_of
from llm_perf_opt.analysis.verdicts.launches import copied_beside, copy_traffic
from llm_perf_opt.metrics.catalogue import DRAM_ROLES, role_of
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import MetricValue, NCUProfileRegion, RegionWork

_CLOSE = (0.95, 1.05)  # counted over formula: within this they agree


@define
class Formula:
    """FLOPs of a region from the model's shapes, where a static analysis is in the run."""

    needed: Quantity | None = None  # by the closed formulas
    counter: Quantity | None = None  # by torch's counter, operator by operator
    tensor_cores: Quantity | None = None  # expected of the tensor cores: whole tiles, masked halves of attention


def region_work(
    region: NCUProfileRegion, good: set[str], formula: Formula, *, lacks_tensor_work: bool = False
) -> tuple[RegionWork, Amounts]:
    """The region's work, and the same as bare amounts. `lacks_tensor_work`: of kernels that use the tensor cores."""
    used = {name: value for name, value in region.inclusive.metrics.items() if name in good}
    amounts = amounts_of({name: value.value for name, value in used.items()})
    work = RegionWork(formula=formula.needed, torch_counter=formula.counter)
    _add_copies(region, used, work, amounts)
    work.tensor = {k: Quantity(v, "FLOP") for k, v in amounts.flops.items() if k.startswith("tensor_")}
    work.cuda_core = {k: Quantity(v, "FLOP") for k, v in amounts.flops.items() if k.startswith("cuda_")}
    flops = None if lacks_tensor_work and not work.tensor else amounts.all_flops()
    work.flops = None if flops is None else Quantity(flops, "FLOP")
    work.dram_read, work.dram_written, work.dram, work.l2 = (
        Quantity(amounts.bytes[k], "B") if k in amounts.bytes else None
        for k in ("dram_read", "dram_written", "dram", "l2")
    )
    coverages = [v.coverage for v in used.values() if v.rollup == "sum" and v.coverage is not None]
    work.coverage = min(coverages) if coverages else None
    work.spread = _spread(used)
    _compare(work, formula.tensor_cores)
    return work, amounts


def _add_copies(region: NCUProfileRegion, used: dict[str, MetricValue], work: RegionWork, amounts: Amounts) -> None:
    """Copies and fills move bytes that counters of kernels do not see; a range measured as a whole has them in."""
    memory = region.inclusive.memory
    if not memory.bytes:
        return
    work.copied = Quantity(copy_traffic(memory), "B")
    if "dram" in amounts.bytes:
        whole = [role_of(name) for name, v in used.items() if role_of(name) in DRAM_ROLES and v.source in WHOLE_SOURCES]
        amounts.bytes["dram"] += copied_beside(memory, whole)
    elif not region.inclusive.kernel_count and not region.inclusive.graph_launches:
        amounts.bytes["dram"] = work.copied.value


def _spread(used: dict[str, MetricValue]) -> float | None:
    """Relative standard error of FLOPs and of DRAM traffic, the worse: parts that hardly count hardly spread the whole."""
    found = []
    for roles in (DRAM_ROLES, ("tensor_ops",)):
        parts = [v for name, v in used.items() if role_of(name) in roles and v.rollup == "sum" and v.spread is not None]
        whole = sum(v.value for v in parts)
        if whole:
            found.append(math.sqrt(sum((v.value * (v.spread or 0.0)) ** 2 for v in parts)) / whole)
    return max(found) if found else None


def _compare(work: RegionWork, expected: Quantity | None) -> None:
    if work.formula is None or work.flops is None or not work.formula.value:
        return
    counted = sum((q.value for q in work.tensor.values()), 0.0) or work.flops.value
    ratio = counted / work.formula.value
    work.counted_over_formula = ratio
    if _CLOSE[0] <= ratio <= _CLOSE[1]:
        work.formula_note = "The counters agree with the work computed from the model's shapes."
    elif ratio > 1:
        by_tiles = expected.value / work.formula.value if expected is not None else 1.0
        why = (
            f"whole tiles (8 rows at least, however few the shapes have) alone make {by_tiles:.2f} times of it; the rest are "
            "larger tiles, as in attention with a single query, "
            if by_tiles > _CLOSE[1]
            else "tiles padded beyond the shapes (most with few rows, as in decode), "
        )
        work.formula_note = f"The tensor cores did {ratio:.2f} times the model's work: {why}masked-out parts of attention, or work computed twice."
    else:
        work.formula_note = (
            f"The counters find {100 * ratio:.0f} % of the model's work: the rest ran in a data type or on units that were not "
            "counted, was skipped (causal attention), or has no sample."
        )
