"""`llm-perf`: parses the command line, runs a verb, turns errors into text and exit codes."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence

from llm_perf_opt.cli import demo, ranges, report
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.version import __version__

_DESCRIPTION = """\
Where do time, bytes and FLOPs of each NVTX region of a PyTorch program go?

Reads recordings of Nsight Systems, Nsight Compute and the PyTorch profiler on any machine, with or
without a GPU, and reports per region: wall time, GPU time, idle time, kernels and counters.
"""
_EXAMPLES = """\
examples:
  llm-perf demo                                    a full report from a recording that ships with the package
  llm-perf report run.sqlite                       the report of a timeline
  llm-perf report run.sqlite counters.ncu-rep      the same with hardware counters joined to it
  llm-perf ranges run.sqlite                       which regions exist, and how to select each in ncu
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llm-perf",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llm-perf {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in (report, ranges, demo):
        name = verb.__name__.rsplit(".", 1)[-1]
        sub = verbs.add_parser(
            name,
            help=verb.HELP,
            description=verb.DESCRIPTION,
            epilog=verb.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        verb.add_arguments(sub)
        sub.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UserError as error:
        _say(error, arguments.json)
        return int(error.code)
    except MemoryError:
        _say(
            UserError(
                "There is not enough memory for this input.",
                "Use a machine with more, or a shorter recording.",
            ),
            arguments.json,
        )
        return int(ExitCode.BAD_INPUT)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong.
        sys.stderr.close()
        return int(ExitCode.DONE)


def _say(error: UserError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": {"message": error.message, "fix": error.fix, "exit_code": int(error.code)}}))
        return
    print(f"llm-perf: {error.message}", file=sys.stderr)
    if error.fix:
        print(f"  → {error.fix}", file=sys.stderr)


def entry() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets an escape instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
