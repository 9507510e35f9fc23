"""`static_compute.md`: counter and formula of each stage side by side, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from llm_perf_opt.report.md_syntax import code, plain, table
from llm_perf_opt.report.text import NOT_MEASURED, counted, share
from llm_perf_opt.static_analysis.compare import PartComparison, bytes_text, flops_text
from llm_perf_opt.static_analysis.counts import MOVES_DATA, NOT_COUNTED, OperatorCount
from llm_perf_opt.static_analysis.formulas import Term
from llm_perf_opt.static_analysis.static_result import StageResult, StaticCompute
from llm_perf_opt.version import __version__

_TOP = 12  # operators shown for each stage
_SHAPES = 10  # products shown for each stage
T = TypeVar("T")
Columns = dict[str, Callable[[T], str]]  # title -> cell


def render_markdown(result: StaticCompute) -> str:
    versions = " · ".join(f"{name} {version}" for name, version in result.environment.items())
    lines = [
        "# Static analysis of FLOPs and bytes",
        "",
        f"{plain(versions)} · made {result.generated_at} by llm-perf {__version__} · nothing here was measured: the counter "
        "ran the stages without data, the formulas follow from the configuration.",
        "",
        *_model(result),
        "## All stages",
        "",
        *_overview(result.stages),
        "",
    ]
    for diagnosis in result.diagnostics:
        lines.append(f"- **{diagnosis.severity}** {plain(diagnosis.message)} {plain(diagnosis.fix)}")
    for stage in result.stages:
        lines += ["", *_stage(stage)]
    lines += ["", "## How to read this", "", *_reading(result)]
    return "\n".join(lines) + "\n"


def _model(result: StaticCompute) -> list[str]:
    a = result.architecture
    if a is None or result.matrix_parameters is None:
        return []
    parts = [
        f"{code(a.model_type)}: {_in_words(result.matrix_parameters)} parameters in matrices and tables",
        f"{a.layers} layers, hidden size {a.hidden}, {a.heads} heads ({a.kv_heads} for keys and values) of width {a.key_dim}",
        f"vocabulary {a.vocabulary}{', tied to the output head' if a.tied_embeddings else ''}",
    ]
    if a.experts:
        e = a.experts
        parts.append(f"{e.count} experts of width {e.width} in {e.layers} layers, {e.per_token} for each token")
    return ["; ".join(parts) + ".", ""]


def _overview(stages: list[StageResult]) -> list[str]:
    def ratio(stage: StageResult) -> float | None:
        return stage.comparison.flops_ratio if stage.comparison and stage.count.complete else None

    columns: Columns[StageResult] = {
        "stage": lambda s: code(s.name),
        "runs": lambda s: f"{s.repeats:,}",
        "matrix FLOPs, counter": lambda s: flops_text(s.total.matrix_flops_counter),
        "matrix FLOPs, formula": lambda s: flops_text(s.total.matrix_flops_formula_full),
        "ratio": lambda s: _ratio(ratio(s)),
        "needed under the mask": lambda s: flops_text(s.total.matrix_flops_formula_needed),
        "tensor cores, estimate": lambda s: flops_text(s.total.matrix_flops_tensor_cores_estimate),
        "bytes, operator by operator": lambda s: bytes_text(s.total.bytes_operator_by_operator),
        "bytes, least": lambda s: bytes_text(s.total.bytes_least_formula),
        "FLOP per byte": lambda s: f"{_short(s.intensity_operator_by_operator)} to {_short(s.intensity_most)}",
    }
    return _table(columns, stages, words=1)


def _stage(stage: StageResult) -> list[str]:
    count = stage.count
    lines = [f"## Stage {code(stage.name)}", "", *_what(stage), ""]
    if stage.comparison is not None:
        lines += _parts(stage)
    for sentence in [*(stage.comparison.explanations if stage.comparison else []), *count.notes]:
        lines.append(f"- {plain(sentence)}")
    if stage.comparison is None and count.failure:
        lines.append(f"- The counter stopped before the end: {plain(count.failure)}")
    if stage.no_formula:
        lines.append(f"- No closed formula: {plain(stage.no_formula)}.")
    if stage.formula is not None:
        lines += ["", f"### Formula of {code(stage.name)}, one run", "", *_terms(stage)]
    lines += ["", f"### Operators of {code(stage.name)}, one run", "", *_operators(count.operators)]
    if count.matrices or count.attention:
        lines += ["", "Largest products:", "", *_shapes(stage)]
    silent = count.treated(NOT_COUNTED)
    lines += ["", f"### Not counted in {code(stage.name)}", ""]
    if silent:
        lines += ["Compute something, without a FLOP formula:", "", *_silent(silent)]
    else:
        lines.append("Every operator that computes was counted or estimated.")
    movers = count.treated(MOVES_DATA)
    if movers:
        lines += ["", "Move data or work on integers, no FLOPs:", "", *_silent(movers)]
    lines += ["", f"Views and allocations, free: {counted(count.free_calls, 'call')}."]
    return lines


def _what(stage: StageResult) -> list[str]:
    work = stage.work
    if work is None:
        shape = "".join(f"{plain(name)} {value:,}; " for name, value in stage.shape.items())
        return [f"{shape}runs {counted(stage.repeats, 'time')}, values below are of one run."]
    given = (
        f"{counted(work.batch, 'sequence')}, {counted(work.new_tokens, 'new token')} each, {work.cached_tokens:,} in the cache, "
        f"output head on {counted(work.head_positions, 'position')} ({stage.work_source})"
    )
    return [f"{given}; runs {counted(stage.repeats, 'time')}, values below are of one run."]


def _parts(stage: StageResult) -> list[str]:
    assert stage.comparison is not None
    ratio, formula = stage.comparison.flops_ratio, stage.formula.flops() if stage.formula else 0
    columns: Columns[PartComparison] = {
        "matrix FLOPs": lambda part: plain(part.part),
        "counter": lambda part: flops_text(part.counter_flops),
        "formula": lambda part: flops_text(part.formula_flops),
        "ratio": lambda part: _ratio(part.ratio),
    }
    whole = PartComparison("all", stage.count.matrix_flops, formula, ratio)
    types = ", ".join(f"{flops_text(value)} in {name}" for name, value in stage.matrix_flops_by_dtype.items())
    return [
        *_table(columns, [*stage.comparison.parts, whole], words=1),
        "",
        f"By type of the inputs: {plain(types)}. Other FLOPs, estimated: {flops_text(stage.count.estimated_flops)}. "
        f"Weights, cache and inputs read, each byte once: {bytes_text(stage.count.distinct_bytes_read)}.",
        "",
    ]


def _terms(stage: StageResult) -> list[str]:
    assert stage.formula is not None
    formula = stage.formula
    columns: Columns[Term] = {
        "term": lambda term: plain(term.name),
        "formula": lambda term: code(term.formula),
        "FLOPs": lambda term: flops_text(term.flops_full),
        "needed": lambda term: flops_text(term.flops_needed),
        "weights": lambda term: bytes_text(term.weight_bytes),
        "cache": lambda term: bytes_text(term.cache_bytes_read + term.cache_bytes_written),
        "activations": lambda term: bytes_text(term.activation_bytes_read + term.activation_bytes_written),
    }
    lines = _table(columns, formula.terms, words=2)
    values = ", ".join(code(f"{name} = {value:.10g}") for name, value in formula.symbols.items())
    lines += ["", f"With {values}.", ""]
    lines += [f"- {plain(term.name)}: {plain(term.note)}." for term in formula.terms if term.note]
    lines += [f"- {plain(note)}" for note in formula.notes]
    return lines


def _operators(operators: list[OperatorCount]) -> list[str]:
    shown = sorted(operators, key=lambda row: row.bytes, reverse=True)[:_TOP]
    shown = [*[row for row in operators if row.matrix_flops], *[row for row in shown if not row.matrix_flops]]
    flops = sum(row.matrix_flops for row in operators)
    moved = sum(row.bytes for row in operators)
    columns: Columns[OperatorCount] = {
        "operator": lambda row: code(row.operator),
        "type": lambda row: plain(row.dtype),
        "calls": lambda row: f"{row.calls:,}",
        "matrix FLOPs": lambda row: flops_text(row.matrix_flops or None),
        "of all": lambda row: share(row.matrix_flops, flops) if row.matrix_flops else NOT_MEASURED,
        "other FLOPs, estimated": lambda row: flops_text(row.estimated_flops or None),
        "read": lambda row: bytes_text(row.bytes_read),
        "written": lambda row: bytes_text(row.bytes_written),
        "of all bytes": lambda row: share(row.bytes, moved),
        "treatment": lambda row: plain(row.treatment + (f", formula of {row.formula}" if row.formula else "")),
    }
    lines = _table(columns, shown, words=2)
    if len(operators) > len(shown):
        lines += ["", f"{len(operators) - len(shown)} more are in static_compute.json."]
    return lines


def _shapes(stage: StageResult) -> list[str]:
    rows = []
    for shape, calls in stage.count.attention:
        size = (
            f"{shape.batch} × {shape.heads} heads ({shape.kv_heads} for keys), {shape.queries} queries by {shape.keys} keys, "
            f"width {shape.key_dim} and {shape.value_dim}"
        )
        rows.append((shape.flops * calls, [code(shape.operator), size, plain(shape.dtype), f"{calls:,}"]))
    for product, calls in stage.count.matrices:
        batch = f"{product.batch} × " if product.batch > 1 else ""
        size = f"{batch}({product.m}, {product.k}) by ({product.k}, {product.n})"
        rows.append((product.flops * calls, [code(product.operator), size, plain(product.dtype), f"{calls:,}"]))
    rows.sort(key=lambda row: -row[0])
    head = ["operator", "shape", "type", "calls", "FLOPs"]
    return table(head, [[*row, flops_text(total)] for total, row in rows[:_SHAPES]], numbers=2)


def _silent(rows: list[OperatorCount]) -> list[str]:
    columns: Columns[OperatorCount] = {
        "operator": lambda row: code(row.operator),
        "type": lambda row: plain(row.dtype),
        "calls": lambda row: f"{row.calls:,}",
        "bytes": lambda row: bytes_text(row.bytes),
    }
    return _table(columns, sorted(rows, key=lambda row: row.bytes, reverse=True), words=2)


def _reading(result: StaticCompute) -> list[str]:
    used = {name for stage in result.stages if stage.formula for name in stage.formula.symbols}
    meanings = "; ".join(f"{code(name)} {plain(meaning)}" for name, meaning in result.symbols.items() if name in used)
    return [
        "- FLOPs are multiplications and additions, two for one multiply-add. Matrix FLOPs are those of products of matrices, "
        "convolutions and attention: what tensor cores do, exact for the shapes. Other FLOPs (norms, softmax, activations) are "
        "estimated by fixed numbers for each element and kept apart.",
        "- The counter uses torch's formulas (torch.utils.flop_counter) operator by operator, and ours for attention as one "
        "operator and for grouped products of experts. Attention is counted in full, without the causal mask.",
        "- Tensor cores, estimate: what hardware counters are likely to show, with rows padded to 8 and attention in tiles of "
        "128; libraries may pad more.",
        "- Bytes operator by operator are what eager mode moves if each operator reads its inputs and writes its results once: "
        "caches and fusion take away from that, large products that read their inputs several times add to it. Least bytes are "
        "a lower bound: weights and cache once, inputs and results of products once.",
        "- FLOP per byte: from operator by operator to the most that is possible with the least bytes.",
        *([f"- Symbols: {meanings}."] if meanings else []),
    ]


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.4f}"


def _in_words(count: int) -> str:
    for step, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= step:
            return f"{count / step:.3g} {word}"
    return str(count)


def _short(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(columns: Columns[T], items: Iterable[T], words: int) -> list[str]:
    """A row an item, its first `words` cells words and the rest numbers."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    return table(list(columns), rows, len(columns) - words)
