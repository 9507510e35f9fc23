"""What kernels are by what they stand before, where neither shapes nor names tell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llm_perf_opt.analysis.verdicts.launched import Launched, LaunchKind
from llm_perf_opt.regions.columns import Bools

_MOST_BETWEEN = 3


def pairs_before_attention(launched: Launched, test: Callable[[LaunchKind], bool]) -> Bools:
    """Two launches of a kind right before attention, and no third: of keys and of values."""
    chosen = launched.fits(test)
    if not chosen.any():
        return chosen
    attention = launched.fits(lambda kind: kind.family == "attention")
    apart = launched.fits(lambda kind: kind.family == "copy") & ~chosen  # what may lie between: layouts, repeated heads
    found = np.zeros(len(launched), dtype=np.bool_)
    for at in np.flatnonzero(attention).tolist():
        last = at - 1
        while last > 0 and apart[last] and at - last <= _MOST_BETWEEN:
            last -= 1
        if last > 0 and chosen[last] and chosen[last - 1] and not (last > 1 and chosen[last - 2]):
            found[last - 1 : last + 1] = True
    return found
