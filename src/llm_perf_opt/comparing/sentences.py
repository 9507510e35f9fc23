"""A comparison in words: one sentence a region, the cause that matters most first."""

from __future__ import annotations

from llm_perf_opt.comparing.causes import replaced_names
from llm_perf_opt.comparing.comparison import NOT_COMPARABLE, ORDER, SAME, UNSURE, Cause, KernelPair, RegionComparison
from llm_perf_opt.comparing.exact import describe_exact
from llm_perf_opt.comparing.matching import GRAPH
from llm_perf_opt.metrics import quantity
from llm_perf_opt.report.text import duration

_MOST_CAUSES = 3
_WORTH_A_WORD = 0.1  # of the change
_WORTH_NAMING = 0.01  # of the time, a kernel that was replaced


def percent(value: float, *, signed: bool = False) -> str:
    """`+12 %`, `-0.4 %`."""
    digits = 0 if abs(value) >= 0.0995 else 1
    return quantity.percent(value, f"{'+' if signed else ''}.{digits}")


def signed(nanoseconds: float) -> str:
    """`+3.1 ms`."""
    return ("+" if nanoseconds >= 0 else "-") + duration(abs(nanoseconds))


def describe_region(region: RegionComparison, carrier: RegionComparison | None = None) -> str:
    """`decode +12 % (+4.8 ms, 40 ms → 44.8 ms): 72 more launches of copy_ (+3.1 ms), …`.

    `carrier`: a region inside it that holds most of the change.
    """
    if region.by_counts and region.verdict != NOT_COMPARABLE:
        return f"{region.label}: {', '.join(map(describe_exact, region.exact_changes)) or 'all counts are the same'}."
    if region.before_ns is None or region.after_ns is None or region.change is None:
        return f"{region.label} cannot be compared: {region.reason or 'it was not timed on both sides'}." + _exact(
            region
        )
    numbers = f"{duration(region.before_ns)} → {duration(region.after_ns)}"
    if region.verdict == SAME:
        text = f"{region.label} is the same ({numbers})"
        return f"{text}.{_other_kernels(region)}{_exact(region)}"
    head = f"{region.label} {percent(region.change, signed=True)} ({signed(region.delta_ns)}, {numbers})"
    told = causes_in_words(region)
    text = f"{head}: {told}." if told else f"{head}."
    if carrier is not None:
        inside = carrier.label.removeprefix(f"{region.label}/")
        text += f" Most of it is in {inside}."
    if region.verdict in (UNSURE, NOT_COMPARABLE) and region.reason:
        word = "Not certain" if region.verdict == UNSURE else "Not comparable"
        text += f" {word}: {region.reason}."
    return text + _other_kernels(region, told) + _exact(region, besides=told)


def causes_in_words(region: RegionComparison) -> str:
    """Those that push where the region went, the largest first; then what holds against it."""
    change = region.delta_ns
    worth = [c for c in region.causes if abs(c.delta_ns) >= _WORTH_A_WORD * abs(change) and c.kind != "other"]
    along = [c for c in worth if (c.delta_ns > 0) == (change > 0)]
    against = [c for c in worth if (c.delta_ns > 0) != (change > 0)]
    return ", ".join(_cause(c) for c in [*along[:_MOST_CAUSES], *against[:1]])


def _cause(cause: Cause) -> str:
    prefix = {"new kernel": "new kernel ", "gone kernel": "no more ", "new copy": "new copy ", "gone copy": "no more "}
    return f"{prefix.get(cause.kind, '')}{cause.what} ({signed(cause.delta_ns)})"


def _other_kernels(region: RegionComparison, besides: str = "") -> str:
    """Kernels that do the work of others, whether it takes longer or not."""
    least = _WORTH_NAMING * (region.after_ns or 0)
    found = [pair for pair in region.pairs if pair.how in (ORDER, GRAPH) and _weight(pair) >= least]
    found = sorted(found, key=lambda pair: -_weight(pair))[:2]
    told = [text for pair in found if (text := replaced_names(pair)) not in besides]
    return f" Replaced: {', '.join(told)}." if told else ""


def _weight(pair: KernelPair) -> float:
    return max(sum(use.time_ns for use in uses) for uses in (pair.before, pair.after))


def _exact(region: RegionComparison, besides: str = "") -> str:
    """What is counted and changed, unless it was said."""
    told = [describe_exact(one) for one in region.exact_changes]
    new = [text for text in told if text not in besides and text.split(" ", 1)[1] not in besides]
    return f" Counted: {', '.join(new)}." if new else ""
