"""Nsight Compute's `.ncu-rep`, through NVIDIA's own reader.

Every action keeps its whole NVTX stack in every domain, so one kernel-replay report serves all regions.
Actions of one report may carry different metrics. A metric's `rollup_operation()` says how it combines
over the units of the chip, and that is also how plain counters combine over launches; percentages,
rates and ratios (metrics with a sub-type) are averaged, weighted by time, never added.

NVIDIA's reader is native code and trusts its input, so it runs in a process of its own (`ncu_worker`),
with limits on memory and on how long it may be silent. What comes back is JSON, checked like any input.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from llm_perf_opt.diagnosis import diagnose
from llm_perf_opt.errors import MissingTool, UnreadableInput
from llm_perf_opt.readers import ncu_worker
from llm_perf_opt.readers.device_facts import device_facts
from llm_perf_opt.readers.ncu_container import read_container
from llm_perf_opt.readers.plausible import LARGEST_DEVICE
from llm_perf_opt.regions.columns import Action, CounterSet, MetricInfo, Rule

_LONGEST_SILENCE = 8.0  # seconds without a result; every report seen gives hundreds a second
_LONGER_PER_BYTE = 1e-8  # seconds: opening a report of a gigabyte may take longer
_MOST_ANSWER = 64 << 20  # bytes, and sixteen times the report: it answered with a tenth of it at the most

Progress = Callable[[int], None]


def read_ncu_rep(path: Path, source: str, *, progress: Progress | None = None) -> CounterSet:
    """Read a report. Raises `UnreadableInput` for a damaged file, `MissingTool` without the reader."""
    container = read_container(path, source)
    counters = CounterSet(source=source, kind="ncu-rep", actions=[])
    counters.environment = {"tool": "Nsight Compute", "gpus": {}}
    try:
        with path.open("rb") as file:
            for result in _results(path, file, source):
                counters.actions.append(_action(result, counters))
                if progress is not None:
                    progress(1)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _damaged(source, f"its answer makes no sense ({type(error).__name__})") from error
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


# -- the process ------------------------------------------------------------------------------------


def _results(path: Path, file: IO[bytes], source: str) -> Iterator[dict[str, Any]]:
    """The results as the process tells them, one by one; what ends it early is an error with its cause."""
    size = path.stat().st_size
    # -P: nothing beside the file or in the working directory may be imported in place of a library.
    argv = [sys.executable, "-P", str(Path(ncu_worker.__file__)), ncu_worker.utf8_name(str(path.resolve()), file)]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(file.fileno(),)
    )
    ended = False
    try:
        for line in _lines(process, source, _LONGEST_SILENCE + _LONGER_PER_BYTE * size, _MOST_ANSWER + 16 * size):
            result = json.loads(line)
            if "missing" in result:
                raise MissingTool(
                    f"{source} is an Nsight Compute report, and the package that reads them is not installed.",
                    "Install NVIDIA's reader: pip install ncu-report  (an installed ncu brings it, too), or export the report: ncu --import FILE --csv --page raw",
                )
            if "error" in result:
                raise _damaged(source, f"it gave up on it ({result['error']})")
            if ended := "end" in result:
                break
            yield result
    finally:
        # Also where the caller stops listening; a process that has said everything is on its way out.
        if not ended:
            process.kill()
        assert process.stdout is not None
        process.stdout.close()
        code = process.wait()
    if not ended:
        raise _damaged(source, f"it crashed on it ({_how(code)})")


def _lines(process: subprocess.Popen[bytes], source: str, patience: float, most: int) -> Iterator[bytes]:
    """Whole lines of the process, until it ends or is silent for too long."""
    assert process.stdout is not None
    held, heard = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        last = time.monotonic()
        while True:
            if not selector.select(max(patience - (time.monotonic() - last), 0)):
                raise _damaged(source, f"it did not answer for {patience:.0f} s")
            part = process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            heard += len(part)
            if heard > most:
                raise _damaged(source, "it answers without an end")
            if not part:
                break
            *lines, held = (held + part).split(b"\n")
            if lines:
                last = time.monotonic()
            yield from lines
    # Its output has ended: let it say itself how.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)


def _how(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _damaged(source: str, what: str) -> UnreadableInput:
    return UnreadableInput(
        f"{source} is a damaged Nsight Compute report: NVIDIA's reader was tried, and {what}.",
        "Copy the file again, or profile again.",
    )


# -- from its answer to columns ---------------------------------------------------------------------


def _action(result: dict[str, Any], counters: CounterSet) -> Action:
    action = Action(
        kind=result["kind"],
        name=result["name"],
        device=result["device"],
        passes=result["passes"],
        push_pop=dict(result["push_pop"]),
        start_end=dict(result["start_end"]),
        metrics=dict(result["metrics"]),
        kernels_inside=result.get("kernels_inside"),
        rules=[
            Rule(rule["rule"], rule["title"], rule["message"], rule["estimated_speedup_percent"])
            for rule in result["rules"]
        ],
    )
    if action.device is not None and not 0 <= action.device <= LARGEST_DEVICE:
        action.device = None
    if action.device is not None and "gpu" in result:
        counters.environment["gpus"][action.device] = result["gpu"]
        if "attributes" in result:
            counters.gpu_facts.setdefault(action.device, device_facts(result["gpu"], result["attributes"].get))
    if action.kind == "kernel":
        action.demangled, action.mangled, action.short = (result[name] for name in ("demangled", "mangled", "short"))
        action.grid, action.block = (_triple(result[name]) for name in ("grid", "block"))
        action.shared_memory = result["shared_memory"]
    for name, (unit, rollup) in result["info"].items():
        counters.metric_info.setdefault(name, MetricInfo(unit=unit, rollup=rollup))
    for identifier, shown in result["sections"]:
        action.sections.append(identifier)
        known = counters.section_metrics.setdefault(identifier, [])
        known += [name for name in dict.fromkeys(shown) if name not in known]
    return action


def _triple(sizes: list[int] | None) -> tuple[int, int, int] | None:
    if sizes is None:
        return None
    x, y, z = sizes
    return x, y, z


def _name_processes(counters: CounterSet, pids: list[int], pid_of: list[int] | None) -> None:
    if pid_of is None or len(pid_of) != len(counters.actions):
        if len(pids) > 1:
            counters.diagnostics.append(diagnose("UNKNOWN_PROCESSES", source=counters.source, processes=len(pids)))
        if len(pids) != 1:
            return
        pid_of = pids * len(counters.actions)
    for action, pid in zip(counters.actions, pid_of, strict=True):
        action.process = pid
