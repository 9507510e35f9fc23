"""Takes the recordings of a run: a light timeline first, then counters of a few launches where it says they pay.

Every step is noted in the run directory before it starts and judged by what it left behind, not by its
exit code. A step that fails does not undo the one before: what was captured stays.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from attrs import define

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd, build_ncu_raw_cmd
from llm_perf_opt.nsight.nsys import gpu_metrics as traffic
from llm_perf_opt.nsight.nsys.argv import (
    NsysOptions,
    build_nsys_cmd,
    build_nsys_export_cmd,
    build_nsys_stats_cmd,
    build_nsys_stop_cmd,
)
from llm_perf_opt.nsight.nsys.argv import environment as nsys_environment
from llm_perf_opt.nsight.nsys.recording_size import recording_bytes
from llm_perf_opt.nsight.outcome import Finished, Outcome, clean, evaluate
from llm_perf_opt.nsight.progress import Progress, ProgressReader
from llm_perf_opt.nsight.tools import Tool, library_path_for
from llm_perf_opt.process import redirect
from llm_perf_opt.process.supervise import Ended, GivenUp, run_aside, run_supervised
from llm_perf_opt.readers.nsys_sqlite import refuse_truncated
from llm_perf_opt.rundir.directory import RunDirectory
from llm_perf_opt.rundir.log_cleaning import clean_logs
from llm_perf_opt.rundir.manifest import Step

REDIRECT = Path(redirect.__file__)
_EXPORT_TIMEOUT_S = 1800
_LOG_KEPT = 2 << 20  # of a log, what is looked at for messages
_LAST_WORDS = 12  # lines of a failed program that are shown


@define
class Captured:
    """What a step gave."""

    outcome: Outcome
    ended: Ended
    file: Path | None = None


@define
class Plain:
    """How a command ended that no profiler watched."""

    ended: Ended
    code: ExitCode | None  # None: all is well
    last_words: list[str]  # what it said at the end


Tell = Callable[[str], None]


def _silent(_: str) -> None:
    """Nobody is listening."""


def run_plainly(run: RunDirectory, command: list[str], tell: Tell = _silent) -> Plain:
    """The workload alone. Its output goes to `stage1.log`. `tell`: hears what an interruption does."""
    step = run.begin("stage1", command, ".")
    log = run.path / "stage1.log"
    ended = run_supervised(command, log=log, tell=tell, held=run.handles)
    clean_logs([log], command)
    step.exit_code, step.seconds = ended.exit_code, round(ended.seconds, 2)
    code: ExitCode | None = None
    if ended.interrupted:
        code = ExitCode.INTERRUPTED
    elif ended.exit_code in (ExitCode.BAD_INPUT, ExitCode.MISSING_TOOL):
        code = ExitCode(ended.exit_code)  # stage 1 speaks the same codes
    elif ended.exit_code:
        code = ExitCode.WORKLOAD_FAILED
    step.status = "done" if code is None else "failed"
    run.save()
    _stop_if_given_up(ended)
    words = [line for line in _tail(log).splitlines() if line.strip()]
    return Plain(ended, code, [clean(line) for line in words[-_LAST_WORDS:]])


def record_timeline(
    run: RunDirectory,
    command: list[str],
    nsys: Tool,
    options: NsysOptions,
    *,
    environment: Mapping[str, str],
    timeout_s: float | None = None,
    max_bytes: int = 0,
    tell: Tell = _silent,
    progress: Callable[[Progress], None] = lambda _: None,
    meanwhile: Callable[[Path], None] = lambda _: None,
) -> Captured:
    """The timeline, exported: `nsys/run.nsys-rep`, `nsys/run.sqlite` and the kernel summary.

    `meanwhile`: called again and again while nsys runs, with the file that holds the process id of the program.
    Where nsys refuses to sample the GPUs, and did not start the program, it is asked again without that.
    """
    folder = run.path / "nsys"
    workload_log = run.path / "workload.log"
    # nsys prints between the lines of the program, so the program's own output goes elsewhere.
    program_pid = (folder / ".program.pid").resolve()
    shim = [sys.executable, "-I", str(REDIRECT.resolve()), str(workload_log.resolve()), str(program_pid)]
    session = options.session_new or f"llm-perf-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    options = attrs.evolve(options, session_new=session)
    argv = build_nsys_cmd(folder / "run", [*shim, *command], nsys=nsys.path, options=options)
    step = run.begin("nsys", argv, "nsys")
    log = folder / "nsys.log"
    ended = run_supervised(
        argv,
        log=log,
        environment={**environment, **nsys_environment(options), **_library_path(nsys)},
        timeout_s=timeout_s,
        program_pid=program_pid,
        program_log=workload_log,
        tell=tell,
        stop_command=build_nsys_stop_cmd(nsys.path, session),
        too_large=lambda guard: 0 < max_bytes < recording_bytes(guard),
        held=run.handles,
        follow={log: _following(None, progress)},
        meanwhile=lambda: meanwhile(program_pid),
    )
    # A program may remove what it finds: it must not be started again because the note of its start is gone.
    started = program_pid.exists() or not folder.is_dir() or bool(_size(workload_log))
    program_pid.unlink(missing_ok=True)
    clean_logs([log, workload_log], command)
    outcome = _judge(run, step, "nsys", argv, ended, log, workload_log)
    _stop_if_given_up(ended)
    asked = options.gpu_metrics_set is not None and outcome.status == "nothing"
    why = traffic.refused(_tail(log)) if asked and not (started or ended.interrupted or ended.timed_out) else None
    if why is not None:
        step.status, step.diagnostics = "refused", [why]
        run.save()
        tell("  nsys cannot sample what the GPU moves; once more without that")
        return record_timeline(
            run,
            command,
            nsys,
            traffic.without_sampling(options),
            environment=environment,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            tell=tell,
            progress=progress,
            meanwhile=meanwhile,
        )
    return Captured(outcome, ended, None if outcome.status == "nothing" else export_timeline(run, nsys, ended))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def export_timeline(run: RunDirectory, nsys: Tool, capture: Ended | None = None) -> Path | None:
    """nsys's recording of a run as `nsys/run.sqlite`, and the kernel summary; None where that failed.

    `capture`: how the recording ended, where it was made just now.
    """
    folder = run.path / "nsys"
    log, sqlite = folder / "nsys.log", folder / "run.sqlite"
    # Under another name until it is whole: a stump would be taken for the timeline.
    unfinished = folder / ".run.sqlite.tmp"
    export = build_nsys_export_cmd(nsys.path, folder / "run.nsys-rep", unfinished)
    step = run.begin("export", export, "nsys")
    exported = run_aside(
        export, output=log, environment=_library_path(nsys), timeout_s=_EXPORT_TIMEOUT_S, held=run.handles
    )
    step.exit_code, step.seconds = exported.exit_code, round(exported.seconds, 2)
    if (why := _not_exported(exported, unfinished)) is None:
        unfinished.replace(sqlite)
        step.files = {sqlite.name: sqlite.stat().st_size}
    else:
        unfinished.unlink(missing_ok=True)
        severity = "warning" if exported.interrupted else "error"
        told = f"nsys could not turn its recording into SQLite: {why}. The recording itself is kept."
        again = f"Try it by hand, it will say why: {shlex.join(export)}"
        step.diagnostics = [Diagnosis("EXPORT_FAILED", severity, told, again)]
    step.status = "done" if sqlite.exists() else "nothing"
    run.save()
    _stop_if_interrupted(exported, capture)
    if not sqlite.exists():
        return None
    write_summary(run, nsys, sqlite)
    return sqlite


def write_summary(run: RunDirectory, nsys: Tool, sqlite: Path) -> None:
    """Begin to write the kernels of a timeline as nsys prints them; see `run.aside`."""
    summary = sqlite.with_name("summary_cuda_gpu_kern_sum.csv")
    _begin_table(run, "stats", build_nsys_stats_cmd(nsys.path, sqlite), summary, _library_path(nsys))


def record_counters(
    run: RunDirectory,
    command: list[str],
    ncu: Tool,
    name: str,
    options: NcuOptions,
    expressions: Sequence[str],
    *,
    environment: Callable[[], Mapping[str, str]],
    timeout_s: float | None = None,
    expected: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    tell: Tell = _silent,
    ended_on_purpose: Callable[[], str] = lambda: "",
) -> Captured:
    """Counters of the chosen launches: `ncu/<name>.ncu-rep`.

    `environment`: asked for right before the program is started. `ended_on_purpose`: asked at the end for where the
    program ended itself, as it was told to; "" where it did not.
    """
    folder = run.path / "ncu"
    log, workload_log = folder / f"{name}.log", folder / f"{name}-workload.log"
    logged = attrs.evolve(options, extra_args=(*options.extra_args, "--log-file", str(log)))
    argv = build_ncu_cmd(folder / name, command, ncu=ncu.path, options=logged, nvtx_expr=list(expressions))
    step = run.begin("ncu", argv, "ncu", name)
    ended = run_supervised(
        argv,
        log=workload_log,
        environment=environment(),
        timeout_s=timeout_s,
        follow={log: _following(expected, progress)},
        tell=tell,
        held=run.handles,
    )
    clean_logs([log, workload_log], command)
    mode = options.replay_mode or "kernel"
    outcome = _judge(run, step, "ncu", argv, ended, log, workload_log, mode, ended_on_purpose())
    _stop_if_given_up(ended)
    report = folder / f"{name}.ncu-rep"
    if outcome.status == "nothing" or not report.exists():
        return Captured(outcome, ended)
    write_raw(run, ncu, report)
    return Captured(outcome, ended, report)


def write_raw(run: RunDirectory, ncu: Tool, report: Path) -> None:
    """Begin to write the counters of a report as ncu prints them; see `run.aside`.

    `raw.csv` is that of the first capture, which most runs have alone.
    """
    folder = report.parent
    first = not (folder / "raw.csv").exists() and not any(
        step.name == "raw" and step.status == "running" for step in run.manifest.steps
    )
    table = folder / ("raw.csv" if first else f"raw-{report.stem}.csv")
    _begin_table(run, "raw", build_ncu_raw_cmd(ncu.path, report), table, {}, of=report.stem)


def _following(expected: int | None, progress: Callable[[Progress], None]) -> Callable[[str], None]:
    """Tells of the profiler's progress, line by line of its log."""
    reader = ProgressReader(expected)

    def follow(line: str) -> None:
        if (state := reader.feed(line)) is not None:
            progress(state)

    return follow


