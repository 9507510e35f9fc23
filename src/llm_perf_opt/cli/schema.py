"""`llm-perf schema VERB`: what a verb prints with `--json`, and what report.json holds, as JSON Schema."""

from __future__ import annotations

import argparse

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.json_output import print_json

HELP = "print the JSON Schema of a verb's --json output, or of report.json"
DESCRIPTION = """\
Prints the JSON Schema (draft 2020-12) of what a verb prints with --json, or of report.json, the file that every report
has. Without a name, it lists the schemas. Keys may be added; none is renamed or removed without a new schema_version.
"""
EXAMPLES = """\
examples:
  llm-perf schema
  llm-perf schema report
  llm-perf schema runs list
  llm-perf schema report.json > report.schema.json
"""
_FILE = "report.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="VERB", help=f"a verb, as in compare or runs list; or {_FILE}")


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.report.printed_json import SHAPES
    from llm_perf_opt.report.schema import printed_schema, shipped_schema
    from llm_perf_opt.spelling import nearest

    name, known = " ".join(arguments.name), [*SHAPES, _FILE]
    if name and name not in known:
        below = [one for one in known if one.startswith(f"{name} ")]
        raise UserError(
            f"There is no schema of {name!r}.",
            f"Choose from {', '.join(below)}." if below else f"Did you mean {nearest(name, known, 1)[0]}?",
        )
    if name:
        print_json(shipped_schema() if name == _FILE else printed_schema(name), indent=2)
    elif arguments.json:
        print_json({"schemas": known})
    else:
        print("\n".join(known))
    return int(ExitCode.DONE)
