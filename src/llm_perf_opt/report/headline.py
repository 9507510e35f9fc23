"""What a report found, from the beginning of its file: lists of runs show it, and a report may have megabytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from llm_perf_opt.regions.names import visible
from llm_perf_opt.untrusted import read_head

_HEAD = 64 << 10  # bytes; the answer comes before everything else
_FIELD = r'"{}":\s*("(?:[^"\\]|\\.)*")'
_LONGEST = 400


def read_trial_result(run: Path) -> str:
    """The first sentence of a trial (`try.json`) in a folder; empty where there is none."""
    try:
        head = read_head(run / "try.json", _HEAD).decode("utf-8", "replace")
        found = re.search(r'"sentences":\s*\[\s*("(?:[^"\\]|\\.)*")', head)
        return visible(str(json.loads(found[1])), _LONGEST) if found else ""
    except (OSError, ValueError):
        return ""


def read_headline(run: Path) -> dict[str, str]:
    """`stage`, `verdict`, `confidence` and `where` of the report in a folder; empty where there is none."""
    try:
        head = read_head(run / "report.json", _HEAD).decode("utf-8", "replace")
    except OSError:
        return {}
    _, found, answer = head.partition('"answer":')
    fields = {}
    for name in ("stage", "verdict", "confidence", "where") if found else ():
        if match := re.search(_FIELD.format(name), answer):
            try:
                fields[name] = visible(str(json.loads(match[1])), _LONGEST)
            except ValueError:
                return {}
    return fields if fields.get("where", "(empty name)") != "(empty name)" else {}
