"""`llm-perf`: parses the command line, runs a verb, turns errors into text and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from llm_perf_opt.cli.arguments import add_options
from llm_perf_opt.cli.program_words import with_separator
from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json
from llm_perf_opt.options.declared import SHOWING, options_of
from llm_perf_opt.regions.names import printable
from llm_perf_opt.version import __version__

_DESCRIPTION = """\
Where do the time, bytes and FLOPs of each stage of a PyTorch program go, and what would make it faster?

Reads recordings of Nsight Systems, Nsight Compute and the PyTorch profiler on any machine, with or
without a GPU, and reports per region: wall time, GPU time, idle time, kernels and counters.
"""
_EXAMPLES = """\
examples:
  llm-perf doctor                                  does profiling work here, and what to type if not
  llm-perf measure -- python my_model.py           how long its stages take, with no profiler
  llm-perf profile -- python my_model.py           profile a program: timeline, counters, one report
  llm-perf demo                                    a full report from a recording that ships with the package
  llm-perf open                                    the page of the newest run, in the browser
  llm-perf show RUN LLM@decode                     one region: times, counters, kernels, lines, fixes
  llm-perf report run.sqlite                       the report of a timeline
  llm-perf report run.sqlite counters.ncu-rep      the same with hardware counters joined to it
  llm-perf ranges run.sqlite                       which regions exist, and how to select each in ncu
  llm-perf compare before after                    is it faster, and why
  llm-perf try -- python my_model.py               what would make it faster: tried, measured, outputs compared
"""


# A module of this name each, with HELP, DESCRIPTION, EXAMPLES, run, and add_arguments where options are not all; in the
# order of the help.
VERBS = (
    *("doctor", "measure", "profile", "plan", "report", "ranges", "show", "open", "compare", "try"),
    *("export", "demo", "scrub", "calibrate", "runs", "window", "mcp", "schema", "completion"),
)


_PROGRAM = "llm-perf"


class _Parser(argparse.ArgumentParser):
    """Errors are raised, so that they can be printed as JSON and with a suggestion."""

    verb_prog = ""  # argparse has the outermost parser refuse unknown options; this is whose they were

    def error(self, message: str) -> NoReturn:
        if verb := re.match(r"argument VERB: invalid choice: '(.*)' \(choose from", message):
            if not _nearest(verb[1], VERBS) and shutil.which(verb[1]):
                raise UserError(
                    f"{verb[1]} is a program, not a verb of llm-perf.",
                    f"Say what to do with it, for example: llm-perf profile -- {verb[1]} …",
                )
            raise UserError(
                f"There is no verb {verb[1]!r}{_nearest(verb[1], VERBS)}.",
                f"Choose from {', '.join(VERBS)}; llm-perf --help says what each does.",
            )
        if action := re.match(r"argument (\w+(?:\|\w+)+): invalid choice: '(.*)' \(choose from", message):
            actions = action[1].split("|")
            raise UserError(
                f"There is no {self.prog} {action[2]}{_nearest(action[2], actions)}.",
                f"Choose from {', '.join(actions)}; {self.prog} --help says what each does.",
            )
        for word in re.findall(r"(?:arguments: |choice: ')(\S+?)(?:'|\s|$)", message):
            # One that another verb has under this very name is no slip of the fingers.
            if word not in _known_words(build_parser()):
                message += _nearest(word, _known_words(self))
        raise UserError(f"{message}.", f"See {self.verb_prog or self.prog} --help")


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _known_words(parser: argparse.ArgumentParser) -> list[str]:
    """Options, their values and verbs of a parser and of the parsers below it."""
    words: list[str] = []
    for action in parser._actions:
        words += action.option_strings
        if isinstance(action.choices, dict):
            words += action.choices
            words += [w for sub in action.choices.values() for w in _known_words(sub)]
        elif action.choices:
            words += action.choices
    return words


_NO_THREAD = "can't start new thread"  # what Python says, with an error of no kind of its own


def build_parser(only: str = "") -> argparse.ArgumentParser:
    """The parser of `llm-perf`; `only`: with this verb alone, where what is typed begins with it."""
    parser = _Parser(
        prog=_PROGRAM, description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if only in VERBS:
        parser.verb_prog = f"{_PROGRAM} {only}"
    parser.add_argument("--version", action="version", version=f"llm-perf {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in (only,) if only in VERBS else VERBS:
        verb = importlib.import_module(f"llm_perf_opt.cli.{name}")
        sub = verbs.add_parser(
            name,
            help=verb.HELP,
            description=verb.DESCRIPTION,
            epilog=verb.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(sub, SHOWING)
        if hasattr(verb, "add_arguments"):
            verb.add_arguments(sub)
        add_options(sub, options_of(name))
        sub.set_defaults(run=verb.run)
    return parser


def _parsed(words: list[str]) -> argparse.Namespace:
    if words[0] == "help":  # as git and cargo have it
        words = [*words[1:2], "--help"]
    parser = build_parser(words[0])
    if words[0] in VERBS:
        (verb,) = (action.choices[words[0]] for action in parser._actions if isinstance(action.choices, dict))
        return parser.parse_args(with_separator(words, verb))
    if words[0].startswith("-") and not any(name.startswith(words[0]) for name in parser._option_string_actions):
        parser.error(f"unrecognized arguments: {words[0]}")  # argparse would only ask for the verb
    return parser.parse_args(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own = words[: words.index("--")] if "--" in words else words  # the rest belongs to the profiled program
    as_json = "--json" in own
    if not words:
        build_parser().print_help(sys.stderr)
        return int(ExitCode.BAD_INPUT)
    try:
        arguments = _parsed(words)
        arguments.typed = [_PROGRAM, *words]
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except (UserError, MemoryError, ImportError, RuntimeError, OSError) as error:
        explained = _explained(error)
        if explained is None:
            raise
        _print_error(explained, as_json)
        return int(explained.code)


def _explained(error: Exception) -> UserError | None:
    """What a person can do about it; None for an error that should not be."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, MemoryError):
        fix = "Use a machine with more, or a shorter recording."
        return UserError("There is not enough memory for this input.", fix)
    if isinstance(error, ImportError):
        # A package that is damaged, or for which there is no memory; numpy says that in thirty lines.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = f"A library of llm-perf cannot be loaded: {lines[-1] if lines else error.name}."
        fix = "Check the limit of memory (ulimit -v), or install llm-perf again."
        return UserError(why, fix, ExitCode.MISSING_TOOL)
    if isinstance(error, RuntimeError):
        fix = "Raise the limits of memory and processes (ulimit -a), or end other programs."
        no_thread = _NO_THREAD in str(error)
        return UserError("The system does not allow this program another thread.", fix) if no_thread else None
    assert isinstance(error, OSError)
    try:
        Path.cwd()
    except FileNotFoundError:
        return UserError("The folder you are in was removed.", "Go to another one: cd")
    where = f": {error.filename}" if error.filename else ""
    return UserError(f"The system refused{where}: {error.strerror or error}.", "Check permissions and free space.")


def _print_error(error: UserError, as_json: bool) -> None:
    with contextlib.suppress(OSError):  # where nothing can be printed, there is still the exit code
        if as_json:
            print_json({"error": {"message": error.message, "fix": error.fix, "exit_code": int(error.code)}})
            return
        # Messages quote names of files and ranges.
        print(f"llm-perf: {printable(error.message)}", file=sys.stderr)
        if error.fix:
            print(f"  → {printable(error.fix)}", file=sys.stderr)


def entry() -> None:
    """For wrappers that were installed before `cli.entry` was the console script."""
    from llm_perf_opt.cli.entry import entry as start

    start()
