"""Long columns block by block: what is computed on the way stays in the processor's cache, and needs no fresh memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from llm_perf_opt.regions.columns import Int64s

_BLOCK = 1 << 16


def blocks(count: int) -> Iterator[slice]:
    """The places from 0 to `count`, in order."""
    return (slice(begin, min(begin + _BLOCK, count)) for begin in range(0, count, _BLOCK))


def taken(values: NDArray[Any], chosen: Int64s) -> NDArray[Any]:
    """`values[chosen]`, where `chosen` has no place twice: without a copy where everything is chosen."""
    return values if len(chosen) == len(values) else values[chosen]


def blocks_of(chosen: Int64s, count: int) -> Iterator[slice | Int64s]:
    """The same of some places of a column of `count`, none of them twice."""
    everything = len(chosen) == count
    return (part if everything else chosen[part] for part in blocks(len(chosen)))
