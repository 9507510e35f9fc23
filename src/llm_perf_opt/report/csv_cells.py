"""Cells of CSV files, which people open in spreadsheets.

A text that begins like a formula is one there, and names come from strangers: `=HYPERLINK(…)` as a range would send
what stands beside it away at a click. Such a text gets an apostrophe in front, which spreadsheets take as the sign
for text. The name as it was recorded is in `report.json`. Numbers are left alone.
"""

from __future__ import annotations

from typing import Any

# The full-width forms count as well in some languages' spreadsheets.
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


def cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA and value else value
