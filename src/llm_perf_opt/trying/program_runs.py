"""Runs of the program in a trial: by themselves or with levers, timed from inside as `measure` does it.

Whatever torch.compile keeps between processes goes into a folder of the trial, so that the first run of a lever pays
for all of its warm-up, and nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import define

from llm_perf_opt import inject
from llm_perf_opt.capture.commands import tail
from llm_perf_opt.capture.context import KeptRun
from llm_perf_opt.capture.gpu_sampler import GpuSampler
from llm_perf_opt.capture.progress_reporter import ProgressReporter
from llm_perf_opt.comparing.collected import collect as collect_side
from llm_perf_opt.comparing.side import Side, Times
from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.outcome import clean
from llm_perf_opt.process.bytecode import BytecodeCache
from llm_perf_opt.process.supervise import run_supervised
from llm_perf_opt.readers.measured import collect, read_measured
from llm_perf_opt.regions.patterns import RegionFilter
from llm_perf_opt.report.text import duration
from llm_perf_opt.request import ProfileRequest
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.log_cleaning import clean_logs
from llm_perf_opt.trying.compiling import spent_ns, without_compiling
from llm_perf_opt.trying.levers import Lever
from llm_perf_opt.trying.loop_steps import with_steps
from llm_perf_opt.trying.process_notes import REPEATED, ProcessNotes, read_notes, use_text
from llm_perf_opt.untrusted import read_text

_FOLDER, LOG = "try", "try/workload.log"
_LARGEST_OUTPUT = 20_000_000
_PATIENCE_S, _PATIENCE = 600.0, 10.0  # beside so many times what the program takes: compiling may take minutes
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@define(eq=False)
class Run:
    """One run of the program."""

    times: Path  # a folder with what its processes timed
    gpus: list[dict[str, Any]]
    notes: ProcessNotes
    seconds: float
    problem: str = ""  # why it failed

    @property
    def repeated(self) -> bool:
        """Were calls of generate() made again in it?"""
        return bool(self.notes.counts.get(REPEATED))


def first_run(kept: KeptRun) -> Run | None:
    """The run that was measured; None where its processes left nothing."""
    notes = read_notes(kept.notes)
    return Run(kept.times, kept.gpus, notes, kept.seconds) if kept.times.is_dir() and notes.processes else None


class ProgramRuns:
    """Starts the program, again and again."""

    def __init__(
        self,
        request: ProfileRequest,
        directory: RunDirectory,
        report_progress: ProgressReporter,
        bytecode: BytecodeCache,
        output: str | None = None,
        first: Run | None = None,
    ) -> None:
        self._request, self._directory, self._report_progress = request, directory, report_progress
        self._bytecode, self._output = bytecode, output
        self._raw = Path()
        self.count = 0
        self.repeat = (0, 0)  # which generate() of the program is called again, and how often
        self.first = first  # the program as it is, if that ran before
        self.look_at = 0  # the call whose launches and kernels are looked at
        self.longest = 0  # tokens that its caches hold at most
        self._alone_s = first.seconds if first else 0.0  # what the program takes as it is

    def __enter__(self) -> ProgramRuns:
        self._raw = Path(tempfile.mkdtemp(prefix="llm-perf-try-"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self._raw, ignore_errors=True)

    def run(self, title: str, levers: Sequence[Lever] = (), *, look: bool = False) -> Run:
        """Once, timed, with notes of what it does and computes. `look`: at the kernels of a step; its times are wrong."""
        self.count += 1
        folder = self._raw / str(self.count)
        times, notes = folder / "times", folder / "notes"
        for place in (times, notes):
            place.mkdir(parents=True)
        request, directory = self._request, self._directory
        mode = request.annotate.mode if request.annotate.mode != "off" else "stages"
        environment = inject.environment(mode, request.annotate.depth, ranges=True, timers=times)
        environment |= {name: value for lever in levers for name, value in lever.environment.items()}
        named = [(lever.name, lever.file) for lever in levers if not lever.command]
        command = next((list(lever.command) for lever in levers if lever.command), request.command)
        # What is named is read from a text; looking at kernels may print into it.
        seen = self._output is None
        environment = inject.with_levers(
            *(environment, notes, named),
            outputs=seen,
            repeat=self.repeat,
            longest=self.longest,
            look_at=self.look_at if seen and look else 0,
        )
        environment |= {name: str(self._raw / name.lower()) for name in _CACHES}
        log = directory.path / LOG
        log.parent.mkdir(exist_ok=True)
        printed_before = log.stat().st_size if log.exists() else 0
        with self._report_progress.work(title, "try"):
            step = directory.begin(_FOLDER, command, _FOLDER, program=command, environment=environment)
            with GpuSampler() as sampler:
                ended = run_supervised(
                    command,
                    log=log,
                    environment={**environment, **self._bytecode.variables()},
                    timeout_s=self._patience(levers),
                    report_progress=self._report_progress,
                    held=directory.handles,
                )
        printed = _tail_from(log, printed_before)
        clean_logs([log], command)
        step.exit_code, step.seconds = ended.exit_code, round(ended.seconds, 2)
        step.status = "failed" if ended.exit_code or ended.timed_out else "done"
        directory.save()
        if ended.interrupted:
            raise KeyboardInterrupt
        problem = ""
        if ended.timed_out:
            problem = f"it was stopped after {duration(1e9 * ended.seconds)}: --timeout allows more"
        elif ended.exit_code:
            lines = [clean(line) for line in tail(log).splitlines() if line.strip()]
            problem = f"the program ended with {ended.exit_code}: {lines[-1][:200] if lines else 'it printed nothing'}"
        if not levers and not problem:
            self._alone_s = max(self._alone_s, ended.seconds)
        noted = read_notes(notes)
        if self._output is not None and not problem:
            use_text(noted, printed if self._output == "stdout" else _written(Path(self._output)))
        return Run(times, sampler.found, noted, ended.seconds, problem)

    def _patience(self, levers: Sequence[Lever]) -> float | None:
        """Workers of a loader, or captured graphs, may deadlock: a run with levers is not waited for without end."""
        asked = self._request.measure.timeout_s
        return asked if asked is not None or not levers else _PATIENCE_S + _PATIENCE * self._alone_s

    def side(self, label: str, runs: Sequence[Run], items: float = 1.0) -> Side | None:
        """Steady instances of some runs, run by run; None where nothing was timed. `items`: times are per so many."""
        file = self._raw / "side.json"
        try:
            collect([run.times for run in runs], file, [run.gpus for run in runs])
            timed = with_steps(without_compiling(read_measured(file)))
            found = collect_side([], [timed], label, RegionFilter())
        except UserError:
            return None
        for region in found.regions.values() if items != 1.0 else ():
            region.times = {source: Times.of([run / items for run in t.runs]) for source, t in region.times.items()}
        return found

    def once_seconds(self, run: Run) -> float:
        """What a run spent on compiling and capturing graphs."""
        file = self._raw / "once.json"
        try:
            collect([run.times], file)
            once = read_measured(file).only_once
        except UserError:
            return 0.0
        return spent_ns(once) / 1e9


def already_set(lever: Lever) -> str:
    """A variable of the lever that the user has set otherwise."""
    return next((name for name, value in lever.environment.items() if os.environ.get(name, value) != value), "")


def _written(file: Path) -> str:
    try:
        return read_text(file, _LARGEST_OUTPUT, errors="replace")
    except (OSError, ValueError) as error:
        raise UserError(f"The output {file} cannot be read: {error}.", "Check --output, or leave it out.") from error


def _tail_from(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read(_LARGEST_OUTPUT).decode("utf-8", "replace")
