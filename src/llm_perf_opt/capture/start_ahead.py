"""Starts the program for ncu while nsys still writes down what it saw of the first time.

After the program has ended, nsys writes, its recording is exported, read and planned from. Meanwhile the program can
already import, up to its first CUDA call, where it waits (see profiling/ahead.py). Only where that is sure to give
what the ordinary way gives: one process, and windows of a gate that all begin after that call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import define

from llm_perf_opt import inject as annotate
from llm_perf_opt.capture.ahead import Parked, free_ports
from llm_perf_opt.errors import UserError
from llm_perf_opt.inject import Gate, Named
from llm_perf_opt.nsight.ncu.argv import FOR_ATTACHING
from llm_perf_opt.nsight.tools import Tool, known_options
from llm_perf_opt.planning.automatic import plans
from llm_perf_opt.planning.by_choice import PlannedCapture
from llm_perf_opt.regions.columns import UNKNOWN, Int64s, Timeline, Work
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory

NAME = "run"  # of a capture that is the only one of its plan
_LEAST_LIMIT_S = 60.0
_TIMES_NSYS = 2.0


def can_start(request: ProfileRequest, ncu: Tool | None, environment: Mapping[str, str]) -> bool:
    """May this program be started before there is a plan?"""
    asked = request.counters
    return (
        ncu is not None
        and asked.enable
        and asked.start_ahead
        and asked.gate
        and environment.get("LLM_PERF_RANGES") == "1"
        and plans(request)
        and not asked.options.extra_args  # some may be for the command that launches, some for the one that attaches
        and all(option in known_options(ncu) for option in FOR_ATTACHING)
    )


@define
class Ahead:
    """The program of a run, started ahead as soon as that can be, until it is taken or discarded."""

    directory: RunDirectory
    request: ProfileRequest
    ncu: Tool
    environment: Mapping[str, str]  # for the program
    tell: Callable[[str], None]
    parked: Parked | None = None  # stays here while it is used: whatever happens, `discard` ends it
    _looked: bool = False  # there is nothing more to look for

    @property
    def gate_file(self) -> Path:
        return self.directory.path / "ncu" / f"{NAME}-gate.json"

    @property
    def gate_log(self) -> Path:
        return self.gate_file.with_suffix(".jsonl")

    def look(self, pid_file: Path) -> None:
        """Start the program, once, when its first run is over; called again and again while nsys runs."""
        if not self._looked:
            with contextlib.suppress(OSError):  # somebody removed the folder: whoever needs it will say so
                self._look(pid_file)

    def _look(self, pid_file: Path) -> None:
        pid = _number_in(pid_file)
        if pid is None:
            return
        if _is_alive(pid):  # two of it at a time may get into each other's way
            return
        self._looked = True
        opened = annotate.read_log(self.directory.path / "annotate.jsonl").ranges
        # Others that open ranges may use the GPU as well, and would not be profiled.
        if set(opened) == {pid}:
            self._start()

    def _start(self) -> None:
        port = free_ports()
        if port is None:
            return
        for file in (self.gate_file, self.gate_log):  # of an earlier attempt
            file.unlink(missing_ok=True)
        with contextlib.suppress(UserError):  # the ordinary way will say why
            self.parked = Parked(
                self.request.command,
                self.ncu,
                self.directory.path / "ncu",
                port=port,
                environment={**self.environment, **annotate.waiting_for(self.gate_file, self.gate_log)},
                nvtx_push_pop_scope=self.request.counters.options.nvtx_push_pop_scope,
                held=self.directory.handles,
            )
            self.tell("  it has ended; while nsys writes, it already starts for ncu, up to its first CUDA call")

    def fits(self, captures: Sequence[PlannedCapture], timeline: Timeline, opened: Mapping[int, object]) -> bool:
        """Will it give what the plan wants?"""
        if len(captures) != 1 or captures[0].name != NAME:
            return False
        capture, launched = captures[0], self.request.counters.options
        same = capture.options.nvtx_push_pop_scope == launched.nvtx_push_pop_scope  # that is said at the launch
        return same and capture.gate is not None and begins_after_first_work(capture.gate, timeline, opened)

    def discard(self) -> None:
        """Nothing of it is left; where it was used, nothing is by then."""
        self._looked = True
        if self.parked is not None:
            self.parked.discard()
            self.parked = None
            with contextlib.suppress(OSError):
                self.gate_log.unlink(missing_ok=True)

    def used(self) -> None:
        """It has ended, and what it noted belongs to its capture."""
        self.parked = None

    def limit_s(self) -> float:
        """How long the program may take to its first CUDA call."""
        took = [step.seconds or 0.0 for step in self.directory.manifest.steps if step.name == "nsys"]
        return max(_LEAST_LIMIT_S, _TIMES_NSYS * max(took, default=0.0))


def begins_after_first_work(gate: Gate, timeline: Timeline, opened: Mapping[int, object]) -> bool:
    """Does the GPU work before the first window? Then the first CUDA call is before it as well.

    `opened`: the one process that was seen to open ranges; where the timeline has but one, it may have another number.
    """
    ranges = timeline.ranges
    processes = np.unique(ranges.process).tolist()
    known = [number for number in processes if timeline.processes[number].pid in opened]
    if len(known or processes) != 1:
        return False
    (process,) = known or processes
    work = [_begins(some, process) for some in (timeline.kernels, timeline.copies, timeline.graphs)]
    moments = np.concatenate(work)
    if not len(moments):
        return False
    starts = _starts(gate.windows, timeline, process)
    begins = [
        starts[named][min(turns) - 1] for named, turns in gate.windows.items() if len(starts[named]) >= min(turns)
    ]
    return len(begins) == len(gate.windows) and min(begins) >= int(moments.min())


def _begins(work: Work, process: int) -> Int64s:
    """When the host asked for each piece of work, as far as that is known."""
    asked: Int64s = np.where(work.host_time == UNKNOWN, work.start, work.host_time)
    mine: Int64s = asked[work.process == process]
    return mine


def _starts(named: Collection[Named], timeline: Timeline, process: int) -> dict[Named, list[int]]:
    """When the ranges of some names began in a process, in order."""
    ranges = timeline.ranges
    found: dict[Named, list[int]] = {name: [] for name in named}
    domains, strings = {domain for domain, _ in named}, {name for _, name in named}
    in_domain = np.isin(ranges.domain, [i for i, domain in enumerate(timeline.domains) if domain in domains])
    of_name = np.isin(ranges.name, [i for i, name in enumerate(timeline.strings) if name in strings])
    for one in np.flatnonzero((ranges.process == process) & ~ranges.start_end & in_domain & of_name).tolist():
        name = timeline.domains[int(ranges.domain[one])], timeline.strings[int(ranges.name[one])]
        if name in found:
            found[name].append(int(ranges.start[one]))
    return {name: sorted(starts) for name, starts in found.items()}


def _number_in(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not begun yet, or just being written
        return None


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
