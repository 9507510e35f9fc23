"""`llm-perf profile -- CMD`: a timeline, counters where they pay, and one report."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from llm_perf_opt.cli.kept_options import options_from
from llm_perf_opt.cli.report import add_selection, options_of, positive
from llm_perf_opt.errors import UserError

if TYPE_CHECKING:
    from llm_perf_opt.request import ProfileRequest

HELP = "profile a program: a timeline, then counters of a few launches of each kernel, and the report"
DESCRIPTION = """\
Runs CMD under Nsight Systems for the timeline, plans from it which launches are worth hardware counters,
and runs it under Nsight Compute for those. Both are joined into one report in a run directory of its own.
A failed step keeps what the others captured.
"""
EXAMPLES = """\
examples:
  llm-perf profile -- python my_model.py
  llm-perf profile --annotate stages -- python generate.py       (a program without NVTX ranges)
  llm-perf profile --budget 60s --level bound -- python my_model.py
  llm-perf profile --include 'decode*' --out run1 -- python my_model.py --steps 16
  llm-perf profile --kernel 'regex:.*gemv.*' --launch 3 -- python my_model.py
  llm-perf profile --no-counters -- torchrun --nproc-per-node 2 train.py
  llm-perf profile --resume tmp/profile-output/20250101-120000
"""


# What may be given with --resume: everything else comes from the run.
_WITH_RESUME = frozenset(("command", "json", "max_size", "resume", "run", "timeout", "verb"))


def add_arguments(parser: argparse.ArgumentParser, *, resumable: bool = True) -> None:
    parser.add_argument("command", nargs="*", metavar="CMD", help="the program and its arguments, after --")
    if resumable:
        parser.add_argument(
            "--resume",
            metavar="RUN",
            help="go on with a run that was interrupted, killed or failed: only what is missing is taken",
        )
    parser.add_argument("--out", metavar="DIR", help="run directory (default: tmp/profile-output/<date-time>)")
    parser.add_argument(
        "--annotate",
        choices=("off", "stages", "modules"),
        default="off",
        help="mark prefill, decode (stages) and also modules of a PyTorch program that has no ranges of its own",
    )
    parser.add_argument(
        "--annotate-depth", metavar="N", type=positive, default=3, help="levels of modules to mark (default 3)"
    )
    parser.add_argument("--no-counters", action="store_true", help="take the timeline only")
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="time for all counter captures together, as in 60s or 2m (default: what a good result takes)",
    )
    parser.add_argument(
        "--level",
        choices=("time", "roofline", "bound", "stalls", "full"),
        default="roofline",
        help="how much is measured of each launch (default roofline: time, bytes, tensor work)",
    )
    parser.add_argument(
        "--launches", metavar="N", type=positive, default=3, help="launches of each kernel to profile (default 3)"
    )
    parser.add_argument(
        "--metrics",
        metavar="LIST",
        default="",
        help="ncu metrics, comma separated, instead of a level",
    )
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        help="take one launch of this kernel only: its exact name, or regex:… over the full name",
    )
    parser.add_argument("--launch", metavar="N", type=positive, help="with --kernel: which of its launches (default 1)")
    parser.add_argument(
        "--sample",
        metavar="WHICH",
        default="all",
        help="instances of a repeated range to profile whole: all (default), first, middle, last, every:N",
    )
    parser.add_argument(
        "--replay-mode",
        choices=("kernel", "application", "range", "app-range"),
        help="how ncu replays (default: kernel by kernel); a mode the program does not allow falls back to the next",
    )
    parser.add_argument(
        "--no-windows",
        action="store_true",
        help="put nothing into the program: by default code inside it switches ncu on around the planned launches",
    )
    parser.add_argument(
        "--no-traffic",
        action="store_true",
        help="do not have nsys sample what the whole GPU moves: bytes of regions are then their kernels' added up",
    )
    parser.add_argument(
        "--run-to-end",
        action="store_true",
        help="let the program run to its end under ncu: by default it is ended as soon as all planned samples are in",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="afterwards measure the regions as wholes and show estimate against truth (runs the program once a pass)",
    )
    parser.add_argument("--no-fallback", action="store_true", help="do not try another replay mode")
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        default="2GB",
        help="end the timeline when its recording reaches this size (default 2GB; 0: no limit)",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=_seconds, help="seconds after which a step is stopped; what it captured is kept"
    )
    add_selection(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 6 where no region matches")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.nsight.nvidia_smi import GpusAsked
    from llm_perf_opt.nsight.tools import Asked

    if arguments.resume is not None:
        return resume(arguments)
    # The tools and nvidia-smi take their time to answer; what is needed next is imported meanwhile.
    with contextlib.ExitStack() as whole:
        with Asked(nsys=True, ncu=not arguments.no_counters) as asked, GpusAsked() as gpus:
            from llm_perf_opt.capture.preparation import ready
            from llm_perf_opt.capture.session import run_profile
            from llm_perf_opt.rundir.directory import RunDirectory

            request, tools = ready(request_of(arguments), asked)
            settings = {k: v for k, v in vars(arguments).items() if k not in _NOT_SETTINGS}
            out = Path(arguments.out) if arguments.out else None
            directory = RunDirectory.create(out, request.command, settings, made_by="profile", gpus=gpus.facts)
            whole.enter_context(directory.interrupted_in_order())
        return run_profile(request, tools, directory, as_json=arguments.json, quiet=arguments.quiet)


_NOT_SETTINGS = ("run", "verb", "command", "resume")


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a run, by whichever front end it was begun."""
    from llm_perf_opt.capture.resume import command_of, open_again, settings_of
    from llm_perf_opt.capture.session import resume_profile

    plain = argparse.ArgumentParser()
    add_arguments(plain)
    usual = vars(plain.parse_args([]))
    for name, value in vars(arguments).items():
        if name not in _WITH_RESUME and value != usual.get(name, value):
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{option} cannot be given with --resume: the options are those of the run.",
                f"Leave {option} away, or start a new run.",
            )
    changed = {name: getattr(arguments, name) for name in ("timeout", "max_size")}
    changed = {name: value for name, value in changed.items() if value != usual[name]}
    directory = open_again(Path(arguments.resume))
    try:
        with _started_in(directory.manifest.folder):
            if directory.manifest.made_by == "deep_profile_runner":
                from llm_perf_opt.runners.deep_profile_runner import resume as resume_deep

                return resume_deep(directory, settings_of(directory.manifest), changed, as_json=arguments.json)
            command = command_of(directory.manifest, arguments.command)
            settings = options_from(settings_of(directory.manifest), plain, arguments.resume)
            asked = argparse.Namespace(**{**usual, **settings, **changed, "command": command})
            try:
                request = request_of(asked)
            except (TypeError, ValueError, AttributeError) as error:
                raise UserError(
                    f"The options of {arguments.resume} are not those of a run ({error}).", "Start a new run."
                ) from error
            return resume_profile(request, directory, as_json=arguments.json)
    finally:
        directory.release()


