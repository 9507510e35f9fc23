"""`llm-perf try -- CMD`: what makes a program faster, tried from outside, its outputs compared."""

from __future__ import annotations

import argparse

from llm_perf_opt.cli.arguments import values_of
from llm_perf_opt.errors import ExitCode

HELP = "try fixes without changing your code: what each gains, and whether the results stay the same"
DESCRIPTION = """\
Measures CMD, and applies each suggested fix that has a lever from outside, alternating timed runs with and
without it. Levers that do not take effect, or that change what the program computes, are detected and not timed. None
of your files are changed; the code to write is printed at the end.
Without Nsight Systems there are no suggested fixes: levers that fit what the program does are tried.
"""
EXAMPLES = """\
examples:
  llm-perf try -- python generate.py
  llm-perf try --levers compile,static-cache --runs 5 -- python generate.py
  llm-perf try --levers my_lever.py -- python train.py
  llm-perf try --budget 10m -- python train.py
  llm-perf try --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="*", metavar="CMD", help="the program and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list(as_json=arguments.json)
    from llm_perf_opt.request import profile_request
    from llm_perf_opt.trying.start import try_program

    request = profile_request(values_of(arguments), arguments.command)
    settings = {k: v for k, v in vars(arguments).items() if k not in ("run", "verb", "command", "typed")}
    return try_program(request, settings, arguments.typed, as_json=arguments.json, quiet=arguments.quiet)


def _list(*, as_json: bool) -> int:
    from llm_perf_opt.json_output import print_json
    from llm_perf_opt.trying.levers import all_levers

    if as_json:
        print_json(
            {
                "levers": [
                    {"name": one.name, "title": one.title, "about": one.about, "rules": list(one.rules)}
                    | {"needs": list(one.needs), "changes": one.changes, "patch": one.patch}
                    for one in all_levers().values()
                ]
            }
        )
        return int(ExitCode.DONE)
    for lever in all_levers().values():
        print(f"{lever.name}\n    {lever.about}\n    May change: {lever.changes}. Suggested by: {_rules(lever.rules)}")
        print(f"    Write: {lever.patch.splitlines()[0]}" + (" …" if "\n" in lever.patch else ""))
    return int(ExitCode.DONE)


def _rules(rules: tuple[str, ...]) -> str:
    return ", ".join(rules) or "no fix (name it with --levers)"
