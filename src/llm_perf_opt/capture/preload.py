"""What the later steps of a run need and the first does not: imported while the program starts for the first time.

One short burst of work at the start of a run that takes many times as long; without it, the user would wait for
the same after the program has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import threading

_LATER = (
    "llm_perf_opt.analysis.build",
    "llm_perf_opt.calibration.store",
    "llm_perf_opt.readers.ncu_rep",
    "llm_perf_opt.readers.stage_files",
    "llm_perf_opt.report.write",
    "llm_perf_opt.report.markdown",
    "llm_perf_opt.report.json_report",
    "llm_perf_opt.report.csv_report",
    "llm_perf_opt.report.html",
    "llm_perf_opt.report.terminal",
    "numpy.ma",
    "rich.console",
    "rich.table",
)


def preload(stop: threading.Event) -> None:
    """Import them, one by one until `stop`; what cannot be imported fails where it is needed."""
    for name in _LATER:
        if stop.is_set():
            return
        with contextlib.suppress(Exception):  # a package of the user's may be broken in any way
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        from llm_perf_opt.metrics.groups import all_groups
        from llm_perf_opt.report.html import template

        for prepare in (all_groups, template):  # each keeps what it has made
            if not stop.is_set():
                prepare()
