"""llm-perf-opt: per-region truth from Nsight Systems and Nsight Compute recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_perf_opt.version import __version__

if TYPE_CHECKING:
    from os import PathLike

    from llm_perf_opt.export.notebook import LoadedReport

__all__ = ["__version__", "load"]


def load(path: str | PathLike[str]) -> LoadedReport:
    """Read a finished report back: a `report.json`, or the directory that holds one.

    Its `.regions`, `.kernels` and `.metrics` are data frames, of pandas or polars.
    """
    from llm_perf_opt.export.notebook import LoadedReport
    from llm_perf_opt.report.json_report import read_report

    return read_report(path, LoadedReport)
