"""Answers of a size that a language model can hold: rows and texts are cut, and `truncated` says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.json_output import SCHEMA_VERSION
from llm_perf_opt.regions.names import printable, visible

MOST_ROWS = 100
MOST_CHARACTERS = 20_000  # of a whole answer as JSON
_LONGEST_TEXT = 600
_LONGEST_LISTS = (20, 10, 5, 2)  # the first with which an answer is small enough


def rows_answer(rows: Sequence[Mapping[str, Any]], limit: int, *, total: int = 0, **more: Any) -> dict[str, Any]:
    """The first rows; `total` where there are more of them than were given."""
    chosen = [dict(row) for row in rows[: max(1, min(limit, MOST_ROWS))]]
    everything = max(total, len(rows))
    while True:
        content = {**more, "rows": chosen, "total": everything, "truncated": len(chosen) < everything}
        answer = capped(content)
        if len(chosen) <= 1 or _size(answer) <= MOST_CHARACTERS:
            return answer
        chosen = chosen[: len(chosen) * 3 // 4]


def capped(content: Mapping[str, Any]) -> dict[str, Any]:
    """Names and texts come from recordings: control characters are made visible; long texts and lists are cut."""
    for longest in _LONGEST_LISTS:
        cut: list[bool] = []
        rows = [_shortened(row, longest, cut) for row in content.get("rows", ())]
        found = {name: _shortened(value, longest, cut) for name, value in content.items() if name != "rows"}
        found |= {"rows": rows} if "rows" in content else {}
        found["truncated"] = bool(content.get("truncated")) or bool(cut)
        if _size(found) <= MOST_CHARACTERS:
            break
    return {"schema_version": SCHEMA_VERSION, **found}


def _size(answer: Mapping[str, Any]) -> int:
    return len(json.dumps(answer, indent=2))  # as the SDK writes it


def _shortened(value: Any, longest: int, cut: list[bool]) -> Any:
    if isinstance(value, str):
        if len(value) <= _LONGEST_TEXT:
            return printable(value)
        cut.append(True)
        return f"{printable(value[:_LONGEST_TEXT])}…"
    if isinstance(value, Mapping):
        return {visible(str(name)): _shortened(inner, longest, cut) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) > longest:
            cut.append(True)
        return [_shortened(inner, longest, cut) for inner in value[:longest]]
    return value
