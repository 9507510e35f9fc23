"""`llm-perf measure -- CMD`: how long the stages of a program take by themselves, with no profiler."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm_perf_opt.cli.arguments import of_rank, values_of

HELP = "time every range of a program from inside, with no profiler"
DESCRIPTION = """\
Runs CMD without a profiler and times every instance of every range from inside: its own NVTX ranges, or those that
--annotate adds to a PyTorch program. A program that opens none runs a second time, with the stages of its models
marked. Warm-up and steady instances are reported separately.
With a GPU, ranges are also timed with CUDA events, and nothing waits for the GPU. Without one, the host clock is used.
"""
EXAMPLES = """\
examples:
  llm-perf measure -- python my_model.py
  llm-perf measure --annotate stages -- python generate.py       (a program without NVTX ranges, run once)
  llm-perf measure --runs 5 -- python my_model.py
  llm-perf measure --window 500 --load 200 -- vllm serve MODEL   (a server, under load)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="*", metavar="CMD", help="the program and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.nsight.nvidia_smi import GpusAsked
    from llm_perf_opt.request import CounterRequest, TimelineRequest, profile_request

    request = profile_request(
        values_of(arguments),
        arguments.command,
        timeline=TimelineRequest(enable=False),
        counters=CounterRequest(enable=False),
    )
    request, job = of_rank(request, "measure")
    # nvidia-smi takes its time to answer; what is needed next is imported meanwhile.
    with GpusAsked() as gpus:
        from llm_perf_opt.capture.context import Tools
        from llm_perf_opt.capture.preparation import check_load, check_program
        from llm_perf_opt.capture.session import run_profile
        from llm_perf_opt.rundir.directory import RunDirectory

        check_program(request.command)
        check_load(request.serving)
        settings = {k: v for k, v in vars(arguments).items() if k not in ("run", "verb", "command", "typed")}
        directory = RunDirectory.create(
            *(Path(request.out) if request.out else None, request.command, settings),
            recordings=False,
            made_by="measure",
            typed=arguments.typed,
            show_command=request.show_command,
            gpus=gpus.facts,
            place=None if job is None else (job.place.rank, job.place.node),
        )
    with directory.interrupted_in_order():
        if job is not None:
            quiet = arguments.quiet or arguments.json
            code = run_profile(request, Tools(None, None), directory, quiet=quiet, silent=True)
            return job.finish(request, code, as_json=arguments.json, quiet=arguments.quiet)
        return run_profile(request, Tools(None, None), directory, as_json=arguments.json, quiet=arguments.quiet)
