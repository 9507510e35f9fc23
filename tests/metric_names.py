"""Metric names against what a chip really has: the recorded output of `ncu --query-metrics`, or a list of libcupti.

ncu drops a misspelt metric without a word and exits 0, so that a wrong name in the catalogue would never be seen.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from attrs import define

Known = Mapping[str, str]  # base name -> kind ("counter" | "ratio" | "throughput", "" where the list does not say)

_CHIP = re.compile(r"^Chip\b\s*(?P<chip>\w*)|^Device\b.*?\((?P<device>\w+)\)\s*$")
_NAME = re.compile(r"^(?:\w+\.Triage\w+\.)?[a-z][a-z0-9]*__[A-Za-z0-9_]+(?:\.[a-z0-9_.]+)?$")
_SUGGESTED = 3


@define(frozen=True)
class UnknownMetric:
    """A metric that does not exist on the chip, and those most like it."""

    name: str
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} (nearest: {', '.join(self.nearest)})" if self.nearest else self.name


def parse_query_metrics(text: str) -> dict[str, dict[str, str]]:
    """Base names and kinds of each chip, from what `ncu --query-metrics [--chips …]` prints.

    Rows have four columns (name, type, unit, description); a description may go on over further, indented
    lines. A list cut down to its first column works too: words that are no metric names are passed over.
    """
    chips: dict[str, dict[str, str]] = {}
    current: dict[str, str] = chips.setdefault("", {})
    for line in text.splitlines():
        if header := _CHIP.match(line):
            name = (header["chip"] or header["device"] or "").lower()
            current = chips.setdefault(name, {})
            continue
        words = line.split(None, 2)
        if line[:1].isspace() or not words or not _NAME.match(words[0]):
            continue
        base = words[0].partition(".")[0] if "Triage" not in words[0] else words[0]
        kind = words[1].lower() if len(words) > 1 else ""
        known = kind if kind in ("counter", "ratio", "throughput") else ""
        if known or base not in current:
            current[base] = known
    return {chip: names for chip, names in chips.items() if names}


def unknown_metrics(metrics: Iterable[str], known: Known) -> list[UnknownMetric]:
    """Metrics that a chip with these names does not have, each with the nearest that it has."""
    return [UnknownMetric(m, _nearest(m, known)) for m in metrics if not exists(m, known)]


def exists(metric: str, known: Known) -> bool:
    """Does the chip have this metric? A base name alone is one: ncu adds the suffixes."""
    if metric.startswith(tuple(_suffixes()["elsewhere"])):
        return True
    base, _, suffix = metric.partition(".")
    if base not in known:
        return False
    return not suffix or suffix in allowed_suffixes(known[base])


def allowed_suffixes(kind: str) -> tuple[str, ...]:
    """Suffixes of metrics of a kind; those of all kinds where it is not known."""
    table = _suffixes()
    return table[kind] if kind in table else (*table["counter"], *table["ratio"])


def _nearest(metric: str, known: Known) -> tuple[str, ...]:
    base, _, suffix = metric.partition(".")
    if base in known:
        close = difflib.get_close_matches(suffix, allowed_suffixes(known[base]), _SUGGESTED, cutoff=0.0)
        return tuple(f"{base}.{s}" for s in close)
    found = difflib.get_close_matches(base, known, _SUGGESTED, cutoff=0.5)
    return tuple(f"{name}.{suffix}" if suffix and exists(f"{name}.{suffix}", known) else name for name in found)


@cache
def _suffixes() -> dict[str, tuple[str, ...]]:
    raw = tomllib.loads(Path(__file__).with_name("metric_suffixes.toml").read_text(encoding="utf-8"))
    table = {
        kind: tuple(".".join(filter(None, (r, s))) for r in raw[kind]["rollups"] for s in raw[kind]["submetrics"])
        for kind in ("counter", "throughput", "ratio")
    }
    table["elsewhere"] = tuple(raw["elsewhere"]["prefixes"])
    return table