def _started_in(folder: str) -> contextlib.AbstractContextManager[None]:
    """The folder where a run was started: its relative paths begin there."""
    if not Path(folder).is_dir():
        raise UserError(
            f"The folder where this run was started is gone: {folder or '(unknown)'}.",
            "Make it again as it was, or start a new run.",
        )
    return contextlib.chdir(folder)


def request_of(arguments: argparse.Namespace) -> ProfileRequest:
    """What was typed, in the form the library understands."""
    from llm_perf_opt.nsight.ncu.argv import NcuOptions
    from llm_perf_opt.nsight.nsys.gpu_metrics import DEFAULT_HZ
    from llm_perf_opt.planning import parse_seconds
    from llm_perf_opt.request import (
        LIGHT_TIMELINE,
        AnnotateRequest,
        CounterRequest,
        ProfileRequest,
        TimelineRequest,
        bytes_of,
    )

    if arguments.launch is not None and not arguments.kernel:
        raise UserError(
            "--launch says which launch of one kernel, and no --kernel is given.",
            "Add --kernel NAME; the number of launches of every kernel is --launches.",
        )
    options = NcuOptions(metrics=arguments.metrics, replay_mode=arguments.replay_mode)
    if arguments.kernel:
        # One launch costs little, so everything is worth knowing of it.
        everything = not arguments.metrics
        options = attrs.evolve(
            options,
            set="full" if everything else None,
            kernel_name=arguments.kernel,
            kernel_name_base="demangled",
            launch_skip=(arguments.launch or 1) - 1,
            launch_count=1,
        )
    return ProfileRequest(
        command=arguments.command,
        report=options_of(arguments),
        timeline=TimelineRequest(
            options=LIGHT_TIMELINE,
            timeout_s=arguments.timeout,
            max_bytes=bytes_of(arguments.max_size),
            traffic_hz=0 if arguments.no_traffic else DEFAULT_HZ,
        ),
        counters=CounterRequest(
            enable=not arguments.no_counters,
            options=options,
            level=arguments.level,
            budget_s=parse_seconds(arguments.budget) if arguments.budget else None,
            launches=arguments.launches,
            sample=arguments.sample,
            # A launch is chosen by its number among all that match, wherever it happens, unless regions are named.
            gating_nvtx=not arguments.kernel or bool(arguments.include),
            fallback=not arguments.no_fallback,
            windows=not arguments.no_windows,
            run_to_end=arguments.run_to_end,
            verify=arguments.verify,
            timeout_s=arguments.timeout,
        ),
        strict=arguments.strict,
        annotate=AnnotateRequest(mode=arguments.annotate, depth=arguments.annotate_depth),
    )
