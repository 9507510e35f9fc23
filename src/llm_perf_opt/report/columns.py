"""A column of a table, as data: its title, how its value is got from a row, and how that is printed.

The stage table and the region table are lists of these. Every output (CSV, data frames, Markdown, page, terminal)
goes through the same list, so that a new column is one entry there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from attrs import define

from llm_perf_opt.report.text import NOT_MEASURED, bar

Row = TypeVar("Row")


def count(value: int) -> str:
    return f"{value:,}"


@define(frozen=True)
class Column(Generic[Row]):
    """One column. `name` is for programs (CSV, data frames), `title` for people; either may be empty: not for them."""

    name: str
    value: Callable[[Row], Any]  # None: not measured
    title: str = ""
    show: Callable[[Any], str] = str
    hint: str = ""
    detail: Callable[[Row], str] = lambda row: ""  # what the hint adds for one row: the denominators
    missing: Callable[[Row], str] = lambda row: ""  # why there is no value, where that is worth a line
    from_width: int | None = None  # a terminal this wide shows it; None: only outputs with room do
    is_bar: bool = False  # the value is a share, drawn rather than written
    words: bool = False  # left-aligned
    where: str = ""  # the table it belongs to, where there are several

    @property
    def for_people(self) -> bool:
        return bool(self.title) or self.is_bar

    def text(self, row: Row, bar_width: int = 8) -> str:
        value = self.value(row)
        if self.is_bar:
            return bar(value, 1.0, bar_width)
        return NOT_MEASURED if value is None else self.show(value)
