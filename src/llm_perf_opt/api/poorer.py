"""A report is not replaced by one that says less (its recordings are gone, or the patterns match nothing), nor that of
a run by one of something else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from llm_perf_opt.api.inputs import expand
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.rundir.layout import PACKED
from llm_perf_opt.untrusted import read_json

_LARGEST = 1 << 30  # bytes of the report that is there
_ROLES = {"nsys-sqlite": "timeline", "kineto": "timeline", "ncu-rep": "counters", "ncu-csv": "counters"}


def why_kept(report: NCUProfileRegionReport, out: Path, *, matched: bool) -> str:
    """Why the report in a folder says more than this one; empty where it does not, or where there is none."""
    try:
        there = read_json(out / "report.json", _LARGEST)
        had_regions = any(scope["regions"] for scope in there["scopes"])
        inputs = [(str(one["path"]), str(one["kind"])) for one in there["inputs"]]
        run = there["environment"].get("run", {}).get("started_at")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    if had_regions and not matched and any(report.selection.values()):
        return "no region matches these patterns, and the report that is there has regions"
    now = [(str(one["path"]), str(one["kind"])) for one in report.inputs]
    if run and run != _started(report) and not {_plain(path) for path, _ in inputs} & {_plain(path) for path, _ in now}:
        return "it belongs to the run in this folder, and this one is made from other recordings"
    if _roles(inputs) - _roles(now) and (run == _started(report) if run else _has_recordings(out)):
        gone = sorted({_plain(path) for path, _ in inputs} - {_plain(path) for path, _ in now})
        are = "is" if len(gone) == 1 else "are"
        return f"it was also made from {', '.join(gone) or 'more recordings'}, which {are} gone or cannot be read"
    return ""


def _roles(inputs: list[tuple[str, str]]) -> Counter[str]:
    return Counter(_ROLES.get(kind, kind) for _, kind in inputs)


def _plain(path: str) -> str:
    for ending in PACKED:
        path = path.removesuffix(ending)
    return path


def _started(report: NCUProfileRegionReport) -> Any:
    facts = report.environment.get("run")
    return facts.get("started_at") if isinstance(facts, dict) else None


def _has_recordings(folder: Path) -> bool:
    """A run directory without a manifest: what lies in it is what its report was made from."""
    try:
        return bool(expand(folder))
    except UnreadableInput:
        return False
