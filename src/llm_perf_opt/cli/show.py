"""`llm-perf show RUN REGION`: one region in the terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport

HELP = "show one region: times, instances, counters, kernels, lines and fixes"
DESCRIPTION = """\
Shows one region of a run or a recording: its times, what limits it, why the GPU waits in it, its kernels and counters,
the lines of the program behind them, and what to fix. Without REGION, it shows the stage of the answer.
"""
EXAMPLES = """\
examples:
  llm-perf show tmp/profile-output/20250101-120000
  llm-perf show tmp/profile-output/20250101-120000 LLM@decode
  llm-perf show run.sqlite step/backward --top 5 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        nargs="?",
        metavar="RUN",
        help="a run directory, a recording or a report.json (default: the newest run)",
    )
    parser.add_argument(
        "region", nargs="?", metavar="REGION", help="key or name of a region (llm-perf ranges lists them)"
    )


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.api.result import open_report
    from llm_perf_opt.cli.open import newest_run
    from llm_perf_opt.report.region_detail import find_region, region_detail

    report = open_report(arguments.input or str(newest_run())).data
    if not (key := arguments.region or report.answer.stage):
        raise UserError("This report has no stage to show.", "Name a region; llm-perf ranges lists them.")
    region = find_region(report, key)
    if arguments.json:
        found = region_detail(report, region)
        for name in ("kernels", "lines", "counters"):
            found[name] = found[name][: arguments.top]
        print_json(found)
    else:
        _show(report, region, arguments.top)
    return int(ExitCode.DONE)


def _show(report: NCUProfileRegionReport, region: NCUProfileRegion, top: int) -> None:
    from llm_perf_opt.report.region_screen import show_region

    show_region(report, region, top)
