"""`llm-perf ranges INPUT…`: which ranges exist, and how to select each of them in ncu."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from llm_perf_opt.cli.arguments import values_of
from llm_perf_opt.errors import ExitCode
from llm_perf_opt.json_output import print_json

if TYPE_CHECKING:
    from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport

HELP = "list the ranges of a recording, and the ncu expression that selects each"
DESCRIPTION = """\
Lists every NVTX range (region) of a recording with its instances, kernels and GPU time, and the exact,
escaped expression for ncu's --nvtx-include that selects it.
"""
EXAMPLES = """\
examples:
  llm-perf ranges run.sqlite
  llm-perf ranges run.sqlite --include 'decode*' --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", nargs="+", metavar="INPUT", help="a recording or a run directory")


def run(arguments: argparse.Namespace) -> int:
    import attrs

    from llm_perf_opt.api.reporting import make_report
    from llm_perf_opt.request import report_request

    request = report_request(values_of(arguments))
    report = make_report(arguments.input, request.report, quiet=arguments.json or arguments.quiet)
    scope = report.main_scope
    regions = scope.regions if scope else []
    if arguments.json:
        answer = {
            "ranges": [_fields(region) for region in regions],
            "available_ranges": report.available_ranges,
            "diagnostics": [attrs.asdict(diagnosis) for diagnosis in report.diagnostics],
        }
        print_json(answer)
    else:
        _show(report, regions, arguments.quiet)
    if not regions and request.strict:
        return int(ExitCode.NOTHING_MATCHED)
    return int(ExitCode.DONE)


def _fields(region: NCUProfileRegion) -> dict[str, Any]:
    from llm_perf_opt.regions.shell import ncu_options

    return {
        **{name: getattr(region, name) for name in ("key", "domain", "path", "name")},
        "kind": region.range_kind,
        "instances": region.instances,
        "kernel_count": region.inclusive.kernel_count,
        "gpu_time_ns": region.inclusive.gpu_time_ns,
        "wall_ns": region.wall_ns,
        "nvtx_include": region.nvtx_include,
        "ncu_options": ncu_options(region),
    }


_LONGEST = 4_000  # characters; terminals take lines of 4,096


def _expression(line: str, region: NCUProfileRegion) -> str:
    """Never cut, as it is meant to be copied: whole, or where it is."""
    if not line:
        return "no filter: it is every launch" if region.is_whole_recording else "–"
    return line if len(line) <= _LONGEST else f"{len(line):,} characters: --json has it"


def _show(report: NCUProfileRegionReport, regions: list[NCUProfileRegion], quiet: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from llm_perf_opt.regions.shell import ncu_options, shell_line
    from llm_perf_opt.report.terminal import console, show_diagnostics
    from llm_perf_opt.report.text import duration, gpu_time, rows, work_count

    out = console()
    if regions:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("range", overflow="fold", min_width=20)
        for name in ("inst.", "kernels", "GPU time"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("ncu --nvtx", overflow="fold", min_width=20)
        for indent, text, region in rows(regions):
            table.add_row(
                Text("  " * min(indent, 20) + text),
                "–" if region.instances is None else f"{region.instances:,}",
                work_count(region.inclusive),
                duration(gpu_time(region.inclusive)),
                Text(_expression(shell_line(ncu_options(region)), region)),
            )
        out.print(table)
        if not any(region.is_selectable for region in regions):
            out.print("These are annotations of the PyTorch profiler, not NVTX ranges: ncu cannot select them.")
    if not (quiet and regions):  # where there are none, why is the result
        show_diagnostics(report, out, brief=bool(regions))  # what a report lacks is no matter here
