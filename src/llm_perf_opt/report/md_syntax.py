"""Names and text in Markdown: nothing of a recording is ever read as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from llm_perf_opt.regions.names import visible


def command(text: str) -> str:
    """A code span to copy, as long as it is; not for tables, where `|` needs a backslash."""
    return code(text, len(text) + 1, "|")


def code(text: str, longest: int = 160, bar: str = "\\|") -> str:
    """A code span: nothing inside it is read as Markdown or HTML, also inside a table."""
    shown = visible(text, longest).replace("|", bar)
    # A span is closed by as many backticks as opened it: one more than stand together inside.
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    # A space next to the fence belongs to the fence; one on its own would be lost.
    space = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{fence}{space}{shown}{space}{fence}"


def plain(text: str) -> str:
    """Text outside code spans: characters that mean something to Markdown or HTML lose their meaning."""
    shown = visible(text, 600).replace("\\", "\\\\")
    for character in "`*_[]<>|#!":
        shown = shown.replace(character, {"<": "&lt;", ">": "&gt;"}.get(character, f"\\{character}"))
    return shown


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: list[str], rows: Iterable[Iterable[str]], numbers: int = 0, notes: int = 0) -> list[str]:
    """A table whose last `numbers` columns are right-aligned, but for `notes` behind them."""
    words = len(head) - numbers - notes
    return [row(head), row(["---"] * words + ["---:"] * numbers + ["---"] * notes), *map(row, rows)]
