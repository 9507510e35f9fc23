"""Which inputs are finished reports: asked of every input, before anything that reads or makes one is imported."""

from __future__ import annotations

from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.untrusted import read_head

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis import Diagnosis

_HEAD = 4096  # bytes of a JSON file that tell a report from a trace


def finish_report(path: Path) -> Diagnosis | None:
    """Before a folder or its report.json is read: finish what a killed command began; a mixture of reports is told."""
    from llm_perf_opt.rundir.draft import settle

    folder = path if path.is_dir() else path.parent
    return settle(folder) if path.is_dir() or path.name == "report.json" else None


def is_report(path: Path, *, alone: bool) -> bool:
    """Is this a finished report, or a folder with one? Traces of PyTorch are JSON too.

    Of several run directories (the ranks of a job) the recordings are meant, not their reports.
    """
    if path.is_dir():
        return alone and (path / "report.json").is_file()
    if path.name == "report.json":
        return True
    try:
        head = read_head(path, _HEAD).lstrip()
    except OSError:
        return False  # the reader says what is wrong with it
    return head.startswith(b"{") and b'"schema_version"' in head


def recordings_beside(path: Path) -> list[str]:
    """The run directory itself where it still has its recordings: a report is often all that is kept."""
    from llm_perf_opt.api.inputs import expand

    if not path.is_dir():
        return []
    try:
        expand(path)
    except UnreadableInput:
        return []
    return [fspath(path)]
