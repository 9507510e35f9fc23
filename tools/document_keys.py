"""Writes the tables of options and keys into docs/configuration.md; a test says when they are out of date.

python tools/document_keys.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_perf_opt.options import KEYS, OPTIONS, Option

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
NOTE = "made by tools/document_keys.py"
VERBS = ("profile", "plan", "report", "ranges")
SECTIONS = {
    "pipeline.ncu.ncu_cli": "ncu's command line, one to one",
    "pipeline.ncu": "Counters",
    "pipeline.nsys": "Timeline",
    "pipeline": "Stage 1 and the workload",
    "": "Model, inputs, run",
}


def section_of(name: str) -> str:
    return next(section for section in SECTIONS if name.startswith(f"{section}." if section else ""))


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def key_row(option: Option[Any]) -> str:
    default = "null" if option.default is None else str(option.default)
    shown = default.lower() if option.kind == "switch" else default
    values = f" One of {', '.join(option.choices)}." if option.choices else ""
    return row(f"`{option.key}`", f"`{shown or ' '}`", f"{option.help}{values}")


def flag_row(option: Option[Any]) -> str:
    values = "|".join(option.choices) or option.metavar
    flag = f"{option.flag} {values}".strip()
    default = "off" if option.kind == "switch" else str(option.unset) if option.unset not in (None, "", []) else ""
    # Where both texts are about the flag, `help` is the one for this page: it names no list that grows elsewhere.
    of_flag = option.flag_help if option.key else ""
    text = of_flag[:1].upper() + of_flag[1:] + "." if of_flag else option.help
    key = f"`{option.setting}`" if option.setting else ""
    return row(f"`{flag}`", default, text, ", ".join(v for v in VERBS if v in option.verbs), key)


def keys() -> str:
    """The keys, a section each."""
    parts = []
    for section, title in SECTIONS.items():
        rows = [key_row(option) for option in KEYS.values() if section_of(option.key) == section]
        parts.append("\n".join([f"### {title}", "", "| key | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def flags() -> str:
    """The options of the command line."""
    rows = [flag_row(option) for option in OPTIONS if set(option.verbs) & set(VERBS)]
    head = ["| option | default | meaning | verbs | runners |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def page(old: str) -> str:
    """The page with its tables renewed."""
    for name, text in (("options", flags()), ("keys", keys())):
        begin, end = f"<!-- {name}: {NOTE} -->", f"<!-- end of {name} -->"
        before, _, rest = old.partition(begin)
        old = f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"
    return old


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
