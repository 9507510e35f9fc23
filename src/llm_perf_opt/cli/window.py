"""`llm-perf window start|stop RUN`: opens or closes the window of a server that is being measured or recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "open or close the window of a server that llm-perf runs"
DESCRIPTION = """\
For a server run in progress (llm-perf measure or profile with --window, --window-after, --load or
--load-command): `start` opens its window now, whatever it is waiting for; `stop` closes it, which ends the
server and builds the report.
"""
EXAMPLES = """\
examples:
  llm-perf measure --window-after 1h --out run1 -- python server.py &
  llm-perf window start run1
  llm-perf window stop run1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("start", "stop"), help="open it, or close it")
    parser.add_argument("run_directory", metavar="RUN", help="the run directory, as llm-perf printed it")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.capture.server_window import ASKED
    from llm_perf_opt.errors import ExitCode, UserError
    from llm_perf_opt.json_output import print_json
    from llm_perf_opt.rundir.layout import MANIFEST
    from llm_perf_opt.untrusted import read_json

    folder = Path(arguments.run_directory)
    try:
        state = read_json(folder / MANIFEST).get("state")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder} is not a run directory.", "Give the directory that llm-perf printed.") from error
    if state != "running":
        raise UserError(
            f"The run in {folder} is not in progress: it is {state}.", "Start it again with llm-perf measure."
        )
    (folder / ASKED[arguments.action]).touch()
    if arguments.json:
        print_json({"run": str(folder), "asked": arguments.action})
    elif not arguments.quiet:
        print(f"{'opening' if arguments.action == 'start' else 'closing'} the window of {folder}")
    return int(ExitCode.DONE)
