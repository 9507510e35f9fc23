"""Signatures: what makes two launches the same kernel on the same shape.

The planner and the join both tell launches apart by them, so there is one description for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from attrs import define

from llm_perf_opt.regions.columns import Int64s, Timeline
from llm_perf_opt.regions.names import short_kernel_name

Axes = tuple[int, int, int]
# Blocks of one grid over those of another up to which a launch is taken for the same work, a little larger: the cache
# of a decoder grows with every token, and with it the grid of the kernels that go through it.
NEIGHBOUR = 1.1
# Duration of some launches over that of others within which both do the same work, as far as anybody can tell.
SAME_WORK = (0.5, 2.0)


@define(frozen=True)
class Signature:
    """One kernel on one launch configuration; None and "" where the recording does not say."""

    name: str  # mangled where the recording has it
    shown: str  # demangled
    grid: Axes | None = None
    block: Axes | None = None
    shared_memory: int | None = None  # static plus dynamic, bytes; None also where it was not asked for
    short: str = ""

    @property
    def names(self) -> list[str]:
        """Every name it is known by, the most exact first."""
        return list(dict.fromkeys(n for n in (self.name, self.shown, self.short) if n))

    @property
    def blocks(self) -> int | None:
        """Blocks of its grid."""
        return None if self.grid is None else math.prod(self.grid)

    def __str__(self) -> str:
        where = "" if self.grid is None else f" grid {_size(self.grid)} block {_size(self.block)}"
        return f"{short_kernel_name(self.shown)}{where}"


def _size(axes: Axes | None) -> str:
    return "×".join(map(str, axes)) if axes else "?"


def stands_in(one: Signature, one_ns: float, other: Signature, other_ns: float) -> bool:
    """Do launches of a kernel on one grid tell about those on another?

    The grids differ along one axis and by little, and a block takes about as long. `one_ns`, `other_ns`: what a
    launch of each takes in the mean.
    """
    if one.grid is None or other.grid is None or (one.name, one.block) != (other.name, other.block):
        return False
    blocks, others = math.prod(one.grid), math.prod(other.grid)
    if sum(a != b for a, b in zip(one.grid, other.grid, strict=True)) > 1 or not (blocks and others):
        return False
    ratio = (one_ns / blocks) / max(other_ns / others, 1e-9)
    return max(blocks, others) <= NEIGHBOUR * min(blocks, others) and SAME_WORK[0] <= ratio <= SAME_WORK[1]


def describe_signatures(
    timeline: Timeline, kernels: Int64s | None = None, *, by_shared_memory: bool = False
) -> tuple[Int64s, list[Signature]]:
    """The number of each kernel's signature, and every signature.

    `kernels`: which kernels of the timeline, None for all. `by_shared_memory`: launches that differ in it alone are
    two signatures, as for ncu's launch filters; results of ncu are joined by names, grid and block.
    """
    work, strings = timeline.kernels, timeline.strings
    config = work.config
    chosen = slice(None) if kernels is None else kernels
    if config is None:
        names, label = np.unique(work.name[chosen], return_inverse=True)
        return label.astype(np.int64).reshape(-1), [Signature(strings[n], strings[n]) for n in names.tolist()]
    columns = [config.mangled[chosen], work.name[chosen], config.short[chosen]]
    columns += [*config.grid[chosen].T, *config.block[chosen].T]
    if by_shared_memory:
        columns.append(config.shared_memory[chosen])
    label, first = distinct_rows([c.astype(np.int64) for c in columns])
    described = []
    for mangled, name, short, gx, gy, gz, bx, by, bz, *shared in zip(
        *(c[first].tolist() for c in columns), strict=True
    ):
        shown = strings[name] if name >= 0 else ""
        described.append(
            Signature(
                name=strings[mangled] if mangled >= 0 else shown,
                shown=shown,
                grid=(gx, gy, gz),
                block=(bx, by, bz),
                shared_memory=shared[0] if shared else None,
                short=strings[short] if short >= 0 else "",
            )
        )
    return label, described


def distinct_rows(columns: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
    """Number of each row's combination of values, and one row for each number.

    Columns are folded into one key, renumbered before it could overflow: much faster than comparing rows.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    size = 1
    for column in columns:
        low = int(column.min()) if len(column) else 0
        width = (int(column.max()) if len(column) else 0) - low + 1
        if size * width >= 2**62:
            values, key = np.unique(key, return_inverse=True)
            key, size = key.reshape(-1), len(values)
        key = key * width + (column - low)
        size *= width
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return which.astype(np.int64).reshape(-1), first
