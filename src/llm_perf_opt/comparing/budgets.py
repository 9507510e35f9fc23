"""Budgets: what regions may take at most, from a TOML file that is kept with the program.

    [decode_step]
    time = "12ms"
    launches = 900
    "peak memory" = "20GB"

A table is a region pattern; it has to match something. A time is over its budget only where its interval is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.comparing.comparison import RegionComparison
from llm_perf_opt.comparing.side import BYTES, COUNTED, Side
from llm_perf_opt.errors import UserError
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.report.text import duration, quantity
from llm_perf_opt.untrusted import read_text

TIME = "time"
KEPT, OVER, UNSURE = "kept", "over", "unsure"
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)")
_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 6e10}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B")
_POWERS = "kMGT"


@define(frozen=True)
class Limit:
    """One line of a budget."""

    pattern: str
    what: str  # TIME or one of COUNTED
    most: float

    def shown(self, value: float) -> str:
        if self.what == TIME:
            return duration(value)
        return quantity(value, "byte") if self.what in BYTES else f"{value:,.6g}"


def read_budgets(path: Path) -> list[Limit]:
    """Raises UserError where the file is not what it should be."""
    try:
        content = tomllib.loads(read_text(path, 1 << 20))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} contains no budgets that can be read: {error}.", "See docs/compare.md.") from error
    found = []
    for pattern, limits in content.items():
        if not isinstance(limits, dict):
            raise UserError(f"{path}: {pattern} is not a table.", f'Write one table per region: ["{pattern}"]')
        RegionFilter.of([pattern], [])  # refuses what is no pattern
        found += [Limit(pattern, what, _amount(path, what, most)) for what, most in limits.items()]
    return found


def _amount(path: Path, what: str, value: Any) -> float:
    text = str(value).strip().removeprefix("<=").strip()
    if what == TIME and (time := _TIME.fullmatch(text)):
        return float(time[1]) * _UNITS[time[2]]
    if what in COUNTED:
        if what in BYTES and (size := _SIZE.fullmatch(text)):
            base = 1024 if size[3] else 1000
            power = _POWERS.index(size[2].replace("K", "k")) + 1 if size[2] else 0
            return float(size[1]) * float(base**power)
        if re.fullmatch(r"\d+(\.\d+)?(e\d+)?", text):
            return float(text)
    if what != TIME and what not in COUNTED:
        raise UserError(f"{path}: there is no budget of {what!r}.", f"Choose from time, {', '.join(COUNTED)}.")
    form = '"12ms"' if what == TIME else '"20GB" or a number' if what in BYTES else "a number"
    raise UserError(f"{path}: {what} = {value!r} is not an amount.", f"Write {form}.")


def check_budgets(limits: list[Limit], side: Side, regions: list[RegionComparison]) -> list[dict[str, Any]]:
    """Every limit at every region it matches, of the new side."""
    intervals = {region.key: region for region in regions}
    found = []
    for limit in limits:
        chosen = RegionFilter.of([limit.pattern], [])
        matched = [region for region in side.regions.values() if _is_meant(chosen, region.key, region.path)]
        if not matched:
            names = ", ".join(list(side.regions)[:5])
            raise UserError(f"The budget of {limit.pattern!r} matches no region.", f"There are {names}.")
        for region in matched:
            if limit.what == TIME:
                times = next((region.times[s] for s in _order(intervals.get(region.key), region.times)), None)
                value = None if times is None else times.typical
            else:
                value = region.counts.get(limit.what)
            state = UNSURE if value is None else _state(limit, value, intervals.get(region.key))
            found.append(
                {
                    "region": region.key,
                    "what": limit.what,
                    "most": limit.most,
                    "value": value,
                    "state": state,
                    "text": f"{limit.what} of {region.key}: "
                    + ("not recorded" if value is None else limit.shown(value))
                    + f", budget {limit.shown(limit.most)}",
                }
            )
    return found


def _is_meant(chosen: RegionFilter, key: str, path: tuple[str, ...]) -> bool:
    """The regions that the pattern names, without all that lies inside them."""
    domain, at, _ = key.partition("@")
    domain = domain if at and "/" not in domain else ""
    return chosen.keeps(domain, list(path)) and not (len(path) > 1 and chosen.keeps(domain, list(path[:-1])))


def _order(region: RegionComparison | None, times: Mapping[str, Any]) -> list[str]:
    first = [region.source] if region is not None and region.source in times else []
    return [*first, *times]


def _state(limit: Limit, value: float, region: RegionComparison | None) -> str:
    if value <= limit.most:
        return KEPT
    if limit.what != TIME or region is None or region.interval is None or region.before_ns is None:
        return OVER
    # Half of the interval of the change, around the time that was found.
    low, high = region.interval
    half = (high - low) / 2 / 2**0.5
    return OVER if value * (1 - half) > limit.most else UNSURE
