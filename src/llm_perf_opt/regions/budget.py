"""Output in proportion to what was recorded: a name is recorded once, and may be written once for every launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.regions.columns import Int32s, Int64s

# Characters of one column, and a row. Names of kernels have some hundreds, the longest of real programs ten thousand.
_CHARACTERS, _CHARACTERS_A_ROW = 8_000_000, 500


def affordable(sizes: Int64s, weights: Int64s, most: int) -> int:
    """The largest limit, one at least, with which all sizes cut to it, times their weights, are no more than `most`."""
    low, high = 1, int(sizes.max(initial=1))
    while low < high:
        middle = (low + high + 1) // 2
        fits = float((np.minimum(sizes, middle) * weights).sum()) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def in_rows(texts: Sequence[str], numbers: Int32s | Int64s) -> list[str]:
    """Texts, each written in all rows that have its number: where that is too much the long ones are cut.

    What is cut stays different from all others: it ends with its number. Negative numbers are of no text.
    """
    uses = np.bincount(numbers[numbers >= 0], minlength=len(texts))
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    most = _CHARACTERS + _CHARACTERS_A_ROW * len(numbers)
    if int((lengths * uses).sum()) <= most:
        return list(texts)
    limit = affordable(lengths, uses, most)
    return [text if len(text) <= limit else f"{text[:limit]}… #{number}" for number, text in enumerate(texts)]
