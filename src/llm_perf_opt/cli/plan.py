"""`llm-perf plan -- CMD`: what `profile` would do, with the exact commands and their cost; ncu is not run."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.cli import profile
from llm_perf_opt.errors import ExitCode, MissingTool
from llm_perf_opt.regions.names import printable

if TYPE_CHECKING:
    from llm_perf_opt.planning import Forecast
    from llm_perf_opt.request import ProfileRequest

HELP = "show what profile would capture, with exact commands and predicted cost; ncu is not run"
DESCRIPTION = """\
Takes the timeline as `profile` does (or reads one you give), chooses the launches worth profiling, and
prints the plan: the commands as they would be run, launches, passes and seconds of each, what is left out
and why. ncu is not run. With --timeline neither a GPU nor NVIDIA's tools are needed.
"""
EXAMPLES = """\
examples:
  llm-perf plan -- python my_model.py
  llm-perf plan --timeline run.sqlite --include 'decode*' --budget 60s -- python my_model.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    profile.add_arguments(parser, resumable=False)
    parser.add_argument("--timeline", metavar="FILE", help="plan for this recording instead of taking one")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt import planning
    from llm_perf_opt.api.reporting import make_report
    from llm_perf_opt.capture.preparation import known_patterns
    from llm_perf_opt.nsight.nvidia_smi import gpu_facts
    from llm_perf_opt.planning.automatic import captures_of, forecasts, make_plan, plans
    from llm_perf_opt.planning.by_choice import plan_counters, plan_verification

    request = profile.request_of(arguments)
    about: dict[str, Any] = {"gpus_before": gpu_facts(), "steps": []}
    timeline = Path(arguments.timeline) if arguments.timeline else _take_timeline(request, arguments, about)
    ncu = _ncu_path()
    seen = make_report([str(timeline)], known_patterns(request), quiet=True)
    counters = plan_counters(seen, request)
    plan = None if counters.skipped or not plans(request) else make_plan(timeline, seen, request, about)
    told: dict[str, Any] = {"timeline": str(timeline), "skipped": counters.skipped}
    if plan is not None:
        told |= planning.as_json(plan, request.command, ncu=ncu)
        text = planning.describe(plan, request.command, ncu=ncu)
    else:
        prices = forecasts(counters.captures, seen, about)
        told["captures"] = [
            {
                "name": c.name,
                "launches": c.expected,
                "passes": price.passes.passes if price.passes else None,
                "passes_source": price.passes.source if price.passes else None,
                "seconds": None if price.seconds is None else round(price.seconds, 1),
                "argv": c.argv(request.command, ncu),
            }
            for c, price in zip(counters.captures, prices, strict=True)
        ]
        text = _given(counters.captures, prices, request.command, ncu) or f"No counters: {counters.skipped}.\n"
    captures = captures_of(plan, request) if plan is not None else counters.captures
    if request.counters.verify and captures:
        verification = plan_verification(seen, request, captures)
        if isinstance(verification, str):
            text += f"\nNothing would be verified, because {verification}.\n"
        else:
            told["verification"] = {"name": verification.name, "argv": verification.argv(request.command, ncu)}
            text += "\nto verify, the program once for every pass:\n"
            text += f"  {shlex.join(verification.argv(request.command, ncu))}\n"
    # The commands hold names of ranges and kernels.
    print(json.dumps(told) if arguments.json else printable(text), end="\n" if arguments.json else "")
    return int(ExitCode.NOTHING_MATCHED if arguments.strict and counters.skipped else ExitCode.DONE)


def _take_timeline(request: ProfileRequest, arguments: argparse.Namespace, about: dict[str, Any]) -> Path:
    """The timeline, in a run directory of its own; its report comes with it."""
    import attrs

    from llm_perf_opt.capture.preparation import ready
    from llm_perf_opt.capture.session import run_profile
    from llm_perf_opt.errors import UserError
    from llm_perf_opt.rundir.directory import RunDirectory

    only = attrs.evolve(request, counters=attrs.evolve(request.counters, enable=False), strict=False)
    only, tools = ready(only)
    directory = RunDirectory.create(Path(arguments.out) if arguments.out else None, only.command, {}, made_by="plan")
    code = run_profile(only, tools, directory, quiet=arguments.quiet or arguments.json, silent=True)
    about |= attrs.asdict(directory.manifest)
    timeline = directory.path / "nsys" / "run.sqlite"
    if not timeline.exists():
        raise UserError("There is no timeline to plan from.", f"See {directory.path}/manifest.json", ExitCode(code))
    if not arguments.quiet:
        print(f"timeline: {timeline}", file=sys.stderr)
    return timeline


def _ncu_path() -> str:
    """The ncu the commands would call; its plain name where none is installed here."""
    from llm_perf_opt.nsight.tools import find_ncu

    try:
        return str(find_ncu().path)
    except MissingTool:
        return "ncu"


def _given(captures: list[Any], prices: list[Forecast], command: list[str], ncu: str) -> str:
    """Captures the user chose by hand: the commands, and what is known of their price."""
    from llm_perf_opt.planning import spoken_seconds

    lines = []
    for capture, price in zip(captures, prices, strict=True):
        launches = "launches: not known" if price.launches is None else f"launches: {price.launches:,}"
        passes = f"passes of each: {price.passes if price.passes else 'not known'}"
        seconds = "time: not known" if price.seconds is None else f"about {spoken_seconds(price.seconds)}"
        lines += [f"capture {capture.name} ({launches}; {passes}; {seconds}):"]
        lines += [f"  {shlex.join(capture.argv(command, ncu))}"]
    return "".join(f"{line}\n" for line in lines)
