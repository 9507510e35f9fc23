"""`llm-perf report INPUT…`: the region report of any recordings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.cli.arguments import values_of
from llm_perf_opt.errors import UserError
from llm_perf_opt.process.matrix_threads import no_matrix_threads

if TYPE_CHECKING:
    from collections.abc import Collection

    from llm_perf_opt.regions.model import NCUProfileRegionReport
    from llm_perf_opt.request import ReportRequest

HELP = "report on recordings that you already have"
DESCRIPTION = """\
Reads nsys SQLite, .nsys-rep (if nsys is installed), .ncu-rep, ncu CSV and PyTorch traces, each also
as .gz or .xz, or a run directory, and writes one report. A timeline and the counters of the same
program are joined; several ranks become scopes. A finished report.json is shown, or written again with --out.
"""
EXAMPLES = """\
examples:
  llm-perf report run.sqlite
  llm-perf report run.sqlite counters.ncu-rep --out report
  llm-perf report rank0.sqlite rank1.sqlite --no-aggregate
  llm-perf report run.sqlite --include 'decode*' --kernel-exclude 'regex:nccl' --format json,md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="+", metavar="INPUT", help="a recording, a run directory or a report.json")


def parse_formats(text: str) -> list[str]:
    from llm_perf_opt.report.renderers import FORMATS

    formats = [part.strip() for part in text.split(",") if part.strip()]
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"There is no report format {name!r}.", f"Choose from {', '.join(FORMATS)}.")
    if not formats:
        raise UserError("No report format was given.", f"Choose from {', '.join(FORMATS)}.")
    return formats


def run(arguments: argparse.Namespace) -> int:
    with no_matrix_threads():
        import numpy  # noqa: F401 - everything below needs it
    if len(arguments.input) == 1:
        from llm_perf_opt.readers.open import prefetch

        prefetch(Path(arguments.input[0]))
    from llm_perf_opt.api.reporting import BESIDE, INSIDE_RUN, Showing, make_report, publish
    from llm_perf_opt.report.renderers import FORMATS
    from llm_perf_opt.request import report_request

    request = report_request(values_of(arguments))
    if request.out == "":
        raise UserError("--out was given an empty folder name.", "Give a folder, or leave out --out.")
    formats: Collection[str] = FORMATS if request.formats is None else parse_formats(request.formats)
    first, inside = arguments.input[0], len(arguments.input) == 1 and Path(arguments.input[0]).is_dir()
    finished = _finished(arguments.input, request)
    if finished is not None and request.out is None and request.formats is None:
        formats = ()  # it has its files already
    out = Path(request.out or (first if inside and not (finished and formats) else f"{stem(first)}-report"))
    if finished and formats and out.is_dir() and (out.samefile(first) or out.samefile(Path(first).parent)):
        raise UserError(f"{out} contains the report that you want to read.", "Choose another folder with --out.")
    silent = arguments.json or arguments.quiet
    report = finished or make_report(
        arguments.input, request.report, quiet=silent, calibration=request.calibration, formats=formats
    )
    if finished and inside and not silent:
        print(f"{first} no longer has recordings: this is the report that was made from them.", file=sys.stderr)
    showing = Showing(arguments.json, request.strict, quiet=arguments.quiet)
    regions = INSIDE_RUN if inside and not finished else BESIDE
    return publish(report, out, formats, regions=regions, top=request.report.top, showing=showing, force=request.force)


def _finished(paths: list[str], request: ReportRequest) -> NCUProfileRegionReport | None:
    """The report itself, where one was given: a report.json, or a folder that has one and no recordings."""
    from llm_perf_opt.api.finished import finish_report, is_report, recordings_beside

    for name in paths:
        finish_report(Path(name))
    path = next((Path(name) for name in paths if is_report(Path(name), alone=len(paths) == 1)), None)
    if path is None or recordings_beside(path):
        return None
    asked = request.report
    if asked.kernel_include or asked.kernel_exclude:
        raise UserError(
            f"{path} is a finished report: its kernels can no longer be selected.", "Give the recordings instead."
        )
    from llm_perf_opt.api.result import open_report

    attribution = None if asked.attribution == "auto" else asked.attribution
    return open_report(*paths, include=asked.include, exclude=asked.exclude, attribution=attribution).data


def stem(path: str) -> str:
    """File name without the endings of recordings."""
    name = Path(path).name
    for ending in (".gz", ".xz", ".sqlite", ".nsys-rep", ".ncu-rep", ".json", ".csv", ".pt.trace"):
        name = name.removesuffix(ending)
    return name or "recording"
