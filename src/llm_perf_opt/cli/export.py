"""`llm-perf export INPUT…`: a trace for Perfetto, tables for notebooks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api import inputs
from llm_perf_opt.errors import ExitCode, UserError

if TYPE_CHECKING:
    from llm_perf_opt.regions.columns import Recording, Timeline
    from llm_perf_opt.report.tables import Table

HELP = "a trace for ui.perfetto.dev, and tables as CSV or Parquet"
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
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace; .gz at the end of the name packs it")
    parser.add_argument("--csv", metavar="DIR", help="write tables as CSV")
    parser.add_argument("--parquet", metavar="DIR", help="write tables as Parquet (needs pyarrow)")
    parser.add_argument(
        "--attribution",
        choices=("auto", "thread", "process"),
        default="auto",
        help="whose ranges a launch belongs to, as in llm-perf report (default: auto)",
    )


def run(arguments: argparse.Namespace) -> int:
    if not (arguments.perfetto or arguments.csv or arguments.parquet):
        raise UserError("Nothing to export was chosen.", "Give --perfetto FILE, --csv DIR or --parquet DIR.")
    if arguments.perfetto and Path(arguments.perfetto).is_dir():
        raise UserError(f"{arguments.perfetto} is a folder.", "Give a file: --perfetto trace.json.gz")
    loaded = inputs.load(arguments.input, quiet=arguments.json or arguments.quiet, streams=True)
    timeline = _timeline(loaded.recordings)
    if arguments.perfetto and timeline is None:
        raise UserError(
            "These recordings hold counters only, which do not say when anything ran.",
            "Give a timeline: nsys SQLite, .nsys-rep or a PyTorch trace.",
        )
    written: dict[str, list[str]] = {}
    if arguments.perfetto and timeline is not None:
        written["perfetto"] = [_write_perfetto(timeline, arguments)]
    if arguments.csv or arguments.parquet:
        tables = _tables(loaded, timeline, arguments)
        from llm_perf_opt.report.tables import write_csv, write_parquet

        if arguments.csv:
            written["csv"] = [str(path) for path in write_csv(tables, Path(arguments.csv))]
        if arguments.parquet:
            written["parquet"] = [str(path) for path in write_parquet(tables, Path(arguments.parquet))]
    if arguments.json:
        print(json.dumps({"written": written}))
    else:
        for paths in written.values():
            for path in paths:
                print(path if arguments.quiet else f"Written: {path}")
        if arguments.perfetto and not arguments.quiet:
            print("Open the trace in https://ui.perfetto.dev (Open trace file): it stays on your machine.")
    return int(ExitCode.DONE)


def _timeline(recordings: list[Recording]) -> Timeline | None:
    from llm_perf_opt.regions.columns import Timeline
    from llm_perf_opt.regions.merge import merge_timelines

    timelines = [r for r in recordings if isinstance(r, Timeline)]
    return merge_timelines(timelines) if timelines else None


def _write_perfetto(timeline: Timeline, arguments: argparse.Namespace) -> str:
    from llm_perf_opt.regions.attribution import attribute
    from llm_perf_opt.report.files import make_folder
    from llm_perf_opt.report.perfetto import write_perfetto

    path = Path(arguments.perfetto)
    make_folder(path.parent)
    write_perfetto(timeline, attribute(timeline, arguments.attribution), path)
    return str(path)


def _tables(loaded: inputs.Loaded, timeline: Timeline | None, arguments: argparse.Namespace) -> dict[str, Table]:
    from llm_perf_opt.analysis.build import ReportOptions, build_report
    from llm_perf_opt.regions.attribution import attribute
    from llm_perf_opt.report import tables

    report = build_report(loaded.recordings, ReportOptions(attribution=arguments.attribution), loaded.inputs)
    found = {
        "regions": tables.regions_table(report),
        "kernels": tables.kernels_table(report),
        "metrics": tables.metrics_table(report),
    }
    if timeline is not None:
        attribution = attribute(timeline, arguments.attribution)
        found["launches"] = tables.launches_table(timeline, attribution)
        found["ranges"] = tables.ranges_table(timeline, attribution)
    return found
