"""How far runs of one program are apart on this machine, learned from pairs of runs in which nothing changed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.comparing.comparison import Comparison
from llm_perf_opt.comparing.side import Side
from llm_perf_opt.files import cache_folder, write_text
from llm_perf_opt.untrusted import read_json

_FILE = "compare-floors.json"
_VERSION = 1
_KEPT = 50  # differences of a region, the last
_MOST_PROGRAMS = 200


def program_of(side: Side) -> str:
    """The same for the same command on the same GPUs; recordings without a command are known by their regions."""
    outermost = sorted(key for key, region in side.regions.items() if region.parent is None)
    what = [list(side.gpus), list(side.command) or outermost]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def learned_spreads(side: Side, place: Path | None = None) -> dict[str, float]:
    """By region: the spread between runs, as a standard deviation of logarithms."""
    found = {}
    for region, differences in _read(place).get(program_of(side), {}).items():
        count = len(differences)
        # Of one difference next to nothing is known: the true spread may be three times as large.
        spread = math.sqrt(sum(d * d for d in differences) / count / 2)
        found[region] = spread * (1 + 2 / count)
    return found


def learn(comparison: Comparison, side: Side, place: Path | None = None) -> int:
    """Keep how far the two runs of a comparison are apart; how many regions that were."""
    programs = _read(place)
    regions = programs.pop(program_of(side), {})
    programs[program_of(side)] = regions  # the newest last
    added = 0
    for region in comparison.regions:
        if region.change is not None and region.change > -1:
            known = regions.setdefault(region.key, [])
            known.append(round(math.log1p(region.change), 6))
            del known[:-_KEPT]
            added += 1
    kept = dict(list(programs.items())[-_MOST_PROGRAMS:])
    file = _place(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"version": _VERSION, "programs": kept}, indent=1) + "\n")
    return added


def _place(place: Path | None) -> Path:
    return place or cache_folder() / _FILE


def _read(place: Path | None) -> dict[str, dict[str, list[float]]]:
    """What is there; a file that makes no sense is as good as none."""
    try:
        content: Any = read_json(_place(place))
        programs: Mapping[str, Any] = content["programs"]
        return {
            str(program): {
                str(region): [float(d) for d in differences if abs(float(d)) < 10][-_KEPT:]
                for region, differences in regions.items()
                if differences
            }
            for program, regions in programs.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
