"""Nsight Compute's `.ncu-rep`, through NVIDIA's own reader.

Every action keeps its whole NVTX stack in every domain, so one kernel-replay report serves all regions.
Actions of one report may carry different metrics. A metric's `rollup_operation()` says how it combines
over the units of the chip, and that is also how plain counters combine over launches; percentages,
rates and ratios (metrics with a sub-type) are averaged, weighted by time, never added.

NVIDIA's reader is native code and trusts its input, so it runs in a process of its own (`sandbox`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers import sandbox
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.readers.ncu_native import native_results
from llm_perf_opt.readers.sandbox import Limits, Notes
from llm_perf_opt.regions.columns import CounterSet

Progress = Callable[[int], None]


def read_ncu_rep(path: Path, source: str, *, progress: Progress | None = None) -> CounterSet:
    """Read a report. Raises `UnreadableInput` for a damaged file, `MissingTool` without the reader."""
    path = path.resolve()
    limits, job = Limits(path.stat().st_size), f"{__name__}:read_here"
    counters: CounterSet = sandbox.call(
        job, [str(path), source], source, limits, lambda _, results: progress and progress(results)
    )
    return counters


def read_here(path: str, source: str, *, notes: Notes) -> CounterSet:
    """The same, in this process."""
    container = read_container(Path(path), source)
    counters = CounterSet(source=source, kind="ncu-rep", actions=[])
    counters.environment = {"tool": "Nsight Compute", "gpus": {}}
    for action in native_results(Path(path), source, counters):
        counters.actions.append(action)
        notes("rows", 1)
    if len(counters.actions) < container.results:
        # The reader leaves out what it cannot parse, with a line on stderr at the most.
        raise UnreadableInput(
            f"{source} is a damaged Nsight Compute report: NVIDIA's reader finds {len(counters.actions)} of its "
            f"{container.results} results.",
            "Copy the file again, or profile again.",
        )
    _name_processes(counters, container.process_ids, container.process_of_result)
    if not counters.actions:
        counters.diagnostics.append(diagnose("NO_RESULTS", source=source))
    return counters


def _name_processes(counters: CounterSet, pids: list[int], pid_of: list[int] | None) -> None:
    if pid_of is None or len(pid_of) != len(counters.actions):
        if len(pids) > 1:
            counters.diagnostics.append(diagnose("UNKNOWN_PROCESSES", source=counters.source, processes=len(pids)))
        if len(pids) != 1:
            return
        pid_of = pids * len(counters.actions)
    for action, pid in zip(counters.actions, pid_of, strict=True):
        action.process = pid
