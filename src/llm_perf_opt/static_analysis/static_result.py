"""The result of static analysis: plain classes whose fields are those of `static_compute.json`. Needs no torch."""

from __future__ import annotations

from attrs import Factory, define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.static_analysis.architecture import Architecture
from llm_perf_opt.static_analysis.compare import Comparison
from llm_perf_opt.static_analysis.counts import StageCount
from llm_perf_opt.static_analysis.formulas import SYMBOLS, StageFormula
from llm_perf_opt.static_analysis.stage import StageWork

SCHEMA_VERSION = "1.0"

UNITS = {
    "flops": "floating-point operations, two for one multiply-add; of one run of the stage unless the name says total",
    "bytes": "bytes; of one run of the stage unless the name says total",
    "intensity": "FLOP per byte",
}


@define
class StageTotals:
    """One run times `repeats`, the values a report shows first. None: not known."""

    matrix_flops_counter: int | None
    matrix_flops_formula_full: int | None
    matrix_flops_formula_needed: int | None
    matrix_flops_tensor_cores_estimate: int | None
    estimated_other_flops: int | None
    bytes_operator_by_operator: int | None
    bytes_least_formula: int | None


@define
class StageResult:
    """One stage, both ways; counts are of one run."""

    name: str
    repeats: int
    shape: dict[str, int]  # what the stage said of its shapes
    work: StageWork | None  # what the formulas were given
    work_source: str  # "given by the stage" | "taken from the shapes of operators" | ""
    count: StageCount
    formula: StageFormula | None
    no_formula: str  # why there is none
    comparison: Comparison | None
    intensity_operator_by_operator: float | None  # matrix FLOPs of the counter by its bytes
    intensity_most: float | None  # needed FLOPs by the least bytes of the formula
    matrix_flops_by_dtype: dict[str, int]
    total: StageTotals


@define
class StaticCompute:
    """The result of static analysis."""

    schema_version: str
    generated_at: str
    environment: dict[str, str]
    architecture: Architecture | None
    matrix_parameters: int | None  # by formula: all matrices and tables, no norms and biases
    stages: list[StageResult]
    symbols: dict[str, str] = Factory(lambda: dict(SYMBOLS))
    units: dict[str, str] = Factory(lambda: dict(UNITS))
    diagnostics: list[Diagnosis] = Factory(list)
