"""Collectives by region and kind, as a table: how much, how long, how fast."""

from __future__ import annotations

from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.text import duration, quantity
from llm_perf_opt.report.view import View

HEAD = ("region", "collective", "ranks", "calls", "message", "in all", "time", "exposed", "waiting", "transfer", "bandwidth", "bus bandwidth")  # fmt: skip
WORDS = 2  # columns of them
_NOTHING = "–"


def collective_table(view: View) -> list[list[str]]:
    """One row for each region and kind."""
    return [
        [
            visible(use.region, 120) or _NOTHING,
            use.kind,
            _NOTHING if use.ranks is None else str(use.ranks),
            f"{use.calls:,}",
            *(_NOTHING if sent is None else quantity(sent, "byte") for sent in (use.median_bytes, use.bytes)),
            duration(use.time_ns),
            duration(use.exposed_ns),
            duration(use.waiting_ns),
            duration(use.transfer_ns),
            *(_rate(rate, use.transfer_ns) for rate in (use.bandwidth, use.bus_bandwidth)),
        ]
        for use in view.report.collectives
    ]


def _rate(rate: float | None, transfer_ns: int | None) -> str:
    """With waiting in the time, it is the least that it can be."""
    if rate is None:
        return _NOTHING
    return ("" if transfer_ns is not None else "≥ ") + quantity(rate, "byte/s")
