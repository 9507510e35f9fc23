"""`llm-perf report INPUT…`: the region report of any recordings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.reporting import BESIDE, INSIDE_RUN, Showing, make_report, publish
from llm_perf_opt.errors import UserError
from llm_perf_opt.report.renderers import FORMATS

if TYPE_CHECKING:
    from llm_perf_opt.analysis.options import ReportOptions

HELP = "the region report of any recordings"
DESCRIPTION = """\
Reads nsys SQLite, .nsys-rep (where nsys is installed), .ncu-rep, ncu CSV and PyTorch traces, each also
as .gz or .xz, or a run directory, and writes one report. A timeline and the counters of the same
program are joined; several ranks become scopes.
"""
EXAMPLES = """\
examples:
  llm-perf report run.sqlite
  llm-perf report run.sqlite counters.ncu-rep --out report
  llm-perf report rank0.sqlite rank1.sqlite --no-aggregate
  llm-perf report run.sqlite --include 'decode*' --kernel-exclude 'regex:nccl' --format json,md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="+", metavar="INPUT", help="a recording or a run directory")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the report (default: INPUT-report here; a run directory gets it inside)",
    )
    parser.add_argument(
        "--format",
        metavar="LIST",
        default=",".join(FORMATS),
        help=f"comma list of {', '.join(FORMATS)} (default: all)",
    )
    add_selection(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 6 where no region matches")


def add_selection(parser: argparse.ArgumentParser, with_scopes: bool = True) -> None:
    """Options that choose what is counted, shared by the verbs that read recordings."""
    for name, what in (("include", "regions to report"), ("exclude", "regions to leave out")):
        parser.add_argument(
            f"--{name}",
            metavar="PAT",
            action="append",
            default=[],
            help=f"{what}: globs, A/B, DOMAIN@NAME, regex:…",
        )
    for name, what in (("kernel-include", "kernels to count"), ("kernel-exclude", "kernels not to count")):
        parser.add_argument(f"--{name}", metavar="PAT", action="append", default=[], help=f"{what}: globs or regex:…")
    if with_scopes:
        parser.add_argument("--no-aggregate", action="store_true", help="leave out the scope that adds everything up")
    parser.add_argument(
        "--attribution",
        choices=("auto", "thread", "process"),
        default="auto",
        help="whose ranges a launch belongs to: its thread's, else its process's (auto, default); its thread's only, as nsys; its process's",
    )
    parser.add_argument(
        "--top",
        metavar="N",
        type=positive,
        default=30,
        help="kernels listed per region where lists are cut (default 30)",
    )
    if with_scopes:
        parser.add_argument(
            "--hardware",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="figures of the GPU: model='H100 SXM', bandwidth=4.8TB/s, tensor_bf16=989TFLOP/s …",
        )
        parser.add_argument(
            "--calibration",
            metavar="FILE",
            help="measured peaks (default: those llm-perf calibrate kept on this machine)",
        )


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def parse_formats(text: str) -> list[str]:
    formats = [part.strip() for part in text.split(",") if part.strip()]
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"There is no report format {name!r}.", f"Choose from {', '.join(FORMATS)}.")
    if not formats:
        raise UserError("No report format was given.", f"Choose from {', '.join(FORMATS)}.")
    return formats


def run(arguments: argparse.Namespace) -> int:
    if arguments.out == "":
        raise UserError("--out was given an empty folder name.", "Give a folder, or leave --out away.")
    formats = parse_formats(arguments.format)
    if len(arguments.input) == 1 and Path(arguments.input[0]).is_dir():
        out = Path(arguments.out or arguments.input[0])
        regions = INSIDE_RUN
    else:
        out = Path(arguments.out or f"{stem(arguments.input[0])}-report")
        regions = BESIDE
    report = make_report(
        arguments.input,
        options_of(arguments),
        quiet=arguments.json or arguments.quiet,
        calibration=arguments.calibration,
        formats=formats,
    )
    showing = Showing(arguments.json, arguments.strict, quiet=arguments.quiet)
    return publish(report, out, formats, regions=regions, top=arguments.top, showing=showing)


def stem(path: str) -> str:
    """File name without the endings of recordings."""
    name = Path(path).name
    for ending in (".gz", ".xz", ".sqlite", ".nsys-rep", ".ncu-rep", ".json", ".csv", ".pt.trace"):
        name = name.removesuffix(ending)
    return name or "recording"


def options_of(arguments: argparse.Namespace) -> ReportOptions:
    """The choices of `add_selection` as options of a report."""
    from llm_perf_opt.analysis.options import ReportOptions
    from llm_perf_opt.api.inputs import hardware_settings

    return ReportOptions(
        include=arguments.include,
        exclude=arguments.exclude,
        kernel_include=arguments.kernel_include,
        kernel_exclude=arguments.kernel_exclude,
        aggregate=not getattr(arguments, "no_aggregate", False),
        attribution=arguments.attribution,
        top=arguments.top,
        hardware=hardware_settings(getattr(arguments, "hardware", [])),
    )
