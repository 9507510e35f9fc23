"""The text of the lines that a report names, for a run that was made here and now.

Never for a recording that somebody gives: the files it names are those of another machine, or whatever its author wants
to be read and shown here.
"""

from __future__ import annotations

import linecache
from functools import cache
from pathlib import Path

from attrs import evolve

from llm_perf_opt.regions.fixes import LineRecord
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.rundir.secrets import without_secret_text

_LARGEST = 5_000_000  # bytes of a source file
_LONGEST = 200  # characters of a line


def with_source(report: NCUProfileRegionReport) -> NCUProfileRegionReport:
    """The report with the text of its lines."""
    for region in (region for scope in report.scopes for region in scope.regions):
        if region.performance is not None and region.performance.lines:
            lines = [evolve(line, text=_text(line)) for line in region.performance.lines]
            region.performance = evolve(region.performance, lines=lines)
    linecache.clearcache()
    _is_source.cache_clear()
    return report


def _text(line: LineRecord) -> str:
    if not _is_source(line.file):
        return ""
    return without_secret_text(linecache.getline(line.file, line.line).strip())[:_LONGEST]


@cache
def _is_source(file: str) -> bool:
    path = Path(file)
    try:
        return path.is_absolute() and path.suffix == ".py" and path.is_file() and path.stat().st_size <= _LARGEST
    except (OSError, ValueError):
        return False
