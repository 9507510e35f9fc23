"""Checks a request and finds its tools, before anything is created or launched."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import attrs

from llm_perf_opt.analysis.report_options import ReportOptions
from llm_perf_opt.api.reporting import check_patterns
from llm_perf_opt.capture.context import Tools
from llm_perf_opt.errors import NOTEBOOK_FIX, MissingTool, UserError
from llm_perf_opt.nsight.help_text import validate
from llm_perf_opt.nsight.ncu.argv import ncu_arguments, without_unknown_defaults
from llm_perf_opt.nsight.ncu.rank_options import in_lockstep
from llm_perf_opt.nsight.nsys.argv import nsys_arguments
from llm_perf_opt.nsight.tools import Asked, Tool, known_options
from llm_perf_opt.planning.by_hand import instances_to_take
from llm_perf_opt.request import ProfileRequest, ServingRequest

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")  # as a shell takes it before a command

_WITHOUT_GPU = "Profile on a machine that has one. On this one: llm-perf measure -- CMD times each stage by the host's clock, and llm-perf demo shows a full report."


def ready(request: ProfileRequest, asked: Asked | None = None) -> tuple[ProfileRequest, Tools]:
    """Check a request and find its tools, before anything is created or launched. `asked`: the tools, since before.

    The request comes back with defaults of ours left out that the installed ncu does not know.
    """
    check_program(request.command)
    check_load(request.serving)
    if not (request.timeline.enable or request.counters.enable or request.measure.enable):
        raise UserError(
            "Neither a timeline nor counters were requested, so there is nothing to do.",
            "Set pipeline.nsys.enable=true or pipeline.ncu.enable=true.",
        )
    check_patterns(request.report, ncu_expressions=request.counters.enable)
    instances_to_take(request.counters.sample, 1)
    try:
        with asked or Asked(nsys=request.timeline.enable, ncu=request.counters.enable) as answers:
            tools = Tools(*answers.tools())
    except MissingTool as error:
        if not request.timeline.enable or _may_have_gpu():
            raise
        # Where there is nothing to profile, installing the tools leads nowhere.
        raise MissingTool(f"{error.message} There is no NVIDIA GPU on this machine either.", _WITHOUT_GPU) from error
    if tools.nsys is not None:
        _refuse_unknown(nsys_arguments("run", options=request.timeline.options), tools.nsys)
    if tools.ncu is not None:
        known = known_options(tools.ncu)
        options = without_unknown_defaults(request.counters.options, known)
        if request.counters.lockstep is not None:
            options = in_lockstep(options, request.counters.lockstep, known, str(tools.ncu))
        _refuse_unknown(ncu_arguments("run", options=options), tools.ncu)
        request = attrs.evolve(request, counters=attrs.evolve(request.counters, options=options))
    return request, tools


def _may_have_gpu() -> bool:
    devices = (path for pattern in ("nvidia*", "dxg") for path in Path("/dev").glob(pattern))
    return shutil.which("nvidia-smi") is not None or any(devices)


def check_program(command: list[str]) -> None:
    """Refuse a command that cannot be started."""
    if not command:
        raise UserError("There is no program to run.", "Give it at the end, after --, as in: -- python my_model.py")
    by_python = Path(command[0]).name.startswith("python") and command[1:2]
    if (program := (by_python or command)[0]).endswith(".ipynb"):
        raise UserError(f"{program} is a notebook, not a program.", NOTEBOOK_FIX)
    if shutil.which(command[0]) is None:
        raise UserError(f"There is no program {command[0]!r} on this machine.", _how_to_start(command))


def _how_to_start(command: list[str]) -> str:
    """What to type instead of a command that a shell, or a person, would have understood."""
    first, rest = command[0], command[1:]
    if _VARIABLE.match(first):
        return f"To set a variable for the program: -- {shlex.join(['env', *command])}"
    if Path(first).is_file():
        if first.endswith(".py"):
            return f"It is a file: -- {shlex.join(['python', first, *rest])}"
        return (
            f"It is a file that cannot be run as it is: chmod +x {shlex.quote(first)}, or name what runs it before it."
        )
    if Path(first).is_dir():
        return f"It is a folder: name a program in it, as in: -- python {shlex.quote(str(Path(first, 'main.py')))}"
    if not rest and len(first.split()) > 1 and shutil.which(first.split()[0]) is not None:
        return f"Leave out the quotes: -- {first} (a line that needs a shell: -- {shlex.join(['sh', '-c', first])})"
    return "Check the spelling, or give its full path."


def check_load(asked: ServingRequest) -> None:
    """Refuse a load generator that cannot be started."""
    try:
        words = shlex.split(asked.load_command or "")
    except ValueError as error:
        problem = f"--load-command {asked.load_command!r} cannot be read: {error}."
        raise UserError(problem, "Check its quotes.") from error
    if asked.load_command is not None and (not words or shutil.which(words[0]) is None):
        raise UserError(f"There is no load generator {asked.load_command!r} on this machine.", "Give its full path.")


def _refuse_unknown(arguments: list[str], tool: Tool) -> None:
    for diagnosis in validate(arguments, known_options(tool), str(tool)):
        if diagnosis.severity == "error":
            raise UserError(diagnosis.message, diagnosis.fix)


def known_patterns(request: ProfileRequest) -> ReportOptions:
    """The options of the report without expressions that only ncu can evaluate."""
    options = request.report
    return attrs.evolve(
        options,
        include=[p for p in options.include if not p.startswith("ncu:")],
        exclude=[p for p in options.exclude if not p.startswith("ncu:")],
    )
