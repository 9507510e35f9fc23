"""What no rule has spoken for yet: launches and idle time of a region. No nanosecond is promised twice.

Rules come in an order, those that know a cause before those that know its effect; each takes what it explains.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import Factory, define

from llm_perf_opt.analysis.verdicts.idle_causes import IdlePart
from llm_perf_opt.analysis.verdicts.launched import Launched
from llm_perf_opt.regions.columns import Bools


@define(eq=False)
class Free:
    """Of one region; rules take from it."""

    rows: Bools  # of `Evaluated.launched`
    idle: dict[str, IdlePart] = Factory(dict)  # by the rule that its cause belongs to
    copies: float = 1.0  # of the copies between host and device

    @staticmethod
    def all_of(launched: Launched, waiting: Iterable[IdlePart]) -> Free:
        return Free(np.ones(len(launched), dtype=np.bool_), {part.rule: part for part in waiting})

    def take_idle(self, rules: tuple[str, ...], most: float) -> list[IdlePart]:
        """Up to so many ns from the idle time of some rules, in their order."""
        taken, left = [], most
        for rule in rules:
            part = self.idle.get(rule)
            if part is not None and (now := min(part.time_ns, left)) > 0:
                left -= now
                taken.append(part.of(now))
                self.idle[rule] = part.of(part.time_ns - now)
        return taken

    def shares(self, launched: Launched) -> dict[str, float]:
        """Of each kernel with rows that were taken, the part of its time that was not."""
        if self.rows.all():
            return {}
        whole, left = (
            np.bincount(launched.which, weights=weights, minlength=len(launched.kinds))
            for weights in (launched.time_ns, np.where(self.rows, launched.time_ns, 0))
        )
        names: dict[str, list[float]] = {}
        for number in np.flatnonzero(whole).tolist():
            sums = names.setdefault(launched.kinds[number].kernel, [0.0, 0.0])
            sums[0] += whole[number]
            sums[1] += left[number]
        return {name: free / all_of_it for name, (all_of_it, free) in names.items() if free < all_of_it}