def first_failure(outcomes: list[Outcome]) -> ExitCode:
    """The exit code of a run from those of its steps: the first that is not 0."""
    return next((o.exit_code for o in outcomes if o.exit_code != ExitCode.DONE), ExitCode.DONE)


def _judge(
    run: RunDirectory,
    step: Step,
    tool: str,
    argv: list[str],
    ended: Ended,
    log: Path,
    workload_log: Path,
    replay_mode: str = "kernel",
    ended_on_purpose: str = "",
) -> Outcome:
    folder = log.parent
    files = {name: size for name, size in _files(folder).items() if tool == "nsys" or _is_of(name, log.stem)}
    code = ended.exit_code
    finished = Finished(
        tool="ncu" if tool == "ncu" else "nsys",
        argv=argv,
        exit_code=code,
        output=_tail(log),
        workload_output=_tail(workload_log),
        files=files,
        timed_out=ended.timed_out,
        interrupted=ended.interrupted,
        too_large=ended.too_large,
        ended_on_purpose=ended_on_purpose,
        replay_mode=replay_mode,
    )
    outcome = evaluate(finished)
    step.status, step.exit_code, step.seconds = outcome.status, code, round(ended.seconds, 2)
    step.files, step.diagnostics = files, outcome.diagnoses
    run.save()
    return outcome


