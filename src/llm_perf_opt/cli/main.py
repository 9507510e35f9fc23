"""`llm-perf`: parses the command line, runs a verb, turns errors into text and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from llm_perf_opt.cli import (
    calibrate,
    completion,
    demo,
    doctor,
    export,
    plan,
    profile,
    ranges,
    report,
    runs,
    scrub,
)
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.regions.names import printable
from llm_perf_opt.version import __version__

_DESCRIPTION = """\
Where do time, bytes and FLOPs of each NVTX region of a PyTorch program go?

Reads recordings of Nsight Systems, Nsight Compute and the PyTorch profiler on any machine, with or
without a GPU, and reports per region: wall time, GPU time, idle time, kernels and counters.
"""
_EXAMPLES = """\
examples:
  llm-perf doctor                                  would profiling work here, and what to type if not
  llm-perf profile -- python my_model.py           profile a program: timeline, counters, one report
  llm-perf demo                                    a full report from a recording that ships with the package
  llm-perf report run.sqlite                       the report of a timeline
  llm-perf report run.sqlite counters.ncu-rep      the same with hardware counters joined to it
  llm-perf ranges run.sqlite                       which regions exist, and how to select each in ncu
"""


_QUIET = "print the result alone: no progress, no explanations; errors are still told"


class _Parser(argparse.ArgumentParser):
    """Errors are raised, so that they can be told as JSON and with a suggestion."""

    def error(self, message: str) -> NoReturn:
        for word in re.findall(r"(?:arguments: |choice: ')(\S+?)(?:'|\s|$)", message):
            # One that another verb has under this very name is no help.
            close = difflib.get_close_matches(word, _known_words(self), 1)
            if close and close[0] != word:
                message += f" (did you mean {close[0]}?)"
        raise UserError(f"{message}.", f"See {self.prog} --help")


def _known_words(parser: argparse.ArgumentParser) -> list[str]:
    """Options and verbs of a parser and of the parsers below it."""
    words: list[str] = []
    for action in parser._actions:
        words += action.option_strings
        if isinstance(action.choices, dict):
            words += action.choices
            words += [w for sub in action.choices.values() for w in _known_words(sub)]
    return words


_NO_THREAD = "can't start new thread"  # what Python says, with an error of no kind of its own


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="llm-perf",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llm-perf {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in (doctor, profile, plan, report, ranges, export, demo, scrub, calibrate, runs, completion):
        name = verb.__name__.rsplit(".", 1)[-1]
        sub = verbs.add_parser(
            name,
            help=verb.HELP,
            description=verb.DESCRIPTION,
            epilog=verb.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        sub.add_argument("-q", "--quiet", action="store_true", help=_QUIET)
        verb.add_arguments(sub)
        sub.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = words[: words.index("--")] if "--" in words else words  # the rest belongs to the profiled program
    as_json = "--json" in own
    if not words:
        build_parser().print_help(sys.stderr)
        return int(ExitCode.BAD_INPUT)
    try:
        arguments = build_parser().parse_args(words)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except UserError as error:
        _say(error, as_json)
        return int(error.code)
    except MemoryError:
        fix = "Use a machine with more, or a shorter recording."
        _say(UserError("There is not enough memory for this input.", fix), as_json)
        return int(ExitCode.BAD_INPUT)
    except ImportError as error:
        _say(_not_loaded(error), as_json)
        return int(ExitCode.MISSING_TOOL)
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        fix = "Raise the limits of memory and processes (ulimit -a), or end other programs."
        _say(UserError("The system gives this program no further thread.", fix), as_json)
        return int(ExitCode.BAD_INPUT)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong, but nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return int(ExitCode.DONE)
    except OSError as error:
        _say(_refused(error), as_json)
        return int(ExitCode.BAD_INPUT)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)


def _not_loaded(error: ImportError) -> UserError:
    """A package that is damaged, or for which there is no memory; numpy tells that in thirty lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return UserError(
        f"A library of llm-perf cannot be loaded: {lines[-1] if lines else error.name}.",
        "Check the limit of memory (ulimit -v), or install llm-perf again.",
    )


def _refused(error: OSError) -> UserError:
    try:
        Path.cwd()
    except FileNotFoundError:
        return UserError("The folder you are in was removed.", "Go to another one: cd")
    where = f": {error.filename}" if error.filename else ""
    return UserError(f"The system refused{where}: {error.strerror or error}.", "Check rights and free space.")


def _say(error: UserError, as_json: bool) -> None:
    with contextlib.suppress(OSError):  # where nothing can be said, the exit code still is
        _tell(error, as_json)


def _tell(error: UserError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": {"message": error.message, "fix": error.fix, "exit_code": int(error.code)}}))
        return
    # Messages quote names of files and ranges.
    print(f"llm-perf: {printable(error.message)}", file=sys.stderr)
    if error.fix:
        print(f"  → {printable(error.fix)}", file=sys.stderr)


def entry() -> None:
    """For wrappers that were installed before `cli.entry` was the console script."""
    from llm_perf_opt.cli.entry import entry as start

    start()
