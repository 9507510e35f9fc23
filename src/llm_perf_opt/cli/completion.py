"""`llm-perf completion SHELL`: a script that lets the shell complete verbs, options and file names.

The script is made once, from the parser itself, and knows everything by heart: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
import sys

from llm_perf_opt.errors import ExitCode, MissingTool
from llm_perf_opt.json_output import print_json

HELP = "print a script that completes verbs, options and files in bash, zsh or fish"
DESCRIPTION = """\
Prints a completion script for a shell. It is made from the options of this version: print it again after an
update.
"""
EXAMPLES = """\
examples:
  source <(llm-perf completion bash)                                            for this shell
  llm-perf completion bash > ~/.local/share/bash-completion/completions/llm-perf   for every bash
  llm-perf completion zsh > ~/.zfunc/_llm-perf        (with fpath+=~/.zfunc before compinit)
  llm-perf completion fish > ~/.config/fish/completions/llm-perf.fish
"""
SHELLS = ("bash", "zsh", "fish")
_FOLDERS = {"DIR"}
_FILES = {"INPUT", "FILE", "RUN", "RUN|FILE", "CMD"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.cli.main import build_parser

    text = script(build_parser(), arguments.shell)
    if arguments.json:
        print_json({"shell": arguments.shell, "script": text})
    else:
        print(text)
    sys.stdout.flush()
    return int(ExitCode.DONE)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser and all its verbs."""
    try:
        import shtab
    except ImportError as error:
        raise MissingTool(
            "Completion scripts are made by the package shtab, which is not installed here.",
            "Install it: pip install shtab",
        ) from error
    _say_what_is_a_file(parser, shtab.FILE, shtab.DIRECTORY)
    text: str = shtab.complete(parser, shell)
    return text


def _say_what_is_a_file(parser: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Options and arguments that take a path, by the name their value has in the help."""
    for action in parser._actions:
        if action.metavar in _FILES:
            action.complete = file  # type: ignore[attr-defined]  # where shtab looks
        elif action.metavar in _FOLDERS:
            action.complete = folder  # type: ignore[attr-defined]
        if isinstance(action.choices, dict):
            for verb in action.choices.values():
                _say_what_is_a_file(verb, file, folder)
