"""Writes the table of licences into docs/licences.md, from what the packages say of themselves; a test says when it is
out of date.

    python tools/document_licences.py    needs the packages of the lock to be installed (make setup)
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bundle import NCU_REPORT, TARGETS, lock_file

PAGE = Path(__file__).parents[1] / "docs" / "licences.md"
BEGIN, END = "<!-- made by tools/document_licences.py -->\n", "<!-- end -->\n"
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+?)(?: License)?$")


def locked() -> dict[str, set[str]]:
    """Every package that a bundle may hold, with the versions the locks name."""
    found: dict[str, set[str]] = {}
    for target in TARGETS:
        for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", lock_file(target).read_text("utf-8"), re.MULTILINE):
            found.setdefault(name, set()).add(version)
    return dict(sorted(found.items()))


def licence_of(package: str) -> str:
    """What an installed package says: an expression, a short word, or a classifier, in this order."""
    said = importlib.metadata.metadata(package)
    if expression := said.get("License-Expression") or said.get("License"):
        return str(expression).splitlines()[0].strip()
    found = [match[1] for text in said.get_all("Classifier") or () if (match := _CLASSIFIER.match(text))]
    return " and ".join(found) or "not said"


def row(package: str) -> str:
    bundled = "only with `WITH_NCU_REPORT=1`" if package == NCU_REPORT else "yes"
    licence = "NVIDIA Software License Agreement" if package == NCU_REPORT else licence_of(package)
    return f"| [{package}](https://pypi.org/project/{package}/) | {licence} | {bundled} |\n"


def page(text: str) -> str:
    """The page with its table made anew."""
    head, _, rest = text.partition(BEGIN)
    table = "| package | licence | in the bundle |\n|---|---|---|\n" + "".join(map(row, locked()))
    return f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
