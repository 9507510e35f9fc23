"""Runs a small kernel undisturbed and under both profilers: the only proof that profiling works.

Permissions, capabilities and settings only let one guess; drivers, containers and clouds each have rules of
their own. So the real tools are run with the options `llm-perf profile` uses, evaluated as its runs are, and
their recordings are read back.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import attrs

from llm_perf_opt.doctor.machine_facts import Trial
from llm_perf_opt.errors import UserError
from llm_perf_opt.metrics.catalogue import TIME, names_of
from llm_perf_opt.nsight.help_text import KnownOptions
from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd, without_unknown_defaults
from llm_perf_opt.nsight.nsys.argv import build_nsys_cmd, build_nsys_export_cmd
from llm_perf_opt.nsight.outcome import Finished, Outcome, evaluate
from llm_perf_opt.nsight.tools import Tool, library_path_for
from llm_perf_opt.process.ask import ask
from llm_perf_opt.process.supervise import Ended, run_supervised
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import CounterSet, Timeline

TINY_KERNEL = Path(__file__).with_name("tiny_kernel.py")
TIMEOUT_S = 60.0
_GRACE_S = 10.0
_MOST_LOG = 1 << 20
# A time, a count that is never 0, and traffic: each comes from another part of the chip.
INSTRUCTIONS = "sm__inst_executed.sum"
DRAM = names_of("dram_read")  # ncu passes over the names that the chip does not have
METRICS = (TIME, INSTRUCTIONS, *DRAM)


def program() -> list[str]:
    """The command that is profiled."""
    return [sys.executable, "-P", str(TINY_KERNEL)]


def try_undisturbed() -> Trial:
    """Without a profiler: what fails here fails anywhere."""
    began = time.monotonic()
    done = ask(program(), timeout_s=TIMEOUT_S)
    answer = _last_json(done.output)
    ran = done.exit_code == 0
    return Trial(
        "",
        "captured" if ran else "nothing",
        round(time.monotonic() - began, 2),
        timed_out=done.exit_code is None,
        device=str(answer.get("device", "")),
        problem=str(answer.get("error", "")) or ("" if ran else _last_line(done.errors) or "no message"),
    )


def try_timeline(nsys: Tool) -> Trial:
    """Under nsys: a recording with the kernels in it."""
    with tempfile.TemporaryDirectory(prefix="llm-perf-doctor-") as name:
        folder = Path(name)
        log = folder / "nsys.log"
        argv = build_nsys_cmd(folder / "trial", program(), nsys=nsys.path)
        library_path = library_path_for(nsys.path)
        environment = {"LD_LIBRARY_PATH": library_path} if library_path else {}
        ended = run_supervised(argv, log=log, environment=environment, timeout_s=TIMEOUT_S, grace_s=_GRACE_S)
        outcome = _evaluate("nsys", argv, ended, log, log)
        trial = _trial("nsys", outcome, ended)
        if outcome.status == "nothing":
            return trial
        sqlite = folder / "trial.sqlite"
        export = build_nsys_export_cmd(nsys.path, folder / "trial.nsys-rep", sqlite)
        exported = run_supervised(
            export, log=folder / "export.log", environment=environment, timeout_s=TIMEOUT_S, grace_s=_GRACE_S
        )
        if not sqlite.exists():
            last = _last_line(_tail(folder / "export.log"))
            trial.status = "nothing"
            trial.problem = f"nsys export ended with code {exported.exit_code} and wrote nothing: {last}"
            return trial
        return _read(trial, sqlite)


def try_counters(ncu: Tool, known: KnownOptions, timeout_s: float = TIMEOUT_S) -> Trial:
    """Under ncu: a report with counters of the kernels in it."""
    with tempfile.TemporaryDirectory(prefix="llm-perf-doctor-") as name:
        folder = Path(name)
        log, output = folder / "ncu.log", folder / "program.log"
        argv = build_ncu_cmd(
            folder / "trial",
            program(),
            ncu=ncu.path,
            options=without_unknown_defaults(NcuOptions(), known),
            metrics=METRICS,
            extra_args=("--log-file", str(log)),
        )
        ended = run_supervised(argv, log=output, timeout_s=timeout_s, grace_s=_GRACE_S)
        outcome = _evaluate("ncu", argv, ended, log, output)
        trial = _trial("ncu", outcome, ended)
        report = folder / "trial.ncu-rep"
        if outcome.status == "nothing" or not report.exists():
            trial.status = "nothing"
            return trial
        return _read(trial, report)


def _read(trial: Trial, file: Path) -> Trial:
    """The trial with what is in its recording."""
    try:
        recording = read_recording(file)
    except UserError as error:
        return attrs.evolve(trial, status="nothing", problem=error.message)
    if isinstance(recording, Timeline):
        trial.kernels, trial.ranges = len(recording.kernels), len(recording.ranges)
        found = bool(trial.kernels)
    else:
        assert isinstance(recording, CounterSet)
        measured = recording.actions[0].metrics if recording.actions else {}
        trial.kernels = len(recording.actions)
        trial.counters = {name: measured[name] for name in METRICS if name in measured}
        trial.device = next(iter(recording.environment.get("gpus", {}).values()), "")
        found = bool(trial.counters)
    return trial if found else attrs.evolve(trial, status="nothing")


def _trial(under: str, outcome: Outcome, ended: Ended) -> Trial:
    return Trial(
        under,
        outcome.status,
        round(ended.seconds, 2),
        timed_out=ended.timed_out,
        diagnoses=[attrs.asdict(diagnosis) for diagnosis in outcome.diagnoses],
    )


def _evaluate(tool: str, argv: list[str], ended: Ended, log: Path, output: Path) -> Outcome:
    return evaluate(
        Finished(
            tool="ncu" if tool == "ncu" else "nsys",
            argv=argv,
            exit_code=128 - ended.exit_code if ended.exit_code > 128 else ended.exit_code,
            output=_tail(log),
            workload_output=_tail(output),
            files={p.name: p.stat().st_size for p in log.parent.iterdir() if p.is_file()},
            timed_out=ended.timed_out,
            interrupted=ended.interrupted,
        )
    )


def _last_json(output: str) -> dict[str, object]:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                content = json.loads(line)
            except ValueError:
                continue
            return content if isinstance(content, dict) else {}
    return {}


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _MOST_LOG, 0))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
