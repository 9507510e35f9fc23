"""The answer, the stage table, the region table and diagnoses as Markdown, for all files that show them."""

from __future__ import annotations

from llm_perf_opt.diagnosis import Diagnosis
from llm_perf_opt.report.md_syntax import code, plain, row
from llm_perf_opt.report.region_table import shown_columns, shown_rows
from llm_perf_opt.report.stages import MOST_STAGES, stage_columns
from llm_perf_opt.report.text import NOT_MEASURED, full_label
from llm_perf_opt.report.view import View

_TABLE_REGIONS = 300  # rows of the region table


def answer_lines(view: View) -> list[str]:
    """Where, why, what to do first."""
    return [f"- **{line.name}**: {plain(line.text)}" for line in view.answer.lines]


def stage_lines(view: View, where: str = "", *, brief: bool = False) -> list[str]:
    """A line a stage; columns and lines that have no value at all are left out."""
    columns = stage_columns(where, brief=brief)
    cells = [(region, [column.text(region) for column in columns]) for region in view.stages[:MOST_STAGES]]
    cells = [(region, words) for region, words in cells if set(words) != {NOT_MEASURED}]
    shown = [n for n in range(len(columns)) if any(words[n] != NOT_MEASURED for _, words in cells)]
    lines = [row(["stage", *(columns[n].title for n in shown)])]
    lines.append(row(["---", *("---" if columns[n].words else "---:" for n in shown)]))
    return [*lines, *(row([code(full_label(r)), *(plain(words[n]) for n in shown)]) for r, words in cells)]


def region_lines(view: View) -> list[str]:
    """The tree of regions, the heaviest."""
    if view.scope is None:
        return []
    columns, rows = shown_columns(view.report), shown_rows(view.scope, _TABLE_REGIONS)
    head = ["region", *(column.title for column in columns)]
    lines = [row(head), row(["---", *("---" if column.is_bar else "---:" for column in columns)])]
    for line in rows:
        name = "&nbsp;&nbsp;" * (2 * min(line.indent, 30)) + code(line.text)
        lines.append(row([name, *(column.text(line) for column in columns)]))
    hidden = len(view.regions) - len(rows)
    if hidden > 0:
        lines += ["", f"{hidden:,} more regions are in `report.json` and `regions.csv`."]
    if sum(column.is_bar for column in columns) > 1:
        lines += ["", "The first bar is idle time, the second the share of all GPU time."]
    return lines


def diagnosis_words(diagnosis: Diagnosis) -> str:
    """What is the matter, and what to do."""
    return plain(diagnosis.message) + (f" → {plain(diagnosis.fix)}" if diagnosis.fix else "")
