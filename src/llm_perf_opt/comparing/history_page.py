"""`history.html`: a line a region over all runs, with the runs at which it changed. No script, no network."""

from __future__ import annotations

import math
from typing import Any

from llm_perf_opt.comparing.history import Change, ProgramHistory, RegionHistory
from llm_perf_opt.comparing.sentences import percent
from llm_perf_opt.regions.names import visible
from llm_perf_opt.report.plain_page import plain_page
from llm_perf_opt.report.text import duration

_REGIONS = 24  # of a program
_PROGRAMS = 12
_WIDTH, _HEIGHT = 600.0, 90.0


def render_history_html(programs: list[ProgramHistory]) -> str:
    """The page."""
    shown = [
        {
            "command": visible(" ".join(program.command) or "recordings without a command", 160),
            "gpus": ", ".join(visible(gpu, 60) for gpu in program.gpus),
            "runs": len(program.runs),
            "regions": [_line(region) for region in program.regions[:_REGIONS]],
            "hidden": max(len(program.regions) - _REGIONS, 0),
        }
        for program in programs[:_PROGRAMS]
    ]
    hidden = max(len(programs) - _PROGRAMS, 0)
    page = plain_page("llm_perf_opt.comparing", "history.html").render(programs=shown, hidden=hidden)
    return page.lstrip()


def describe_change(change: Change) -> str:
    """`+12 % (40 ms → 44.8 ms) since RUN: launches 300 → 372`."""
    counts = f": {', '.join(change.counts)}" if change.counts else ""
    if change.before is None or change.after is None or change.change is None:
        return f"since {visible(change.run, 60)}{counts}"
    numbers = f"{duration(change.before)} → {duration(change.after)}"
    return f"{percent(change.change, signed=True)} ({numbers}) since {visible(change.run, 60)}{counts}"


def _line(region: RegionHistory) -> dict[str, Any]:
    times = [point.time_ns for point in region.points]
    low, high = min(times), max(times)
    low, high = (low * 0.9, high * 1.1) if high < 1.2 * low else (0.0, high * 1.1)
    span = high - low or 1.0
    step = _WIDTH / max(len(times) - 1, 1)
    places = [(round(n * step, 1), round(_HEIGHT * (1 - (time - low) / span), 1)) for n, time in enumerate(times)]
    runs = [point.run for point in region.points]
    return {
        "name": visible(region.key, 120),
        "last": duration(times[-1]),
        "source": region.source,
        "points": " ".join(f"{x},{y}" for x, y in places),
        "dots": [
            {"x": x, "y": y, "title": f"{visible(r, 60)}: {duration(t)}"}
            for (x, y), r, t in zip(places, runs, times, strict=True)
        ],
        "marks": [
            round(runs.index(change.run) * step - step / 2, 1) for change in region.changes if not _only_counts(change)
        ],
        "changes": [describe_change(change) for change in region.changes],
        "least": duration(low),
        "most": duration(high),
    }


def _only_counts(change: Change) -> bool:
    return change.change is None or math.isnan(change.change)
