"""`llm-perf export INPUT…`: a trace for Perfetto, tables for notebooks."""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.report.renderers import EXPORTS, Exporter, ExportOption, ExportSource, exporter

if TYPE_CHECKING:
    from llm_perf_opt.regions.attribution import Attribution
    from llm_perf_opt.regions.model import NCUProfileRegionReport

HELP = "write a trace for ui.perfetto.dev, or tables as CSV or Parquet"
DESCRIPTION = """\
Turns recordings or a run directory into files for other programs. --perfetto writes a trace with the
ranges of every thread, the GPU work of every stream, idle gaps and how busy the GPU was; open it in
https://ui.perfetto.dev (the file stays on your machine). --csv and --parquet write the tables regions,
kernels, metrics and, from a timeline, launches and ranges.
"""
EXAMPLES = """\
examples:
  llm-perf export RUN --perfetto trace.json.gz
  llm-perf export run.sqlite counters.ncu-rep --parquet tables
  llm-perf export run.sqlite --csv tables --perfetto trace.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="+", metavar="INPUT", help="a recording or a run directory")
    for option in EXPORTS:
        parser.add_argument(f"--{option.name}", metavar=option.metavar, help=option.what)


def run(arguments: argparse.Namespace) -> int:
    places = {option: Path(place) for option in EXPORTS if (place := getattr(arguments, option.name))}
    _check(places)
    asked = {option.name: (exporter(option), place) for option, place in places.items()}
    source = _source(arguments)
    _say_replaced(asked, arguments)
    if source.timeline is None and any(kind.needs_timeline for kind, _ in asked.values()):
        raise UserError(
            "These recordings have only counters, which do not say when anything ran.",
            "Give a timeline: nsys SQLite, .nsys-rep or a PyTorch trace.",
        )
    written = {name: [str(path) for path in kind.write(source, place)] for name, (kind, place) in asked.items()}
    if arguments.json:
        print_json({"written": written})
        return int(ExitCode.DONE)
    for paths in written.values():
        for path in paths:
            print(path if arguments.quiet else f"Written: {path}")
    for kind, _ in asked.values():
        if kind.note and not arguments.quiet:
            print(kind.note)
    return int(ExitCode.DONE)


def _check(places: dict[ExportOption, Path]) -> None:
    if not places:
        options = [f"--{option.name} {option.metavar}" for option in EXPORTS]
        raise UserError("Nothing to export was chosen.", f"Give {', '.join(options[:-1])} or {options[-1]}.")
    for option, place in places.items():
        if option.metavar == "FILE" and place.is_dir():
            raise UserError(f"{place} is a folder.", f"Give a file: --{option.name} trace.json.gz")


def _say_replaced(asked: dict[str, tuple[Exporter, Path]], arguments: argparse.Namespace) -> None:
    from llm_perf_opt.api.inputs import Inputs
    from llm_perf_opt.report.files import replaceable

    given = [*Inputs.of(arguments.input).files, *map(Path, arguments.input)]
    for kind, place in asked.values():
        for path in replaceable(kind.files(place), kind.is_ours, inputs=given, force=arguments.force):
            print(f"Replacing {path}, which llm-perf export did not write.", file=sys.stderr)


def _source(arguments: argparse.Namespace) -> ExportSource:
    """The recordings; the report and whose ranges the launches belong to are worked out once, when they are needed."""
    from llm_perf_opt.api import inputs
    from llm_perf_opt.regions.columns import Timeline
    from llm_perf_opt.regions.merge import merge_timelines
    from llm_perf_opt.regions.patterns import RegionFilter
    from llm_perf_opt.regions.pooled_names import find_pools

    files = inputs.Inputs.of(arguments.input)
    recordings = inputs.load(files, quiet=arguments.json or arguments.quiet, streams=True)
    timelines = [recording for recording in recordings if isinstance(recording, Timeline)]
    pools = find_pools(timelines, RegionFilter())
    timeline = merge_timelines([pools.applied(found) for found in timelines]) if timelines else None

    @cache
    def report() -> NCUProfileRegionReport:
        from llm_perf_opt.analysis.build import ReportOptions, build_report

        return build_report(recordings, ReportOptions(attribution=arguments.attribution), files.inputs)

    @cache
    def attribution() -> Attribution:
        from llm_perf_opt.regions.attribution import attribute

        assert timeline is not None
        return attribute(timeline, arguments.attribution)

    return ExportSource(report, timeline, attribution)
