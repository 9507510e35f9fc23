"""Writes the tables of diagnoses into docs/troubleshooting.md; a test says when they are out of date.

    python tools/document_diagnoses.py

The words are those of two catalogues: `diagnoses.toml`, and `nsight/messages.toml` for what nsys and ncu say.
What a run fills in is `…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from llm_perf_opt.diagnosis import catalogue
from llm_perf_opt.nsight.messages import RULES, STATES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
BEGIN, END = "<!-- diagnoses: made by tools/document_diagnoses.py -->", "<!-- end of diagnoses -->"
HOLE = "…"

# Sections of the catalogue, as the page calls them and in its order.
SECTIONS = {
    "report": "In a report",
    "profiling": "While profiling",
    "static_analysis": "In static analysis",
    "planning": "While planning the counters",
}


class Found:
    """One code: its severities, meanings and fixes, each once, in the order they were met."""

    def __init__(self) -> None:
        self.severities: dict[str, None] = {}
        self.meanings: dict[str, None] = {}
        self.fixes: dict[str, None] = {}

    def add(self, severity: str, meaning: str, fix: str) -> None:
        for text, known in ((severity, self.severities), (meaning, self.meanings), (fix, self.fixes)):
            if text:
                known[re.sub(r"\{\w[^}]*\}", HOLE, text)] = None


def collect() -> dict[str, dict[str, Found]]:
    """Section -> code -> what is known of it."""
    sections: dict[str, dict[str, Found]] = {name: {} for name in SECTIONS}
    for wording in catalogue().values():
        found = sections[wording.section].setdefault(wording.code, Found())
        found.add(wording.severity, wording.meaning or wording.message, wording.advice or wording.fix)
    for rule in (*RULES, *STATES.values()):
        sections["profiling"].setdefault(rule.code, Found()).add(rule.severity, rule.cause, rule.fix)
    return sections


def cell(texts: Iterable[str]) -> str:
    """Texts for one cell of a table; what stands between backticks is code already."""
    joined = " / ".join(re.sub(rf"(?:{HOLE}\s*){{2,}}", f"{HOLE} ", text).strip() for text in texts)
    parts = re.sub(r"\s+", " ", joined).split("`")
    parts[::2] = [re.sub(r"[*<_]", lambda found: f"\\{found[0]}", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|") or "–"


def render() -> str:
    """The tables, a section each."""
    parts = []
    for section, codes in collect().items():
        rows = [
            f"| `{code}` | {', '.join(found.severities)} | {cell(found.meanings)} | {cell(found.fixes)} |"
            for code, found in sorted(codes.items())
        ]
        head = ["| code | | what it says | what to do |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {SECTIONS[section]}", "", *head, *rows]))
    return "\n\n".join(parts)


def page(old: str) -> str:
    """The page with its tables renewed."""
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
