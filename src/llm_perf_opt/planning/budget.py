"""Time as people type it: `60s`, `2m`, `1m30s`, `1.5h`, or plain seconds."""

from __future__ import annotations

import math
import re

from llm_perf_opt.errors import UserError

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|sec|s|min|m|h)?\s*", re.ASCII)


def parse_seconds(text: str) -> float:
    """Seconds of a duration; a `UserError` says how to write one."""
    plain = text.strip().lower()
    parts = _PART.findall(plain)
    whole = _PART.sub("", plain)
    bare = [number for number, unit in parts if not unit]
    if not parts or whole or (bare and len(parts) > 1):
        raise _not_a_time(text)
    seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
    if not 0 < seconds < math.inf:
        raise _not_a_time(text)
    return seconds


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


def _not_a_time(text: str) -> UserError:
    return UserError(f"{text!r} is not a time.", "Write it as 60s, 2m, 1m30s or 0.5h.")
