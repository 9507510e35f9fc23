"""llm-perf-opt: per-region truth from Nsight Systems and Nsight Compute recordings."""

from __future__ import annotations

from llm_perf_opt.version import __version__

# Not from `typing`: every command begins here, and answers to Ctrl-C only after it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

    from llm_perf_opt.api.frames import LoadedReport

__all__ = ["__version__", "load"]


def load(path: str | PathLike[str]) -> LoadedReport:
    """Read a finished report back: a `report.json`, or the directory that holds one.

    Its `.regions`, `.kernels` and `.metrics` are data frames, of pandas or polars.
    """
    from llm_perf_opt.api.frames import LoadedReport
    from llm_perf_opt.report.json_report import read_report

    return read_report(path, LoadedReport)
