"""Reads how far a run is from the lines the profilers print while they work, and from the files they hold open.

Kernel replay takes minutes to hours, and the only sign of life is one line a kernel. The lines come from a
log the program may write into as well, may be cut anywhere and name kernels as the program chose to: what
is not understood is skipped, never an error.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from attrs import define, evolve

from llm_perf_opt.processes import family, open_files

Phase = Literal["starting", "running", "profiling", "report", "done"]

_NUMBER = "[0-9]{1,9}"
_PROFILING = re.compile(
    rf'==PROF== Profiling "(?P<name>.*)" - (?P<index>{_NUMBER})(?: \({_NUMBER}/(?P<total>{_NUMBER})\))?:(?P<rest>[^"]*)$'
)
_PERCENT = re.compile(r"([0-9]{1,3})%")
_PASSES = re.compile(rf" - ({_NUMBER}) pass(?:es)?\b")
_REPLAY_PASS = re.compile(rf"Application replay pass ({_NUMBER})")
_NSYS_BAR = re.compile(rf"\[({_NUMBER})/({_NUMBER})\] \[=*([0-9]{{1,3}})% *\]")
_PHASES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"==PROF== Connected to process"), "running"),
    (re.compile(r"==PROF== Creating report"), "report"),
    (re.compile(r"==PROF== Report: "), "done"),
    (re.compile(r"^Capture range started in the application"), "running"),
    (re.compile(r"^(?:Collecting data\.\.\.|Processing events\.\.\.|Generating '.*\.qdstrm')"), "report"),
    (re.compile(r"^Generated:"), "done"),
)
LINES = (_NSYS_BAR, *(pattern for pattern, _ in _PHASES))  # of how far a profiler is; they quote nothing
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MAX_LINE = 20_000  # demangled names can be long; anything longer is not a progress line
_STREAM_ENDINGS = (".qdstrm", "_storage.dat", ".nsys-rep")  # of recordings
_WINDOW = 32  # kernels differ: the last ones say most about the next


@define(frozen=True)
class Progress:
    """Where a run stands. `None` is not known, never zero."""

    phase: Phase = "starting"
    kernels_done: int = 0
    total: int | None = None  # kernels to come in all; ncu knows it only with `--launch-count`
    passes: int | None = None  # passes the last kernel took, or the number of this program launch in application replay
    kernel: str = ""  # the one being profiled, or the last one
    percent: int | None = None  # of the kernel in phase "profiling", of the report in phase "report"
    seconds_left: float | None = None


class ProgressReader:
    """Fed line by line; answers with the new state where a line changed it."""

    def __init__(self, total: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = Progress(total=total)
        self._planned = total
        self._finished: deque[float] = deque(maxlen=_WINDOW)  # when the last kernels ended
        self._report_since: float | None = None
        self._replay_pass = 0
        self._highest = -1

    @property
    def state(self) -> Progress:
        """Where the run stands now."""
        return self._state

    def feed(self, line: str) -> Progress | None:
        """The state after this line, or None where it says nothing new. Half a line is fine, and so is garbage."""
        if len(line) > _MAX_LINE:
            return None
        line = _ANSI.sub("", line).rstrip("\r\n")
        # a bar is redrawn with carriage returns: only what it shows last counts
        line = line.rsplit("\r", 1)[-1]
        before = self._state
        if match := _PROFILING.search(line):
            self._on_kernel(match)
        elif bars := _NSYS_BAR.findall(line):
            step, steps, percent = (int(text) for text in bars[-1])
            self._on_report((max(step - 1, 0) * 100 + min(percent, 100)) // steps if steps else None)
        else:
            for pattern, phase in _PHASES:
                if pattern.search(line):
                    self._on_phase(phase, line)
                    break
        return self._state if self._state != before else None

    def _on_kernel(self, match: re.Match[str]) -> None:
        index, rest = int(match["index"]), match["rest"]
        total = int(match["total"]) if match["total"] else self._state.total
        if self._planned is not None and not self._replay_pass:
            total = self._planned  # with per-launch-config ncu tells the number of each signature
        replay, passes = _REPLAY_PASS.search(rest), _PASSES.search(rest)
        percents = _PERCENT.findall(rest)
        if replay and int(replay[1]) != self._replay_pass:
            if self._replay_pass and total is None:
                total = self._highest + 1  # every launch of the program has the kernels of the first
            self._replay_pass, self._highest = int(replay[1]), -1
            self._finished.clear()
            self._state = evolve(self._state, kernels_done=0)
        done = self._state.kernels_done
        if replay or passes:
            self._highest = max(self._highest, index)
            # after a failed save ncu counts the same number again: never more than it says
            done = max(done, index + 1)
            self._finished.append(self._clock())
        self._state = evolve(
            self._state,
            phase="profiling",
            kernels_done=done,
            total=total,
            passes=int(replay[1]) if replay else int(passes[1]) if passes else None,
            kernel=match["name"],
            percent=100 if passes or replay else min(int(percents[-1]), 100) if percents else 0,
            seconds_left=self._left(done, total),
        )

    def _left(self, done: int, total: int | None) -> float | None:
        """Time for the kernels still to come; for application replay, for the rest of this launch only."""
        if total is None or len(self._finished) < 2:
            return None
        each = (self._finished[-1] - self._finished[0]) / (len(self._finished) - 1)
        return max(0.0, each * (total - done))

    def _on_phase(self, phase: Phase, line: str) -> None:
        if phase == "report":
            percents = _PERCENT.findall(line)
            self._on_report(min(int(percents[-1]), 100) if percents else None)
        elif phase == "running" and self._state.phase == "profiling":
            return  # one more process of the program: the kernels go on
        else:
            left = 0.0 if phase == "done" else None
            self._state = evolve(self._state, phase=phase, percent=None, seconds_left=left)

    def _on_report(self, percent: int | None) -> None:
        now = self._clock()
        if self._state.phase != "report" or self._report_since is None:
            self._report_since = now
        left = None
        if percent and percent >= 5:  # the first percent are no measure of the rest
            left = (now - self._report_since) * (100 - percent) / percent
        self._state = evolve(self._state, phase="report", percent=percent, seconds_left=left)


def recording_bytes(pid: int) -> int:
    """Bytes of the recordings held open by a process and its descendants; 0 where none can be seen.

    nsys writes its raw stream to a file of the temporary folder and turns it into a report at the end, so the
    output folder tells nothing while it records.
    """
    files = (file for member in family(pid) for file in open_files(member))
    return sum({identity: size for name, size, identity in files if name.endswith(_STREAM_ENDINGS)}.values())
