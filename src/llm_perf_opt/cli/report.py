"""`llm-perf report INPUT…`: the region report of any recordings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.cli import inputs
from llm_perf_opt.errors import ExitCode, UserError

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegionReport

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
FORMATS = ("json", "md", "csv", "html")


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
        help="comma list of json, md, csv, html (default: all)",
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
        type=_positive,
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


def _positive(text: str) -> int:
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
        regions = "ncu/regions"
    else:
        out = Path(arguments.out or f"{stem(arguments.input[0])}-report")
        regions = "regions"
    report = make_report(arguments.input, arguments)
    return finish(report, out, formats, regions, arguments)


def stem(path: str) -> str:
    """File name without the endings of recordings."""
    name = Path(path).name
    for ending in (".gz", ".xz", ".sqlite", ".nsys-rep", ".ncu-rep", ".json", ".csv", ".pt.trace"):
        name = name.removesuffix(ending)
    return name or "recording"


def make_report(paths: list[str], arguments: argparse.Namespace) -> NCUProfileRegionReport:
    # Patterns are checked before anything is read: a typo should not cost a long read.
    from llm_perf_opt.regions.patterns import NameFilter, RegionFilter

    patterns = RegionFilter.of(arguments.include, arguments.exclude)
    for pattern in (*patterns.include, *patterns.exclude):
        if pattern.ncu is not None:
            raise UserError(
                f"{pattern.text!r} is an expression for ncu, which only ncu can evaluate.",
                "Use a region pattern here: globs, A/B, DOMAIN@NAME or regex:…",
            )
    NameFilter.of(arguments.kernel_include, arguments.kernel_exclude)
    hardware = inputs.hardware_settings(getattr(arguments, "hardware", []))
    calibrations, formula, notes = inputs.beside(paths, getattr(arguments, "calibration", None))
    loaded = inputs.load(paths, quiet=arguments.json)
    from llm_perf_opt.analysis.build import ReportOptions, build_report

    options = ReportOptions(
        include=arguments.include,
        exclude=arguments.exclude,
        kernel_include=arguments.kernel_include,
        kernel_exclude=arguments.kernel_exclude,
        aggregate=not arguments.no_aggregate,
        attribution=arguments.attribution,
        top=arguments.top,
        hardware=hardware,
        calibrations=calibrations,
        formula=formula,
    )
    built = build_report(loaded.recordings, options, loaded.inputs)
    built.diagnostics += notes
    if len(paths) == 1 and (run := inputs.run_facts(Path(paths[0]))):
        built.environment["run"] = run
    return built


def finish(
    report: NCUProfileRegionReport, out: Path, formats: list[str], regions: str, arguments: argparse.Namespace
) -> int:
    """Write the files, show the answer, and choose the exit code."""
    from llm_perf_opt.analysis.build import matched_anything
    from llm_perf_opt.report.write import write_report

    files = write_report(report, out, formats, arguments.top, regions)
    matched = matched_anything(report)
    if arguments.json:
        print(json.dumps(_summary(report, out, files, matched)))
    else:
        from llm_perf_opt.cli.console import console, show_report

        show_report(report)
        names = [f.name for f in files if f.parent == out]
        names += [f"{regions}/"] if len(names) < len(files) else []
        console().print(f"Written to {out}: {', '.join(names)}", markup=False, soft_wrap=True)
    if not matched and getattr(arguments, "strict", False):
        return int(ExitCode.NOTHING_MATCHED)
    return int(ExitCode.DONE)


def _summary(report: NCUProfileRegionReport, out: Path, files: list[Path], matched: bool) -> dict[str, Any]:
    """What a program wants to know without opening the report."""
    return {
        "out": str(out),
        "files": [str(f.relative_to(out)) for f in files],
        "matched": matched,
        "scopes": [
            {
                "scope": s.scope,
                "kernel_count": s.totals.kernel_count,
                "gpu_time_ns": s.totals.gpu_time_ns,
                "regions": len(s.regions),
            }
            for s in report.scopes
        ],
        "available_ranges": report.available_ranges,
        "diagnostics": [
            {"code": d.code, "severity": d.severity, "message": d.message, "fix": d.fix} for d in report.diagnostics
        ],
    }
