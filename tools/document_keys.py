"""Writes the tables of configuration keys into docs/configuration.md; a test says when they are out of date.

python tools/document_keys.py
"""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.conf.keys import KEYS, Key

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN, END = "<!-- keys: made by tools/document_keys.py -->", "<!-- end of keys -->"
SECTIONS = {
    "pipeline.ncu.ncu_cli": "ncu's command line, one to one",
    "pipeline.ncu": "Counters",
    "pipeline.nsys": "Timeline",
    "pipeline": "Stage 1 and the workload",
    "": "Model, inputs, run",
}


def section_of(name: str) -> str:
    return next(section for section in SECTIONS if name.startswith(f"{section}." if section else ""))


def row(key: Key) -> str:
    default = "null" if key.default is None else str(key.default).lower() if key.kind == "switch" else str(key.default)
    cells = (f"`{key.name}`", f"`{default or ' '}`", key.help if not key.values else f"{key.help}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def render() -> str:
    """The tables, a section each."""
    parts = []
    for section, title in SECTIONS.items():
        rows = [row(key) for key in KEYS.values() if section_of(key.name) == section]
        parts.append("\n".join([f"### {title}", "", "| key | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def page(old: str) -> str:
    """The page with its tables renewed."""
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
