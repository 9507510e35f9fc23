"""Time as people read it; how they type it is `options.values`."""

from __future__ import annotations

from llm_perf_opt.options.values import parse_seconds as parse_seconds


def spoken_seconds(seconds: float) -> str:
    """A duration as a person says it: `8 s`, `1 min 30 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
