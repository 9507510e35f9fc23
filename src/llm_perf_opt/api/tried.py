"""What became of the fixes of a run that were tried (`try.json`), put into its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from llm_perf_opt.regions.fixes import Fix
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.untrusted import read_json

TRIAL = "try.json"
_FIELDS = ("name", "verdict", "reason", "gain", "predicted_gain", "outputs", "stage", "before", "after")
_PLAIN = (str, int, float, type(None))
_RANKS = ("better", "same", "worse", "unsure", "refused", "not applied", "failed")  # the first is shown


def with_tried(report: NCUProfileRegionReport, run: Path) -> NCUProfileRegionReport:
    """A file that makes no sense says nothing."""
    if not report.answer.fixes:
        return report
    try:
        levers = [lever for lever in read_json(run / TRIAL)["levers"] if lever["verdict"] in _RANKS]
        fixes = [attrs.evolve(fix, tried=_best(fix, levers)) for fix in report.answer.fixes]
    except (OSError, ValueError, KeyError, TypeError):
        return report
    return attrs.evolve(report, answer=attrs.evolve(report.answer, fixes=fixes))


def _best(fix: Fix, levers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the levers that stand for a fix, the one that went best."""
    fitting = [lever for lever in levers if fix.rule in lever["rules"]]
    if not fitting:
        return None
    best = min(fitting, key=lambda lever: (_RANKS.index(lever["verdict"]), -(lever.get("gain") or 0.0)))
    return {name: best.get(name) for name in _FIELDS if isinstance(best.get(name), _PLAIN)}
