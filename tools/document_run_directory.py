"""Writes the table of a run's files into docs/running.md, from rundir/layout.py; a test says when it is out of date.

python tools/document_run_directory.py
"""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.rundir.layout import ARTEFACTS

PAGE = Path(__file__).parents[1] / "docs" / "running.md"
BEGIN, END = "<!-- files: made by tools/document_run_directory.py -->", "<!-- end of files -->"
SHARED = {
    **{"sqlite": "rebuilt", "drop": "dropped", "leave out": "left out", "cmd": "generated again"},
    **{"output": "number of lines only", "profiler log": "known lines only"},
}


def render() -> str:
    """One line for all files that are described alike."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in ARTEFACTS:
        if row.about:
            shared = SHARED.get(row.share, "cleaned")
            lines.setdefault((row.about, shared), []).append(f"`{row.path.replace('{capture}', 'CAPTURE')}`")
    rows = [f"| {', '.join(paths)} | {about} | {shared} |" for (about, shared), paths in lines.items()]
    return "\n".join(["| in the run directory | | in a [copy to share](#sharing-a-run) |", "|---|---|---|", *rows])


def page(old: str) -> str:
    """The page with its table renewed."""
    before, _, rest = old.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
