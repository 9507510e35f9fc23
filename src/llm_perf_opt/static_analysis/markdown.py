"""`static_compute.md`: counter and formula of each stage side by side, for people."""

from __future__ import annotations

from collections.abc import Iterable

from llm_perf_opt.report.md_syntax import code, plain
from llm_perf_opt.report.text import NOT_MEASURED, counted, quantity, share
from llm_perf_opt.static_analysis.counts import MOVES_DATA, NOT_COUNTED, OperatorCount
from llm_perf_opt.static_analysis.result import StageResult, StaticCompute
from llm_perf_opt.version import __version__

_TOP = 12  # operators shown for each stage
_SHAPES = 10  # products shown for each stage


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
    rows = []
    for stage in stages:
        total, comparison = stage.total, stage.comparison
        ratio = comparison.flops_ratio if comparison and stage.count.complete else None
        rows.append(
            [
                code(stage.name),
                f"{stage.repeats:,}",
                _flops(total.matrix_flops_counter),
                _flops(total.matrix_flops_formula_full),
                _number(ratio, ".4f"),
                _flops(total.matrix_flops_formula_needed),
                _flops(total.matrix_flops_tensor_cores_estimate),
                _bytes(total.bytes_operator_by_operator),
                _bytes(total.bytes_least_formula),
                f"{_plain_number(stage.intensity_operator_by_operator)} to {_plain_number(stage.intensity_most)}",
            ]
        )
    head = [
        "stage",
        "runs",
        "matrix FLOPs, counter",
        "matrix FLOPs, formula",
        "ratio",
        "needed under the mask",
        "tensor cores, estimate",
        "bytes, operator by operator",
        "bytes, least",
        "FLOP per byte",
    ]
    return _table(head, rows, left=1)


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
    rows = [
        [plain(part.part), _flops(part.counter_flops), _flops(part.formula_flops), _number(part.ratio, ".4f")]
        for part in stage.comparison.parts
    ]
    rows.append(
        [
            "all",
            _flops(stage.count.matrix_flops),
            _flops(stage.formula.flops() if stage.formula else None),
            _number(stage.comparison.flops_ratio, ".4f"),
        ]
    )
    types = ", ".join(f"{_flops(value)} in {name}" for name, value in stage.matrix_flops_by_dtype.items())
    return [
        *_table(["matrix FLOPs", "counter", "formula", "ratio"], rows, left=1),
        "",
        f"By type of the inputs: {plain(types)}. Other FLOPs, estimated: {_flops(stage.count.estimated_flops)}. "
        f"Weights, cache and inputs read, each byte once: {_bytes(stage.count.distinct_bytes_read)}.",
        "",
    ]


def _terms(stage: StageResult) -> list[str]:
    assert stage.formula is not None
    formula = stage.formula
    rows = [
        [
            plain(term.name),
            code(term.formula),
            _flops(term.flops_full),
            _flops(term.flops_needed),
            _bytes(term.weight_bytes),
            _bytes(term.cache_bytes_read + term.cache_bytes_written),
            _bytes(term.activation_bytes_read + term.activation_bytes_written),
        ]
        for term in formula.terms
    ]
    lines = _table(["term", "formula", "FLOPs", "needed", "weights", "cache", "activations"], rows, left=2)
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
    rows = [
        [
            code(row.operator),
            plain(row.dtype),
            f"{row.calls:,}",
            _flops(row.matrix_flops) if row.matrix_flops else NOT_MEASURED,
            share(row.matrix_flops, flops) if row.matrix_flops else NOT_MEASURED,
            _flops(row.estimated_flops) if row.estimated_flops else NOT_MEASURED,
            _bytes(row.bytes_read),
            _bytes(row.bytes_written),
            share(row.bytes, moved),
            plain(row.treatment + (f", formula of {row.formula}" if row.formula else "")),
        ]
        for row in shown
    ]
    head = [
        "operator",
        "type",
        "calls",
        "matrix FLOPs",
        "of all",
        "other FLOPs, estimated",
        "read",
        "written",
        "of all bytes",
        "treatment",
    ]
    lines = _table(head, rows, left=2)
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
        flops = 2 * shape.batch * shape.heads * shape.queries * shape.keys * (shape.key_dim + shape.value_dim)
        rows.append((flops * calls, [code(shape.operator), size, plain(shape.dtype), f"{calls:,}"]))
    for product, calls in stage.count.matrices:
        batch = f"{product.batch} × " if product.batch > 1 else ""
        size = f"{batch}({product.m}, {product.k}) by ({product.k}, {product.n})"
        flops = 2 * product.batch * product.m * product.k * product.n
        rows.append((flops * calls, [code(product.operator), size, plain(product.dtype), f"{calls:,}"]))
    rows.sort(key=lambda row: -row[0])
    return _table(
        ["operator", "shape", "type", "calls", "FLOPs"],
        [[*row, _flops(total)] for total, row in rows[:_SHAPES]],
        left=3,
    )


def _silent(rows: list[OperatorCount]) -> list[str]:
    ordered = sorted(rows, key=lambda row: row.bytes, reverse=True)
    return _table(
        ["operator", "type", "calls", "bytes"],
        [[code(row.operator), plain(row.dtype), f"{row.calls:,}", _bytes(row.bytes)] for row in ordered],
        left=2,
    )


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


def _flops(value: float | None) -> str:
    return quantity(value, "FLOP")


def _bytes(value: float | None) -> str:
    return quantity(value, "byte")


def _number(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else format(value, form)


def _in_words(count: int) -> str:
    for step, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= step:
            return f"{count / step:.3g} {word}"
    return str(count)


def _plain_number(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: list[str], rows: Iterable[list[str]], left: int) -> list[str]:
    aligned = ["---" if column < left else "---:" for column in range(len(head))]
    return ["| " + " | ".join(cells) + " |" for cells in (head, aligned, *rows)]
