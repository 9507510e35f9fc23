"""What a rule finds in a region (`analysis/rules`)."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define

from llm_perf_opt.metrics.quantity import Quantity


@define(frozen=True)
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
    interval: tuple[Quantity, Quantity] | None = None  # that `recoverable` lies in; None: up to what it says
