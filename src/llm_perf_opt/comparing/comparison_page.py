"""`compare.html`: both runs on one page, one file, no script, no network, every name escaped."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_perf_opt.comparing.comparison import Comparison, KernelPair, RegionComparison
from llm_perf_opt.comparing.comparison_md import headline, verdict_word
from llm_perf_opt.comparing.exact import describe_exact
from llm_perf_opt.comparing.sentences import percent, signed
from llm_perf_opt.comparing.side import Floats
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.plain_page import plain_page
from llm_perf_opt.report.text import duration

_DETAILED = 8  # regions with a waterfall and kernels
_ROWS = 400
_KERNELS = 40
_BINS = 48
_TONES = {"worse": "wait", "better": "work"}


def render_comparison_html(found: Comparison) -> str:
    """The page."""
    shown = sorted((r for r in found.regions if r.decides), key=lambda r: -abs(r.delta_ns) * max(r.instances[1], 1))
    longest = max((max(r.before_ns or 0, r.after_ns or 0) for r in shown), default=1) or 1
    page = plain_page("llm_perf_opt.comparing", "comparison.html").render(
        found=found,
        title=f"{visible(found.base, 60)} → {visible(found.new, 60)}",
        headline=headline(found),
        word=verdict_word(found),
        tone=_TONES.get(found.verdict, ""),
        bars=[_bars(region, longest) for region in shown[:24]],
        details=[_detail(region) for region in shown[:_DETAILED]],
        rows=[_row(region) for region in found.regions[:_ROWS]],
        hidden=max(len(found.regions) - _ROWS, 0),
        signed=signed,
    )
    return page.lstrip()


def _bars(region: RegionComparison, longest: float) -> dict[str, Any]:
    return {
        "region": region,
        "word": verdict_word(region),
        "tone": _TONES.get(region.verdict, ""),
        "change": _change(region),
        "before": round(100 * (region.before_ns or 0) / longest, 2),
        "after": round(100 * (region.after_ns or 0) / longest, 2),
    }


def _change(region: RegionComparison) -> str:
    return "–" if region.change is None else percent(region.change, signed=True)


def _row(region: RegionComparison) -> dict[str, Any]:
    interval = "–" if region.interval is None else " … ".join(percent(edge, signed=True) for edge in region.interval)
    return {
        "indent": "  " * min(region.depth, 20),
        "name": visible(region.key.rsplit("/", 1)[-1] if region.depth else region.key, 80),
        "region": region,
        "word": verdict_word(region),
        "tone": _TONES.get(region.verdict, ""),
        "change": _change(region),
        "interval": interval,
        "counted": ", ".join(map(describe_exact, region.exact_changes)),
    }


def _detail(region: RegionComparison) -> dict[str, Any]:
    steps = waterfall(region)
    return {
        "region": region,
        "waterfall": steps,
        "axis_is_cut": bool(steps) and not _from_zero(region, steps),
        "kernels": [_kernel(pair) for pair in _largest(region.pairs)[:_KERNELS]],
        "more": max(len(region.pairs) - _KERNELS, 0),
        "exact": region.exact_changes,
        "counted": list(map(describe_exact, region.exact_changes)),
        "histogram": histogram(*region.times),
    }


def _from_zero(region: RegionComparison, steps: list[dict[str, Any]]) -> bool:
    """Are the bars of before and after as long as the times they stand for?"""
    before, after = steps[0]["width"] * (region.after_ns or 0), steps[-1]["width"] * (region.before_ns or 0)
    return bool(abs(before - after) <= 0.01 * max(before, after))


def waterfall(region: RegionComparison) -> list[dict[str, Any]]:
    """From the time before, cause by cause, to the time after: where each bar begins, and how long it is, in percent."""
    if region.before_ns is None or region.after_ns is None:
        return []
    steps, at = [("before", "", 0.0, region.before_ns)], region.before_ns
    for cause in region.causes:
        steps.append((cause.kind, cause.what, at, at + cause.delta_ns))
        at += cause.delta_ns
    steps.append(("after", "", 0.0, region.after_ns))
    edges = [edge for _, _, start, end in steps[1:-1] for edge in (start, end)] or [region.before_ns]
    # A change of a hundredth must still be seen: the axis begins near the least of all edges.
    least, most = min(*edges, region.before_ns, region.after_ns), max(*edges, region.before_ns, region.after_ns)
    low = max(least - 0.15 * (most - least), 0.0) if most > least else 0.0
    span = (most - low) or 1.0

    def place(value: float) -> float:
        return round(100 * max(value - low, 0.0) / span, 3)

    return [
        {
            "kind": kind,
            "what": what,
            "x": place(min(start, end)),
            "width": max(round(place(max(start, end)) - place(min(start, end)), 3), 0.2),
            "tone": "busy" if kind in ("before", "after") else "idle" if end > start else "good",
            "text": duration(end) if kind in ("before", "after") else signed(end - start),
        }
        for kind, what, start, end in steps
    ]


def histogram(before: Floats, after: Floats) -> dict[str, Any] | None:
    """Instances of both sides as two distributions, mirrored; None where there are too few to have one."""
    if min(len(before), len(after)) < 5:
        return None
    both = np.concatenate([before, after])
    low, high = (float(edge) for edge in np.quantile(both, [0.005, 0.995]))
    if high <= low:
        return None
    edges = np.linspace(low, high, _BINS + 1)
    sides = []
    for times in (before, after):
        counts = np.histogram(np.clip(times, low, high), edges)[0] / len(times)
        sides.append(counts)
    top = max(float(counts.max()) for counts in sides)
    return {
        "bars": [
            [round(40 * float(count) / top, 2) for count in counts]  # of the 40 units that each half is high
            for counts in sides
        ],
        "low": duration(low),
        "high": duration(high),
        "medians": [
            round(100 * (float(np.clip(np.median(t), low, high)) - low) / (high - low), 2) for t in (before, after)
        ],
    }


def _largest(pairs: list[KernelPair]) -> list[KernelPair]:
    return sorted(pairs, key=lambda pair: -abs(pair.delta_ns))


def _kernel(pair: KernelPair) -> dict[str, Any]:
    def names(uses: tuple[Any, ...]) -> str:
        return ", ".join(visible(use.short, 80) for use in uses[:4]) + (" …" if len(uses) > 4 else "")

    same = pair.before and pair.after and names(pair.before) == names(pair.after)
    return {
        "name": names(pair.after or pair.before)
        if same or not (pair.before and pair.after)
        else f"{names(pair.before)} → {names(pair.after)}",
        "how": "" if pair.how == "signature" else pair.how,
        "calls": [f"{sum(use.calls for use in uses):,.6g}" if uses else "–" for uses in (pair.before, pair.after)],
        "times": [sum(use.time_ns for use in uses) if uses else None for uses in (pair.before, pair.after)],
        "delta": signed(pair.delta_ns),
        "tone": "more" if pair.delta_ns > 0 else "less",
    }
