r"""Cells of CSV files, which people open in spreadsheets.

A text that begins like a formula is one there, and names come from anybody: `=HYPERLINK(…)` as a range would send
what stands beside it away at a click. Such a text gets an apostrophe in front, which spreadsheets take as the sign
for text. People also look at such files in a terminal, where an escape sequence would act, and some readers stop at a
zero byte: control characters are written as in `\x1b`, but for the ends of lines and tabs. A carriage return by itself is
none: Python does not quote it, and a spreadsheet would begin a row there, with a formula perhaps. The name as it was recorded is
in `report.json`. Numbers are left alone.
"""

from __future__ import annotations

import re
from typing import Any

from llm_perf_opt.regions.names import printable

_PLAIN = re.compile(r"((?:\t|\r?\n)+)")
# The full-width forms count as well in some languages' spreadsheets.
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


def cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula, and no terminal for an order."""
    if not isinstance(value, str) or not value:
        return value
    if not value.isprintable():  # a quick look
        value = "".join(part if _PLAIN.fullmatch(part) else printable(part) for part in _PLAIN.split(value))
    # Some leave out spaces in front when they open a file.
    return f"'{value}" if value[:1] in _FORMULA or value.lstrip()[:1] in _FORMULA else value
