"""`llm-perf demo`: a full report from a recording that ships with the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "a full report from a recording that ships with the package"
DESCRIPTION = """\
Builds the full report from a recording made on an NVIDIA H200: a decoder of 1.0 billion parameters
(8 layers, random weights, bf16, eager), prompt of 2048 tokens, 8 decode steps; a timeline of Nsight
Systems and counters of Nsight Compute, joined. Needs neither a GPU nor NVIDIA's tools.
"""
EXAMPLES = """\
examples:
  llm-perf demo
  llm-perf demo --out /tmp/demo-report
"""
_RECORDINGS = ("decoder-8layers.sqlite.xz", "decoder-8layers.ncu-rep.xz")


def run(arguments: argparse.Namespace) -> int:
    from importlib.resources import as_file, files

    from llm_perf_opt.analysis.report_options import ReportOptions
    from llm_perf_opt.api.reporting import Showing, make_report, publish
    from llm_perf_opt.report.renderers import FORMATS

    silent = arguments.json or arguments.quiet
    if not silent:
        print(
            "This report is built from a recording made on an NVIDIA H200; nothing is measured on this machine.\n",
            file=sys.stderr,
        )
    with as_file(files("llm_perf_opt.demo_data")) as folder:
        report = make_report(
            [str(folder / name) for name in _RECORDINGS],
            ReportOptions(),
            quiet=silent,
            calibration=str(folder / "calibration.json"),  # of another GPU of the same model
            formats=FORMATS,
        )
    showing = Showing(arguments.json, quiet=arguments.quiet, brief=True)
    return publish(report, Path(arguments.out), showing=showing, force=arguments.force)
