"""What counting a stage gives: plain classes whose fields go into `static_compute.json`. Needs no torch.

All values are of one run of the stage. FLOPs are multiplications and additions, two for one multiply-add;
bytes are sizes of tensors times the size of their elements.
"""

from __future__ import annotations

from attrs import Factory, define, field

# How an operator was treated.
MATRIX = "matrix"  # FLOPs by an exact formula: what tensor cores do
ESTIMATED = "estimated"  # element by element, reductions, norms, softmax: FLOPs by a rule of thumb
MOVES_DATA = "moves data only"  # copies, gathers, casts, work on integers and masks: no FLOPs to count
NOT_COUNTED = "computes, not counted"  # does arithmetic or comparisons that nothing here has a formula for


@define
class OperatorCount:
    """All calls of one operator with inputs of one type."""

    operator: str  # as torch calls it: `aten.mm`
    dtype: str  # of the first floating-point input: `bfloat16`
    treatment: str  # MATRIX | ESTIMATED | MOVES_DATA | NOT_COUNTED
    calls: int = 0
    matrix_flops: int = 0
    estimated_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    formula: str = ""  # whose formula gave the matrix FLOPs: "torch" | "llm-perf"

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@define(frozen=True)
class MatrixShape:
    """A product of matrices: `batch` times (m, k) by (k, n). Convolutions are given as the product they amount to."""

    operator: str
    dtype: str
    batch: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.k * self.n


@define(frozen=True)
class AttentionShape:
    """One attention operator, counted as one kernel that keeps the scores to itself."""

    operator: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int
    mask: str  # "causal": the kernel knows and may skip; "tensor": a mask is given, so it may not; "none"

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.queries * self.keys

    @property
    def flops(self) -> int:
        """Scores, then values."""
        return 2 * self.scores * (self.key_dim + self.value_dim)


@define
class StageCount:
    """Everything seen while a stage ran once."""

    stage: str
    repeats: int
    operators: list[OperatorCount] = Factory(list)  # most FLOPs, then most bytes, first
    matrices: list[tuple[MatrixShape, int]] = Factory(list)  # shape, calls
    attention: list[tuple[AttentionShape, int]] = Factory(list)
    distinct_bytes_read: int = 0  # weights, cache and inputs that were there before, each byte once
    free_calls: int = 0  # views and bookkeeping: no bytes, no FLOPs
    failure: str = ""  # why the run stopped before its end; what was counted until then is kept
    notes: list[str] = Factory(list)
    complete: bool = field(init=False)
    # Sums over the operators.
    matrix_flops: int = field(init=False)
    estimated_flops: int = field(init=False)
    bytes_read: int = field(init=False)
    bytes_written: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.complete = not self.failure
        for name in ("matrix_flops", "estimated_flops", "bytes_read", "bytes_written"):
            setattr(self, name, sum(getattr(row, name) for row in self.operators))

    def matrix_flops_by_dtype(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.operators:
            if row.matrix_flops:
                found[row.dtype] = found.get(row.dtype, 0) + row.matrix_flops
        return found

    def treated(self, treatment: str) -> list[OperatorCount]:
        return [row for row in self.operators if row.treatment == treatment]
