"""Static analysis of all stages of a workload, and its two files: `static_compute.json`, `static_compute.md`.

`analyse` needs torch only to count; reading and writing results does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from attrs import asdict

from llm_perf_opt.diagnosis import Diagnosis, diagnose
from llm_perf_opt.report.files import make_folder, write_text
from llm_perf_opt.report.text import counted
from llm_perf_opt.static_analysis.architecture import Architecture, NoFormula, architecture_of, vision_architecture_of
from llm_perf_opt.static_analysis.compare import compare
from llm_perf_opt.static_analysis.counts import MOVES_DATA, NOT_COUNTED, OperatorCount, StageCount
from llm_perf_opt.static_analysis.formulas import StageFormula, matrix_parameters, stage_formula
from llm_perf_opt.static_analysis.observe import observed_architecture, skips_tiles, work_of
from llm_perf_opt.static_analysis.stage import StageWork, StaticStage
from llm_perf_opt.static_analysis.static_compute_md import render_markdown
from llm_perf_opt.static_analysis.static_result import SCHEMA_VERSION, StageResult, StageTotals, StaticCompute

if TYPE_CHECKING:
    from llm_perf_opt.workloads.model_session import Session

_BYTES_OF = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}
_TRUSTED_GUESS = 0.001  # formulas of an unknown model type stand if they meet the counter this closely


def analyse(stages: Sequence[StaticStage], config: Any) -> StaticCompute:
    """Counts every stage and sets the formulas beside.

    `config` is a transformers configuration, an `Architecture`, or None for a model that is no transformer.
    """
    from llm_perf_opt.static_analysis.counting import count_stage

    architecture = config if isinstance(config, Architecture) else architecture_of(config)
    vision = NoFormula("") if isinstance(config, Architecture) else vision_architecture_of(config)
    if (
        isinstance(architecture, NoFormula)
        and isinstance(vision, Architecture)
        and not hasattr(config, "vision_config")
    ):
        architecture = vision  # the configuration of a vision encoder alone
    diagnostics: list[Diagnosis] = []
    results = []
    for stage in stages:
        count = count_stage(stage)
        diagnostics += _check(count)
        results.append(_result(stage, count, architecture, vision))
    known = None if isinstance(architecture, NoFormula) else architecture
    if isinstance(architecture, NoFormula):
        diagnostics.append(diagnose("NO_CLOSED_FORMULA", reason=architecture.reason))
    return StaticCompute(
        schema_version=SCHEMA_VERSION,
        generated_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=_environment(),
        architecture=known,
        matrix_parameters=None if known is None else matrix_parameters(known),
        stages=results,
        diagnostics=diagnostics,
    )


def _environment() -> dict[str, str]:
    loaded = {name: sys.modules.get(name) for name in ("torch", "transformers")}
    return {name: str(module.__version__) for name, module in loaded.items() if module is not None}


def _check(count: StageCount) -> list[Diagnosis]:
    found = []
    if not count.complete:
        found.append(diagnose("STAGE_NOT_COUNTED", stage=count.stage, failure=count.failure))
    silent = count.treated(NOT_COUNTED)
    if silent:
        names = ", ".join(f"{row.operator} ({counted(row.calls, 'call')})" for row in silent[:8])
        found.append(diagnose("OPERATORS_NOT_COUNTED", stage=count.stage, operators=names))
    return found


def _result(
    stage: StaticStage, count: StageCount, text: Architecture | NoFormula, vision: Architecture | NoFormula
) -> StageResult:
    formula, work, source, reason = _formula(stage, count, text, vision)
    comparison = None
    if formula is not None and work is not None:
        architecture = vision if work.part == "vision" else text
        assert isinstance(architecture, Architecture)
        comparison = compare(count, formula, architecture, work)
        if not architecture.known and count.complete and abs((comparison.flops_ratio or 0) - 1) > _TRUSTED_GUESS:
            reason = (
                f"model type {architecture.model_type} is not among those the formulas were tested with, and taken as "
                f"Llama-like they give {1 / comparison.flops_ratio if comparison.flops_ratio else 0:.3f} times the counter's FLOPs"
            )
            formula = comparison = None
    moved = count.bytes_read + count.bytes_written
    least = formula.bytes_read + formula.bytes_written if formula else 0
    return StageResult(
        name=stage.name,
        repeats=stage.repeats,
        shape=dict(stage.shape),
        work=work,
        work_source=source,
        count=count,
        formula=formula,
        no_formula=reason,
        comparison=comparison,
        intensity_operator_by_operator=count.matrix_flops / moved if moved and count.complete else None,
        intensity_most=formula.flops("needed") / least if formula and least else None,
        matrix_flops_by_dtype=count.matrix_flops_by_dtype(),
        total=_totals(stage.repeats, count, formula),
    )


def _formula(
    stage: StaticStage, count: StageCount, text: Architecture | NoFormula, vision: Architecture | NoFormula
) -> tuple[StageFormula | None, StageWork | None, str, str]:
    """The formula, what it was given, where that came from, and otherwise why there is none."""
    given = stage.work
    candidates = [text, vision] if given is None else [vision if given.part == "vision" else text]
    reasons = []
    for architecture in candidates:
        if isinstance(architecture, NoFormula):
            reasons.append(architecture.reason)
            continue
        work, source = work_of(stage, count, architecture)
        if work is None:
            reasons.append(
                f"batch and lengths are not known: the stage does not give them, and no attention with "
                f"{architecture.heads} heads of width {architecture.key_dim} was seen"
            )
            continue
        exact = observed_architecture(count, architecture, work)
        by_dtype = count.matrix_flops_by_dtype()
        # weights and cache have the type of most matrix FLOPs
        size = _BYTES_OF.get(max(by_dtype, key=by_dtype.__getitem__, default="bfloat16"), 2)
        # a stage that could not be counted tells nothing about its kernel: the usual one is assumed
        skips = skips_tiles(count) if count.complete else True
        formula = stage_formula(exact, work, size, skips_tiles=skips)
        return formula, work, source, ""
    return None, given, "", "; ".join(reason for reason in reasons if reason) or "the stage is no part of a transformer"


def _totals(repeats: int, count: StageCount, formula: StageFormula | None) -> StageTotals:
    counter = [count.matrix_flops, count.estimated_flops, count.bytes_read + count.bytes_written]
    flops, others, moved = (value * repeats if count.complete else None for value in counter)
    if formula is None:
        return StageTotals(flops, None, None, None, others, moved, None)
    full, needed, tiled = (formula.flops(kind) * repeats for kind in ("full", "needed", "tensor_cores"))
    least = (formula.bytes_read + formula.bytes_written) * repeats
    return StageTotals(flops, full, needed, tiled, others, moved, least)


def as_json(result: StaticCompute) -> dict[str, Any]:
    """The result as plain dictionaries and lists, sums included."""
    data: dict[str, Any] = asdict(result)
    for stage, plain in zip(result.stages, data["stages"], strict=True):
        count, formula = stage.count, stage.formula
        plain["count"] |= {
            "operators_not_counted": [_brief(row) for row in count.treated(NOT_COUNTED)],
            "operators_that_move_data_only": [_brief(row) for row in count.treated(MOVES_DATA)],
        }
        for name in ("matrices", "attention"):
            plain["count"][name] = [{**asdict(shape), "calls": calls} for shape, calls in getattr(count, name)]
        if formula is not None:
            plain["formula"] |= {f"flops_{kind}": formula.flops(kind) for kind in ("full", "needed", "tensor_cores")}
    return data


def _brief(row: OperatorCount) -> dict[str, Any]:
    return {"operator": row.operator, "dtype": row.dtype, "calls": row.calls, "bytes": row.bytes}


def write_static_compute(result: StaticCompute, folder: Path) -> list[Path]:
    """Writes both files into the folder, which is made if need be."""
    make_folder(folder)
    content = orjson.dumps(as_json(result), option=orjson.OPT_INDENT_2).decode() + "\n"
    return [
        write_text(folder / "static_compute.json", content),
        write_text(folder / "static_compute.md", render_markdown(result)),
    ]


def analyse_session(session: Session[Any], folder: Path) -> dict[str, Any]:
    """Analyses the stages of a session, writes the files, and answers with what belongs into a summary."""
    result = analyse(session.static_stages(), session.hf_config)
    files = write_static_compute(result, folder)
    return {
        "status": "done",
        "files": [file.name for file in files],
        "stages": {stage.name: asdict(stage.total) | {"repeats": stage.repeats} for stage in result.stages},
        "diagnostics": [asdict(diagnosis) for diagnosis in result.diagnostics],
    }
