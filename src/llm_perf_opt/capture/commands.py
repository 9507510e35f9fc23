"""What the steps do with a profiler's command: evaluate what it left behind, and have it print its own tables.

A command is noted in the run directory before it starts and evaluated by what it left, not by its exit code. A step
that fails does not undo the one before: what was captured stays.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import define

from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight import outcome as outcomes
from llm_perf_opt.nsight.outcome import Finished, Outcome
from llm_perf_opt.nsight.progress import Progress, ProgressReader
from llm_perf_opt.process.supervise import Ended, InterruptedTwice, run_short
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.log_cleaning import clean_logs
from llm_perf_opt.rundir.manifest import Step

EXPORT_TIMEOUT_S = 1800
_LOG_READ = 2 << 20  # of a log, what is searched for messages

ReportProgress = Callable[[Progress], None]


@define
class Captured:
    """What a command of a profiler gave."""

    outcome: Outcome
    ended: Ended
    file: Path | None = None


def finish(ended: Ended, log: Path, program_log: Path, command: list[str], **facts: Any) -> Finished:
    """What is known of a profiler's command that has ended; its logs lose their secrets. `facts`: more of `Finished`."""
    clean_logs([log, program_log], command)
    return Finished(
        exit_code=ended.exit_code,
        output=tail(log),
        workload_output=tail(program_log),
        timed_out=ended.timed_out,
        interrupted=ended.interrupted,
        too_large=ended.too_large,
        **facts,
    )


def evaluate(run: RunDirectory, step: Step, finished: Finished, ended: Ended) -> Outcome:
    """Note in the manifest what became of a profiler's command."""
    outcome = outcomes.evaluate(finished)
    step.status, step.exit_code, step.seconds = outcome.status, ended.exit_code, round(ended.seconds, 2)
    step.files, step.diagnostics = dict(finished.files), outcome.diagnoses
    run.save()
    stop_if_interrupted_twice(ended)
    return outcome


def progress_of(expected: int | None, report: ReportProgress) -> Callable[[str], None]:
    """Takes a profiler's log line by line and reports how far it is."""
    reader = ProgressReader(expected)

    def follow(line: str) -> None:
        if (state := reader.feed(line)) is not None:
            report(state)

    return follow


def files_in(folder: Path) -> dict[str, int]:
    try:
        return {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    except OSError:  # somebody removed the folder
        return {}


def tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _LOG_READ, 0))
        return file.read().replace(b"\r", b"\n").decode("utf-8", "replace")


def stop_if_interrupted_twice(ended: Ended) -> None:
    """After the second interrupt nothing more is started; the step is noted by then."""
    if ended.interrupted_twice:
        raise InterruptedTwice


def start_table(run: RunDirectory, step: Step, argv: list[str], target: Path, environment: Mapping[str, str]) -> None:
    """Start to print a summary of a capture by the tool itself, as a background task: no later step needs it.

    Its absence loses nothing, so a failure is only noted, in `step`.
    """
    # Under another name until it is whole: half a table would be taken for all of it.
    unfinished = target.with_name(f".{target.name}.tmp")
    with contextlib.suppress(OSError):  # half of one, of a run that was killed
        unfinished.unlink(missing_ok=True)
    held = run.handles

    def write(stop: threading.Event) -> Ended:
        try:
            return run_short(
                argv,
                output=unfinished,
                environment=environment,
                timeout_s=EXPORT_TIMEOUT_S,
                errors=subprocess.DEVNULL,
                held=held,
                stop=stop,
            )
        except (UserError, OSError):  # it could not even be started
            return Ended(exit_code=-1, seconds=0.0)

    def note(ended: Ended) -> None:
        step.exit_code, step.seconds = ended.exit_code, round(ended.seconds, 2)
        step.status = "failed" if ended.interrupted else "nothing"  # an interrupted one is worth another try
        with contextlib.suppress(OSError):  # somebody removed the folder
            written = unfinished.stat().st_size if unfinished.exists() else 0
            if ended.exit_code == 0 and written:
                unfinished.replace(target)
                step.status, step.files = "done", {target.name: written}
            else:
                unfinished.unlink(missing_ok=True)

    run.background.start(write, note)
