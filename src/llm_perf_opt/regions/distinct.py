"""Which values columns of ids have: those are small numbers as a rule, so that counting takes the place of sorting."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.regions.columns import Bools, Int64s


def close_together(values: NDArray[Any]) -> tuple[int, int] | None:
    """The lowest of some numbers, and how many there are from it to the highest; None where a table of them is too large."""
    if len(values) == 0:
        return None
    low, high = int(values.min()), int(values.max())
    return (low, high - low + 1) if high - low <= 4 * len(values) + 65536 else None


def distinct(*columns: NDArray[Any]) -> Int64s:
    """Sorted distinct values of one or more columns."""
    parts = [_distinct(values) for values in columns if len(values)]
    if len(parts) > 1:
        return np.array(sorted({value for part in parts for value in part.tolist()}), dtype=np.int64)
    return parts[0] if parts else np.zeros(0, dtype=np.int64)


def _distinct(values: NDArray[Any]) -> Int64s:
    known = close_together(values)
    if known is None:
        return np.unique(values).astype(np.int64)
    low, count = known
    if count == 1:  # most columns hold one value
        return np.array([low], dtype=np.int64)
    seen = np.zeros(count, dtype=np.bool_)
    seen[values - low if low else values] = True
    return np.flatnonzero(seen) + low


def is_one_of(values: NDArray[Any], wanted: Collection[int]) -> Bools:
    """For each of a column of ids, whether it is one of these."""
    if not len(wanted):
        return np.zeros(len(values), dtype=np.bool_)
    known = close_together(values)
    if known is None:
        return np.isin(values, np.array([n for n in wanted if abs(n) < 2**31], dtype=np.int64))
    low, count = known
    table = np.zeros(count, dtype=np.bool_)
    table[[n - low for n in wanted if 0 <= n - low < count]] = True
    found: Bools = table[values - low if low else values]
    return found
