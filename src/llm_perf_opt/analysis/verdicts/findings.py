"""What a rule finds in a region (`analysis/rules`)."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.analysis.verdicts.idle_causes import IdlePart
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.columns import Bools


@define(frozen=True, eq=False)
class Found:
    """What a rule found: the cause, what it takes now, and what of that could be won back."""

    rule: str
    kind: str
    time: Quantity
    recoverable: Quantity
    family: str = ""
    words: dict[str, str] = Factory(dict)  # for its texts, beside `time`, `recoverable`, `now` and the region's facts
    kernels: Sequence[str] = ()
    texts: str = ""  # the entry of its words, where that is not its rule
    interval: tuple[Quantity, Quantity] | None = None  # that `recoverable` lies in
    # What of the region it is about, which its lines come from:
    rows: Bools | None = None  # of `Evaluated.launched`
    idle: Sequence[IdlePart] = ()  # what it took of the idle time
    copies_ns: float = 0.0  # of copies between host and device
