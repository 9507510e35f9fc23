"""`llm-perf profile -- CMD`: a timeline, counters where they pay, and one report."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.cli.report import FORMATS, add_selection, finish, make_report
from llm_perf_opt.errors import ExitCode, UserError

if TYPE_CHECKING:
    from llm_perf_opt.profiling.capture import Captured, CounterPlan
    from llm_perf_opt.profiling.progress import Progress
    from llm_perf_opt.profiling.run_directory import RunDirectory
    from llm_perf_opt.regions.model import NCUProfileRegionReport

HELP = "profile a program: a timeline, then counters of a few launches of each kernel, and the report"
DESCRIPTION = """\
Runs CMD twice: under Nsight Systems for the timeline, and under Nsight Compute for hardware counters of
the first launches of every kernel inside the chosen regions. Both are joined into one report in a run
directory of its own. A failed step keeps what the others captured.
"""
EXAMPLES = """\
examples:
  llm-perf profile -- python my_model.py
  llm-perf profile --include 'decode*' --out run1 -- python my_model.py --steps 16
  llm-perf profile --no-counters -- torchrun --nproc-per-node 2 train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="*", metavar="CMD", help="the program and its arguments, after --")
    parser.add_argument("--out", metavar="DIR", help="run directory (default: tmp/profile-output/<date-time>)")
    parser.add_argument("--no-counters", action="store_true", help="take the timeline only")
    parser.add_argument(
        "--launches", metavar="N", type=int, default=3, help="launches of each kernel to profile (default 3)"
    )
    parser.add_argument(
        "--metrics",
        metavar="LIST",
        default="",
        help="ncu metrics, comma separated (default: time, DRAM, L2, bf16 tensor work)",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=float, help="seconds after which a step is stopped; what it captured is kept"
    )
    add_selection(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 6 where no region matches")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.profiling.capture import record_counters, record_timeline, worst
    from llm_perf_opt.profiling.run_directory import RunDirectory
    from llm_perf_opt.profiling.vendor.tools import find_ncu, find_nsys

    if not arguments.command:
        raise UserError(
            "There is no program to profile.", "Give it after --, as in: llm-perf profile -- python my_model.py"
        )
    if shutil.which(arguments.command[0]) is None:
        raise UserError(
            f"There is no program {arguments.command[0]!r} on this machine.",
            "Check the spelling, or give its full path.",
        )
    nsys = find_nsys()
    ncu = None if arguments.no_counters else find_ncu()
    settings = {k: v for k, v in vars(arguments).items() if k not in ("run", "verb", "command")}
    directory = RunDirectory.create(Path(arguments.out) if arguments.out else None, arguments.command, settings)
    directory.manifest.tools = {t.name: f"{t.version} ({t.path})" for t in (nsys, ncu) if t is not None}
    directory.save()
    say = _Speaker(arguments.json)
    say(f"run directory: {directory.path}")
    say(f"timeline: {nsys} runs the program …")
    timeline = record_timeline(directory, arguments.command, nsys, timeout_s=arguments.timeout)
    say.step(timeline)
    outcomes = [timeline.outcome]
    stopped = timeline.ended.interrupted or timeline.ended.timed_out
    if timeline.file is not None and ncu is not None and not stopped:
        seen = make_report([str(timeline.file)], arguments)
        plan = plan_counters(seen, arguments)
        if talks_between_processes(seen):
            say(
                "counters: skipped, because the processes talk to each other with NCCL: ncu runs kernels one at a time "
                "over all processes, and collectives would wait for each other for ever. Profile one rank alone for counters."
            )
        elif plan is None:
            say("counters: skipped, because no region with kernels was found to profile.")
        else:
            say(f"counters: {ncu} profiles at least {plan.expected:,} launches in {len(plan.expressions)} regions …")
            counters = record_counters(
                directory, arguments.command, ncu, plan, timeout_s=arguments.timeout, progress=say.progress
            )
            say.step(counters)
            outcomes.append(counters.outcome)
            stopped = counters.ended.interrupted
    code = worst(outcomes)
    directory.finish("interrupted" if stopped else "done" if code == ExitCode.DONE else "failed")
    return _report(directory, arguments, code)


def _report(directory: RunDirectory, arguments: argparse.Namespace, code: ExitCode) -> int:
    """The report of what was captured; without anything, the reasons."""
    diagnoses = [d for step in directory.manifest.steps for d in step.diagnostics]
    try:
        report = make_report([str(directory.path)], arguments)
    except UserError:
        if arguments.json:
            told = [{"code": d.code, "severity": d.severity, "message": d.message, "fix": d.fix} for d in diagnoses]
            print(
                json.dumps({"out": str(directory.path), "matched": False, "diagnostics": told, "exit_code": int(code)})
            )
        return int(code if code != ExitCode.DONE else ExitCode.NOTHING_CAPTURED)
    stopped = any(d.code in ("TIMED_OUT", "INTERRUPTED") for d in diagnoses)
    for diagnosis in report.diagnostics:
        if stopped and diagnosis.code == "NO_KERNELS":
            diagnosis.message = (
                "The timeline holds no GPU kernels: nsys had not saved them when the program was stopped, "
                "and a program that is killed takes them along."
            )
            diagnosis.fix = "Let the program end by itself: fewer steps, a shorter input, or a longer --timeout."
    report.diagnostics = [*diagnoses, *report.diagnostics]
    matched = finish(report, directory.path, list(FORMATS), "ncu/regions", arguments)
    return int(code) or matched


def talks_between_processes(report: NCUProfileRegionReport) -> bool:
    """Several processes with collectives: under ncu they would dead-lock."""
    processes = [scope for scope in report.scopes if scope.scope.startswith("process:")]
    return len(processes) > 1 and any("nccl" in k.kernel_name.lower() for s in processes for k in s.kernels)


def plan_counters(report: NCUProfileRegionReport, arguments: argparse.Namespace) -> CounterPlan | None:
    """Outermost chosen regions with kernels, as ncu expressions; None where there is nothing to profile."""
    from llm_perf_opt.profiling.capture import DEFAULT_METRICS, CounterPlan

    scope = report.main_scope
    regions = scope.regions if scope else []
    chosen = {r.key for r in regions}
    outer = [r for r in regions if r.parent not in chosen and r.inclusive.kernel_count and r.nvtx_include]
    if not outer:
        return None
    metrics = tuple(m.strip() for m in arguments.metrics.split(",") if m.strip()) or DEFAULT_METRICS
    kinds = {k.kernel_name for r in outer for k in r.kernels}
    return CounterPlan(
        expressions=[r.nvtx_include for r in outer],
        process_scope=any(r.adopted_kernels for r in outer),
        launches=arguments.launches,
        metrics=metrics,
        # A kernel has at least one launch configuration: this is the least to expect.
        expected=len(kinds) * arguments.launches,
    )


class _Speaker:
    """Tells on standard error what goes on; one line that is rewritten where it is a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() and not quiet
        self._unfinished_line = False

    def __call__(self, text: str) -> None:
        if not self._quiet:
            print(f"\n{text}" if self._unfinished_line else text, file=sys.stderr)
            self._unfinished_line = False

    def step(self, captured: Captured) -> None:
        from llm_perf_opt.regions.names import visible

        self(f"  {captured.outcome.status} in {captured.ended.seconds:.1f} s")
        for diagnosis in captured.outcome.diagnoses:
            self(f"  {diagnosis.severity}: {visible(diagnosis.message, 400)}")
            if diagnosis.fix:
                self(f"    → {visible(diagnosis.fix, 400)}")

    def progress(self, state: Progress) -> None:
        if self._live:
            print(f"\r  {state.kernels_done:,} launches profiled ", end="", file=sys.stderr, flush=True)
            self._unfinished_line = True
