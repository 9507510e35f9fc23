"""llm-perf-opt: per-region truth from Nsight Systems and Nsight Compute recordings."""

from __future__ import annotations

from llm_perf_opt.version import __version__

# Not from `typing`: every command begins here, and answers to Ctrl-C only after it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Any

    from llm_perf_opt.api.result import Report
    from llm_perf_opt.regions.attribution import Mode

__all__ = ["__version__", "load", "open", "region"]


def open(
    *paths: str | PathLike[str],
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    attribution: Mode | None = None,
) -> Report:
    """A report of everything that `llm-perf report` takes: recordings, a run directory, a `report.json`.

    Several recordings make one report: a timeline and the counters of the same program are joined, several
    ranks are scopes. A folder with a `report.json` is read, not built again, unless `include`, `exclude`
    (region patterns) or `attribution` ("auto", "thread", "process") ask for something else.
    """
    from llm_perf_opt.api.result import open_report

    return open_report(*paths, include=include, exclude=exclude, attribution=attribution)


load = open  # the old name


def region(name: Any) -> Any:
    """Mark a part of a program for every profiler that may be watching: a range of the NVTX domain `LLM`.

    `with llm_perf_opt.region("decode"): …` around a block, `@llm_perf_opt.region("decode")` or `@llm_perf_opt.region`
    (which takes its name) on a function. It does nothing where no profiler watches, or where NVTX is not installed.
    """
    from llm_perf_opt.workloads.region_helper import region as make_region

    return make_region(name)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext llm_perf_opt`: the cell magic `%%llm_perf`."""
    from llm_perf_opt.workloads.notebook_cell import register_magic

    register_magic(shell)
