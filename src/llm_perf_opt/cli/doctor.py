"""`llm-perf doctor`: would profiling work here, and if not, what to type."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.errors import ExitCode
from llm_perf_opt.json_output import print_json

if TYPE_CHECKING:
    from llm_perf_opt.doctor.examine import Examination

HELP = "check whether profiling works here, and what to type if not"
DESCRIPTION = """\
Checks everything that profiling depends on: GPU and driver, nsys and ncu, the permission to read counters,
other profilers in the way, packages, disk space. If there is a GPU, it runs a small kernel under both
profilers. Exit code 0: a timeline and counters work; 3: something is missing, and each line that is not
ok says what to do.
"""
EXAMPLES = """\
examples:
  llm-perf doctor
  llm-perf doctor --no-try               look only; start no profiler
  llm-perf doctor --json > machine.json  everything that was found, for a bug report
"""
_MARKS = {"ok": "green", "warning": "yellow", "missing": "red", "error": "red"}


def run(arguments: argparse.Namespace) -> int:
    import attrs

    from llm_perf_opt.capture.progress_reporter import can_redraw
    from llm_perf_opt.doctor.examine import examine
    from llm_perf_opt.doctor.gather import gather

    live = can_redraw() and not (arguments.json or arguments.quiet)

    def report_progress(text: str) -> None:
        if live:
            print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)

    facts = gather(
        try_it=not arguments.no_try, out=Path(arguments.out) if arguments.out else None, report_progress=report_progress
    )
    report_progress("\r")
    found = examine(facts)
    code = ExitCode.DONE if found.ready.timeline and found.ready.counters else ExitCode.MISSING_TOOL
    if arguments.json:
        content = {
            "ready": {"timeline": found.ready.timeline, "counters": found.ready.counters},
            "summary": found.ready.summary,
            "checks": [attrs.asdict(check) for check in found.checks],
            "facts": attrs.asdict(facts),
            "exit_code": int(code),
        }
        print_json(content, indent=1)
    else:
        _show(found, arguments.quiet)
    return int(code)


def _show(found: Examination, quiet: bool) -> None:
    from rich.markup import escape

    from llm_perf_opt.regions.names import visible
    from llm_perf_opt.report.closing import print_closing
    from llm_perf_opt.report.terminal import console

    out = console()
    for check in found.checks:
        if quiet and check.state == "ok":
            continue
        mark = f"[{_MARKS[check.state]}]{check.state:<8}[/]"
        out.print(f"{mark} {escape(check.name)}: {escape(visible(check.found, 600))}", soft_wrap=True)
        if check.state != "ok":
            if check.why_it_matters:
                out.print(f"         {escape(check.why_it_matters)}", soft_wrap=True)
            out.print(f"         → {escape(visible(check.fix_command, 600))}", soft_wrap=True)
    if not quiet:
        out.print()
        print_closing(found.ready.summary, None, _next_step(found), leaves_page=False)
    else:
        out.print(escape(found.ready.summary), soft_wrap=True)


def _next_step(found: Examination) -> str:
    if found.ready.timeline:
        return f"llm-perf profile {'' if found.ready.counters else '--no-counters '}-- CMD"
    return "llm-perf measure -- CMD  (needs no profiler)"
