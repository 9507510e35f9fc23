"""`sections.txt`: a region's counters under ncu's section titles, as text."""

from __future__ import annotations

from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.report.text import full_label, quantity, trust


def render_sections(region: NCUProfileRegion) -> str:
    """All counters of a region; those that belong to no section come last."""
    lines = [full_label(region), ""]
    metrics = region.inclusive.metrics
    if not metrics:
        return "\n".join([*lines, "No counters were collected for this region.", ""])
    seen: set[str] = set()
    for section, content in region.sections.items():
        names = [name for name in content["metrics"] if name in metrics]
        seen.update(names)
        lines += _section(section, names, region)
    rest = [name for name in sorted(metrics) if name not in seen]
    if rest:
        lines += _section("Other counters" if seen else "Counters", rest, region)
    return "\n".join(lines)


def _section(title: str, names: list[str], region: NCUProfileRegion) -> list[str]:
    metrics = region.inclusive.metrics
    width = max(map(len, names), default=0)
    rows = [f"  {n:<{width}}  {quantity(metrics[n].value, metrics[n].unit):>14}  {trust(metrics[n])}" for n in names]
    return [f"Section: {title}", *rows, ""]
