"""Counter and formula of one stage side by side, and why they differ where they do. Pure functions; no torch."""

from __future__ import annotations

from attrs import Factory, define

from llm_perf_opt.metrics.quantity import percent
from llm_perf_opt.report.text import quantity
from llm_perf_opt.static_analysis.architecture import Architecture
from llm_perf_opt.static_analysis.counts import NOT_COUNTED, StageCount
from llm_perf_opt.static_analysis.formulas import ATTENTION, EXPERTS, HEAD, PROJECTIONS, StageFormula
from llm_perf_opt.static_analysis.observe import PARTS, counted_parts, skips_tiles
from llm_perf_opt.static_analysis.stage import StageWork

AGREEMENT = 0.01  # differences above this are explained
_WORTH_NAMING = 0.05  # an operator with this share of the bytes is named


@define
class PartComparison:
    """One part of the model in one run of the stage."""

    part: str
    counter_flops: int
    formula_flops: int
    ratio: float | None  # counter by formula


@define
class Comparison:
    """One run of a stage, both ways."""

    flops_ratio: float | None  # matrix FLOPs: counter by formula, both with attention in full
    bytes_ratio: float | None  # operator by operator, against the least bytes of the formula
    distinct_read_ratio: float | None  # what was there before and is read, against weights and cache of the formula
    agrees: bool  # within 1 %
    parts: list[PartComparison] = Factory(list)
    explanations: list[str] = Factory(list)


def flops_text(value: float | None) -> str:
    return quantity(value, "FLOP")


def bytes_text(value: float | None) -> str:
    return quantity(value, "byte")


def compare(count: StageCount, formula: StageFormula, architecture: Architecture, work: StageWork) -> Comparison:
    counted = counted_parts(count, architecture, work)
    parts = [
        PartComparison(part, counted[part], formula.flops(part=part), _ratio(counted[part], formula.flops(part=part)))
        for part in PARTS
        if counted[part] or formula.flops(part=part)
    ]
    ratio = _ratio(count.matrix_flops, formula.flops())
    agrees = count.complete and ratio is not None and abs(ratio - 1) <= AGREEMENT
    least = formula.bytes_read + formula.bytes_written
    # the table of tokens is read by the row, and what a pass puts into the cache it makes itself
    before = formula.weight_bytes + formula.cache_bytes_read - formula.cache_bytes_written
    return Comparison(
        flops_ratio=ratio,
        bytes_ratio=_ratio(count.bytes_read + count.bytes_written, least),
        distinct_read_ratio=_ratio(count.distinct_bytes_read, before),
        agrees=agrees,
        parts=parts,
        explanations=[
            *_incomplete(count),
            *([] if agrees else _differences(count, formula, parts)),
            *_causal(formula, count),
            *_tiles(formula),
            *_more_bytes(count, least),
            *_touched_experts(count, formula, architecture, before),
        ],
    )


def _ratio(counter: float, formula: float) -> float | None:
    return counter / formula if formula else None


def _incomplete(count: StageCount) -> list[str]:
    if count.complete:
        return []
    return [f"The counter stopped before the end: {count.failure} Its values are what was counted until then."]


def _differences(count: StageCount, formula: StageFormula, parts: list[PartComparison]) -> list[str]:
    """One sentence for each part that makes a difference; what has no cause we know of is called that."""
    said = []
    whole = max(formula.flops(), 1)
    for part in parts:
        gap = part.counter_flops - part.formula_flops
        if abs(gap) <= AGREEMENT * whole:
            continue
        said.append(
            f"{part.part}: the counter has {flops_text(part.counter_flops)}, the formula {flops_text(part.formula_flops)} "
            f"({percent(gap / whole, '+.1')} of the stage). {_cause(part.part, gap, count)}"
        )
    if not said and count.complete:
        said.append("The difference is spread over all parts, each below 1 % of the stage.")
    return said


def _cause(part: str, gap: int, count: StageCount) -> str:
    if not count.complete:
        return "The counter did not get that far." if gap < 0 else "The run was not complete, so this is no comparison."
    silent = [row.operator for row in count.treated(NOT_COUNTED)]
    if gap < 0 and silent:
        return f"Operators without a FLOP formula may hold it: {', '.join(silent[:6])}."
    if part == ATTENTION and gap > 0:
        return "The counter includes products of this shape that are not attention, or keys padded to the cache's full length."
    if part == EXPERTS and gap > 0:
        return "Rows are padded, or all experts are run for every token."
    if part == HEAD:
        return "The head was applied to another number of positions than the formula was given."
    if part == PROJECTIONS and gap > 0:
        return "The model has products the formula does not know: adapters, projectors, position embeddings or extra layers."
    return "The cause is not known."


def _causal(formula: StageFormula, count: StageCount) -> list[str]:
    full, needed = formula.flops("full", ATTENTION), formula.flops("needed", ATTENTION)
    if full == needed:
        return []
    tiles = flops_text(formula.flops("tensor_cores", ATTENTION))
    kernel = (
        f"A kernel that skips masked tiles does about {tiles}."
        if skips_tiles(count)
        else f"The kernel is not told of a causal mask here (it gets a mask as data, or attention is taken apart), so it "
        f"does all of it, about {tiles} in whole tiles."
    )
    return [
        f"Attention is counted in full on both sides ({flops_text(full)}), every query with every key; torch's counter knows "
        f"no mask. Under the mask {flops_text(needed)} are needed. {kernel}"
    ]


def _tiles(formula: StageFormula) -> list[str]:
    """Where the padding of tiles alone makes the GPU's counters differ from both."""
    outside = formula.flops("full") - formula.flops("full", ATTENTION)
    padded = formula.flops("tensor_cores") - formula.flops("tensor_cores", ATTENTION)
    if not outside or padded / outside <= 1 + AGREEMENT:
        return []
    return [
        f"Where the library uses tensor cores here, their counters will show {padded / outside:.3g} times the FLOPs of the "
        "products, or more: tiles have 8 rows at least, and the stage gives each product fewer, or a number that is no "
        "multiple. Kernels for a single row (gemv) use no tensor cores, and those counters then show nothing."
    ]


def _more_bytes(count: StageCount, least: int) -> list[str]:
    moved = count.bytes_read + count.bytes_written
    if not least or moved <= (1 + AGREEMENT) * least:
        return []
    said = (
        f"Operator by operator {bytes_text(moved)} are moved, {moved / least:.2f} times the least ({bytes_text(least)}): "
        "each operator reads its inputs and writes its results, as if no cache held them and nothing were fused."
    )
    heavy = sorted((row for row in count.operators if not row.matrix_flops), key=lambda row: row.bytes, reverse=True)
    named = [
        f"{row.operator} {row.dtype} ({bytes_text(row.bytes)})"
        for row in heavy[:4]
        if row.bytes >= _WORTH_NAMING * moved
    ]
    return [f"{said} Most of the rest: {', '.join(named)}." if named else said]


def _touched_experts(count: StageCount, formula: StageFormula, architecture: Architecture, before: int) -> list[str]:
    if architecture.experts is None or not before or abs(count.distinct_bytes_read / before - 1) <= AGREEMENT:
        return []
    return [
        f"Weights, cache and inputs: the counter has {bytes_text(count.distinct_bytes_read)}, the formula {bytes_text(before)}. "
        "Which experts are read depends on the data: the counter takes as many as there are rows, the formula expects "
        f"{formula.symbols['X']:g} of {architecture.experts.count} in each layer, for even routing."
    ]
