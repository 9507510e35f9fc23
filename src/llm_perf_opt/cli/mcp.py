"""`llm-perf mcp`: finished runs for agents, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

from llm_perf_opt.errors import ExitCode
from llm_perf_opt.json_output import print_json

HELP = "serve finished runs to an agent (Model Context Protocol, read-only, over stdio)"
DESCRIPTION = """\
Answers the questions of an agent about runs, reports and recordings below one folder: list_runs, answer, regions,
kernels, lines, compare and evidence. It reads only, opens nothing outside the folder, and speaks over standard input
and output: no port is opened. Needs the extra: pip install 'llm-perf-opt[mcp]'. Your agent starts it; it
prints nothing for people. --json lists the questions and exits.
"""
EXAMPLES = """\
examples:
  llm-perf mcp --root tmp/profile-output
  claude mcp add llm-perf -- llm-perf mcp --root "$PWD"      (in Claude Code; other clients have a file for it)
"""


def run(arguments: argparse.Namespace) -> int:
    from llm_perf_opt.agents.mcp_server import serve
    from llm_perf_opt.agents.questions import Questions
    from llm_perf_opt.agents.workspace import Workspace

    questions = Questions(Workspace(Path(arguments.root)))
    if arguments.json:
        tools = [{"name": one.__name__, "description": inspect.getdoc(one) or ""} for one in questions.all]
        print_json({"root": str(questions.workspace.root), "tools": tools})
    else:
        serve(questions)
    return int(ExitCode.DONE)