def _is_of(name: str, capture: str) -> bool:
    """Does a file belong to this capture? One folder may hold several of ncu's."""
    return name in (f"{capture}.ncu-rep", f"{capture}.log", f"{capture}-workload.log")


def _files(folder: Path) -> dict[str, int]:
    try:
        return {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    except OSError:  # somebody removed the folder
        return {}


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _LOG_KEPT, 0))
        return file.read().replace(b"\r", b"\n").decode("utf-8", "replace")


def _library_path(nsys: Tool) -> dict[str, str]:
    extra = library_path_for(nsys.path)
    if extra is None:
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(p for p in (extra, os.environ.get("LD_LIBRARY_PATH", "")) if p)}


def _not_exported(exported: Ended, file: Path) -> str | None:
    """Why there is no whole SQLite file; None where there is one."""
    if exported.timed_out:
        return f"it did not end within {_EXPORT_TIMEOUT_S:g} s"
    if exported.interrupted:
        return "it was interrupted"
    if exported.exit_code != 0 or not file.exists():
        return f"it ended with code {exported.exit_code}" + ("" if file.exists() else " and left nothing")
    try:
        refuse_truncated(file, "the file")  # an exit code of 0 proves nothing
    except UserError as error:
        return error.message.rstrip(".")
    return None


def _stop_if_given_up(ended: Ended) -> None:
    """After the second interrupt nothing more is started; the step is noted by then."""
    if ended.given_up:
        raise GivenUp


def _stop_if_interrupted(ended: Ended, before: Ended | None) -> None:
    """A step that only turns a recording into something else: the run ends here, with the recording.

    `before`: the capture; where that was interrupted already, this is the second time.
    """
    if ended.interrupted:
        raise GivenUp if ended.given_up or (before is not None and before.interrupted) else KeyboardInterrupt


def _begin_table(
    run: RunDirectory, name: str, argv: list[str], target: Path, environment: Mapping[str, str], of: str = ""
) -> None:
    """Begin a summary of a capture by the tool itself, beside the steps that follow: none of them needs it.

    Its absence loses nothing, so a failure is only noted. `of`: the name of the capture where there may be several.
    """
    step = run.begin(name, argv, target.parent.name, of)
    # Under another name until it is whole: half a table would be taken for all of it.
    unfinished = target.with_name(f".{target.name}.tmp")
    with contextlib.suppress(OSError):  # half of one, of a run that was killed
        unfinished.unlink(missing_ok=True)
    held = run.handles

    def write(stop: threading.Event) -> Ended:
        try:
            return run_aside(
                argv,
                output=unfinished,
                environment=environment,
                timeout_s=_EXPORT_TIMEOUT_S,
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

    run.aside.start(write, note)
