"""`llm-perf profile -- CMD`: a timeline, counters where they pay, and one report."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from llm_perf_opt.cli.arguments import given_of, of_rank, stored_values, values_of
from llm_perf_opt.errors import ExitCode, UserError

HELP = "profile a program: undisturbed times, a timeline, counters of a few launches of each kernel, one report"
DESCRIPTION = """\
Runs CMD without a profiler and times its ranges from inside, as `measure` does; runs it under Nsight Systems to record
a timeline; plans which launches are worth hardware counters; and runs it under Nsight Compute for those. One report in
a new run directory joins the results. If a step fails, the results of the others are kept.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="*", metavar="CMD", help="the program and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    if arguments.resume is not None:
        return resume(arguments)

    from llm_perf_opt.nsight.nvidia_smi import GpusAsked
    from llm_perf_opt.nsight.tools import Asked
    from llm_perf_opt.options.of_trials import TRY
    from llm_perf_opt.request import profile_request

    request = profile_request(values_of(arguments), arguments.command)
    request, job = of_rank(request, "profile")
    # The tools and nvidia-smi take their time to answer; what is needed next is imported meanwhile.
    with contextlib.ExitStack() as whole:
        with Asked(nsys=request.timeline.enable, ncu=request.counters.enable) as asked, GpusAsked() as gpus:
            from llm_perf_opt.capture.preparation import ready
            from llm_perf_opt.capture.session import run_profile
            from llm_perf_opt.rundir.directory import RunDirectory

            request, tools = ready(request, asked)
            settings = {k: v for k, v in vars(arguments).items() if k not in _NOT_SETTINGS}
            out = Path(request.out) if request.out else None
            directory = RunDirectory.create(
                *(out, request.command, settings),
                made_by="profile",
                typed=arguments.typed,
                show_command=request.show_command,
                gpus=gpus.facts,
                place=None if job is None else (job.place.rank, job.place.node),
            )
            whole.enter_context(directory.interrupted_in_order())
        shown = {"as_json": arguments.json, "quiet": arguments.quiet}
        if job is not None:
            directory.manifest.diagnostics.append(job.explain(request))
            code = run_profile(request, tools, directory, quiet=arguments.quiet or arguments.json, silent=True)
            return job.finish(request, code, **shown)
        if not request.value(TRY):
            return run_profile(request, tools, directory, **shown)
        code = run_profile(request, tools, directory, quiet=arguments.quiet, silent=arguments.json)
    from llm_perf_opt.trying.start import try_run, wanted_of

    if code in (ExitCode.WORKLOAD_FAILED, ExitCode.TIMED_OUT, ExitCode.INTERRUPTED):
        return code
    tried = try_run(request, directory.path, wanted_of(request), **shown)  # with what was captured, all of it or not
    return code or tried


_NOT_SETTINGS = ("run", "verb", "command", "resume", "typed")


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a run, by whichever front end it was begun."""
    from llm_perf_opt.capture.resume import command_of, open_again, settings_of
    from llm_perf_opt.capture.session import resume_profile
    from llm_perf_opt.request import profile_request

    given = given_of(arguments, "profile")
    for option in given:
        if not option.on_resume:
            raise UserError(
                f"{option.flag} cannot be given with --resume: the options are those of the run.",
                f"Leave out {option.flag}, or start a new run.",
            )
    changed = {option.dest: getattr(arguments, option.dest) for option in given if option.to}
    shown = {"as_json": arguments.json, "quiet": arguments.quiet}
    directory = open_again(Path(arguments.resume))
    try:
        with _started_in(directory.manifest.folder):
            settings = settings_of(directory.manifest)
            if directory.manifest.made_by == "deep_profile_runner":
                from llm_perf_opt.runners.deep_profile_runner import resume as resume_deep

                return resume_deep(directory, settings, changed, **shown)
            command = command_of(directory.manifest, arguments.command)
            stored = stored_values(settings, "profile", arguments.resume)
            parsed = argparse.Namespace(**{**stored, **changed, "verb": "profile"})
            return resume_profile(profile_request(values_of(parsed), command), directory, **shown)
    finally:
        directory.release()


def _started_in(folder: str) -> contextlib.AbstractContextManager[None]:
    """The folder where a run was started: its relative paths begin there."""
    if not Path(folder).is_dir():
        raise UserError(
            f"The folder where this run was started is gone: {folder or '(unknown)'}.",
            "Create it again as it was, or start a new run.",
        )
    return contextlib.chdir(folder)
