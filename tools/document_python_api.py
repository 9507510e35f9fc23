"""Runs the snippets of docs/python-api.md in order and writes what each shows below it; a test says when it is out of date.

    python tools/document_python_api.py

As in a notebook: one namespace for the whole page, and of each snippet the printed text and its last expression.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from code import InteractiveInterpreter
from pathlib import Path
from types import CodeType
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python-api.md"
_CELL = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)


def page(text: str) -> str:
    """The page with the output of every snippet as it is now."""
    names: dict[str, Any] = {}

    def cell(match: re.Match[str]) -> str:
        shown = run(match["code"], names)
        output = f"\n```text\n{shown}\n```\n" if shown else ""
        return f"```python\n{match['code']}```\n{output}"

    return _CELL.sub(cell, text)


def run(code: str, names: dict[str, Any]) -> str:
    """What one snippet shows: as at the prompt, but texts as they are."""
    out = io.StringIO()
    shell = _Shell(names)
    with contextlib.redirect_stdout(out):
        for statement in ast.parse(code).body:
            shell.runsource(ast.unparse(statement) + "\n", PAGE.name)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


class _Shell(InteractiveInterpreter):
    """Python's own prompt, which shows the value of every expression; a snippet that fails is an error."""

    def runcode(self, code: CodeType) -> None:
        shown, sys.displayhook = sys.displayhook, _display
        try:
            super().runcode(code)
        finally:
            sys.displayhook = shown

    def showtraceback(self) -> None:
        raise


def _display(value: object) -> None:
    if value is not None:
        print(value if isinstance(value, str) else repr(value))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
