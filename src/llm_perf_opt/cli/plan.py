"""`llm-perf plan -- CMD`: what `profile` would do, with the exact commands and their cost; ncu is not run."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.cli.arguments import values_of
from llm_perf_opt.errors import ExitCode, MissingTool
from llm_perf_opt.json_output import print_json
from llm_perf_opt.regions.names import printable

if TYPE_CHECKING:
    from llm_perf_opt.regions.columns import Timeline
    from llm_perf_opt.request import ProfileRequest

HELP = "show what profile would capture, with exact commands and predicted cost; ncu is not run"
DESCRIPTION = """\
Records the timeline as `profile` does (or reads one you give), chooses the launches worth profiling, and
prints the plan: the exact commands, with launches, passes and seconds of each, and what is left out and
why. ncu is not run. With --timeline neither a GPU nor NVIDIA's tools are needed.
"""
EXAMPLES = """\
examples:
  llm-perf plan -- python my_model.py
  llm-perf plan --timeline run.sqlite --include 'decode*' --budget 60s -- python my_model.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="*", metavar="CMD", help="the program and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt import planning
    from llm_perf_opt.api.reporting import make_report
    from llm_perf_opt.capture.preparation import known_patterns
    from llm_perf_opt.nsight.nvidia_smi import gpu_facts
    from llm_perf_opt.readers.open import read_recording
    from llm_perf_opt.regions.columns import Timeline
    from llm_perf_opt.report.closing import print_closing
    from llm_perf_opt.request import profile_request

    request = profile_request(values_of(arguments), arguments.command)
    about: dict[str, Any] = {"gpus_before": gpu_facts(), "steps": []}
    timelines: dict[Path, Timeline] = {}
    file = (
        Path(request.timeline.recording)
        if request.timeline.recording
        else _take_timeline(request, arguments, about, timelines)
    )
    ncu = _ncu_path()
    if file not in timelines:
        recording = read_recording(file, launch_config=True, marker_ranges=True)
        timelines |= {file: recording} if isinstance(recording, Timeline) else {}
    seen = make_report(
        [str(file)], known_patterns(request), quiet=True, calibration=request.calibration, known=timelines
    )
    plan = planning.decide(request, seen, timelines.get(file), planning.facts_of(about))
    skipped = plan.skipped if plan.table is None else ""  # a table says itself what is left out
    answer: dict[str, Any] = {"timeline": str(file), "skipped": skipped}
    answer |= planning.as_json(plan, request.command, ncu=ncu)
    text = planning.describe(plan, request.command, ncu=ncu)
    if request.counters.verify and plan.captures:
        verification = planning.plan_verification(seen, request, plan.captures)
        if isinstance(verification, str):
            text += f"\nNothing would be verified, because {verification}.\n"
        else:
            answer["verification"] = {"name": verification.name, "argv": verification.argv(request.command, ncu)}
            text += "\nto verify, the program once for every pass:\n"
            text += f"  {shlex.join(verification.argv(request.command, ncu))}\n"
    # The commands hold names of ranges and kernels.
    if arguments.json:
        print_json(answer)
    else:
        print(printable(text), end="")
        print_closing("", None, "llm-perf profile -- CMD  (with the same options)", leaves_page=False)
    return int(ExitCode.NOTHING_MATCHED if request.strict and skipped else ExitCode.DONE)


def _take_timeline(
    request: ProfileRequest, arguments: argparse.Namespace, about: dict[str, Any], timelines: dict[Path, Timeline]
) -> Path:
    """The timeline, in a run directory of its own; its report comes with it. `timelines`: where it is put, read."""
    import attrs

    from llm_perf_opt.capture.preparation import ready
    from llm_perf_opt.capture.session import run_profile
    from llm_perf_opt.errors import UserError
    from llm_perf_opt.rundir.directory import RunDirectory

    only = attrs.evolve(
        request,
        measure=attrs.evolve(request.measure, enable=False),
        counters=attrs.evolve(request.counters, enable=False),
        strict=False,
    )
    only, tools = ready(only)
    directory = RunDirectory.create(
        *(Path(only.out) if only.out else None, only.command, {}),
        made_by="plan",
        typed=arguments.typed,
        show_command=request.show_command,
    )
    code = run_profile(
        only, tools, directory, quiet=arguments.quiet or arguments.json, silent=True, timelines=timelines
    )
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
