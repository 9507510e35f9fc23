"""`llm-perf runs history`: from a folder of runs to how their regions changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.comparing_sides import write_files
from llm_perf_opt.comparing.history import ProgramHistory, histories
from llm_perf_opt.errors import UserError

if TYPE_CHECKING:
    from llm_perf_opt.comparing.side import Side


def read_history(folder: Path) -> tuple[list[ProgramHistory], list[tuple[str, str]]]:
    """All runs below a folder, oldest first; and those that could not be read, with the reason."""
    from llm_perf_opt.rundir.inventory import take_inventory

    sides: list[Side] = []
    failed = []
    for run in sorted(take_inventory(folder).runs, key=lambda run: run.started):
        try:
            side = _side(run.path)
        except UserError as error:
            failed.append((_label(run.path, folder), error.message))
            continue
        side.label, side.made_at = _label(run.path, folder), run.started.isoformat(timespec="seconds")
        if side.regions:
            sides.append(side)
        else:
            failed.append((side.label, "It has no regions."))
    return histories(sides), failed


def _label(run: Path, folder: Path) -> str:
    """Where it lies below the folder: two runs may have one name."""
    inside = run.relative_to(folder).as_posix() if run.is_relative_to(folder) else "."
    return run.name if inside == "." else inside


def _side(path: Path) -> Side:
    """From the report, which is much faster to read; from the recordings where there is none."""
    from llm_perf_opt.api.inputs import run_facts
    from llm_perf_opt.api.sides import add_facts, open_side
    from llm_perf_opt.comparing.reported import side_of_report
    from llm_perf_opt.report.json_report import read_report

    if not (path / "report.json").is_file():
        return open_side(path, quiet=True)
    side = side_of_report(read_report(path), path.name)
    add_facts(side, run_facts(path))
    return side


def write_history(programs: list[ProgramHistory], out: Path, *, force: bool = False) -> list[Path]:
    """history.json and history.html."""
    from llm_perf_opt.comparing.history_page import render_history_html
    from llm_perf_opt.json_output import SCHEMA_VERSION

    content = {"schema_version": SCHEMA_VERSION, "programs": [program.as_json() for program in programs]}
    texts = {
        "history.json": json.dumps(content, indent=1, allow_nan=False) + "\n",
        "history.html": render_history_html(programs),
    }
    return write_files(texts, out, force=force)
