"""`llm-perf open RUN`: the page of a run in the browser."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.regions.names import printable

HELP = "open the page of a run in the browser"
DESCRIPTION = """\
Opens the page of a run, a comparison, a trial, a sweep or a history: report.html, compare.html and so on in the folder, or
the file you name. Without RUN, it opens the newest run below tmp/profile-output. If there is no browser, the path is printed.
A page from somebody else can run any code in your browser: build it again from the recordings with llm-perf report.
"""
EXAMPLES = """\
examples:
  llm-perf open
  llm-perf open tmp/profile-output/20250101-120000
  llm-perf open llm-perf-compare
"""
_PAGES = ("try.html", "report.html", "compare.html", "sweep.html", "history.html")  # a trial has a report, too
# Without one of these a browser would open inside the terminal, or not at all.
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_directory", nargs="?", metavar="RUN", help="a run directory, a folder with a page, or a page"
    )


def run(arguments: argparse.Namespace) -> int:
    import webbrowser

    page = _page(Path(arguments.run_directory) if arguments.run_directory else newest_run())
    shown = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in _DISPLAYS)
    opened = shown and webbrowser.open(page.as_uri())
    if arguments.json:
        print_json({"page": str(page), "opened": opened})
    elif arguments.quiet or not opened:
        print(page)
    else:
        print(f"Opened {page}")
    if not opened and not (arguments.json or arguments.quiet):
        print(
            "There is no browser here: copy the file to a machine that has one. It needs nothing else.", file=sys.stderr
        )
    return int(ExitCode.DONE)


def newest_run() -> Path:
    from llm_perf_opt.rundir.inventory import RUNS, take_inventory

    runs = [run.path for run in take_inventory(RUNS).runs]
    if not runs:
        raise UserError(f"There are no runs in {RUNS}.", f"Name a folder with a page: llm-perf open {_nearby()}")
    newest = next((run for run in runs if any((run / name).is_file() for name in _PAGES)), runs[0])
    if newest != runs[0]:
        print(f"The newest run, {printable(str(runs[0]))}, left no page: this is one before it.", file=sys.stderr)
    return newest


def _nearby() -> str:
    """The newest page in a folder of this one, such as `llm-perf demo` or `llm-perf report` leaves; else a placeholder."""
    pages = [page for name in _PAGES for page in Path().glob(f"*/{name}") if page.is_file()]
    newest = max(pages, key=lambda page: page.stat().st_mtime, default=None)
    return shlex.quote(str(newest.parent)) if newest else "RUN"


def _page(place: Path) -> Path:
    pages = [place / name for name in _PAGES] if place.is_dir() else [place]
    found = next((page for page in pages if page.is_file() and page.suffix == ".html"), None)
    if found is not None:
        return found.resolve()
    if not place.exists():
        raise UserError(f"{place} does not exist.", "llm-perf runs list shows the runs there are.")
    raise UserError(f"There is no page in {place}.", f"Make one: llm-perf report {shlex.quote(str(place))}")
