"""The one folder that an agent may read, and what lies in it: runs, reports and recordings.

Nothing outside it is opened, whatever a path, a link or a run directory says, and nothing in it is written.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, define, field

from llm_perf_opt.api.inputs import run_facts
from llm_perf_opt.api.result import Report, open_report
from llm_perf_opt.errors import UserError
from llm_perf_opt.report.headline import read_headline
from llm_perf_opt.rundir.layout import COMMIT, MANIFEST

_OPEN = 8  # reports kept in memory
_MOST_ENTRIES = 20_000  # files and folders looked at
_DEEPEST = 4
_ENDINGS = (".sqlite", ".nsys-rep", ".ncu-rep", ".csv", ".json")  # of recordings, packed or not

Names = str | Sequence[str]


def _existing(root: Path) -> Path:
    found = root.resolve()
    if not found.is_dir():
        raise UserError(f"{root} is not a folder.", "Give the folder of your runs: llm-perf mcp --root FOLDER")
    return found


@define
class Workspace:
    """Everything below `root`."""

    root: Path = field(converter=_existing)
    _opened: dict[tuple[tuple[str, float], ...], Report] = Factory(dict)

    def path(self, name: str) -> Path:
        """The file or folder of this name; refused where it lies elsewhere."""
        try:
            found = (self.root / name).resolve()
            if "\0" in name or not found.is_relative_to(self.root):
                raise UserError(
                    f"{name!r} is outside the folder that may be read.", "Give a path that list_runs names."
                )
            if not found.exists():
                raise UserError(f"There is no {name!r} here.", "list_runs shows what there is.")
        except (OSError, ValueError) as error:
            raise UserError(f"{name!r} cannot be read.", "Give a path that list_runs names.") from error
        return found

    def input(self, name: str) -> Path:
        """A run or a recording that may be opened: no link in it leads out, and opening it writes nothing."""
        found = self.path(name)
        if (found if found.is_dir() else found.parent).joinpath(COMMIT).exists():
            raise UserError(
                f"A report in {name!r} was being written.", f"Run once: llm-perf report {shlex.quote(name)}"
            )
        for number, place in enumerate(_all_below(found) if found.is_dir() else ()):
            if number >= _MOST_ENTRIES:
                raise UserError(f"{name!r} has too many files for a run.", "Give a run, or a recording.")
            if place.is_symlink() and not place.resolve().is_relative_to(self.root):
                raise UserError(f"A link in {name!r} leads outside the folder that may be read.", "Remove the link.")
        return found

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def open(self, names: Names) -> Report:
        """The report of a run, or of recordings that belong together; kept while the files stay as they are."""
        paths = [self.input(name) for name in ([names] if isinstance(names, str) else names)]
        key = tuple((str(path), _changed_at(path)) for path in paths)
        if key not in self._opened:
            while len(self._opened) >= _OPEN:
                self._opened.pop(next(iter(self._opened)))
            self._opened[key] = open_report(*paths)
        return self._opened[key]

    def entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """Runs, reports and recordings below a folder, by their names."""
        yield from self._below(self.path(folder or "."), _DEEPEST, [_MOST_ENTRIES])

    def _below(self, folder: Path, depth: int, left: list[int]) -> Iterator[dict[str, Any]]:
        if (folder / MANIFEST).is_file() or (folder / "report.json").is_file():
            yield self._run(folder)
            return
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # one that may not be read hides no other
            return
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                return
            if entry.is_symlink() or entry.name.startswith("."):
                continue
            if entry.is_dir() and depth > 1:
                yield from self._below(Path(entry.path), depth - 1, left)
            elif entry.is_file() and entry.name.removesuffix(".gz").removesuffix(".xz").endswith(_ENDINGS):
                yield {"run": self.name(Path(entry.path)), "kind": "recording", "bytes": entry.stat().st_size}

    def _run(self, folder: Path) -> dict[str, Any]:
        facts = run_facts(folder)
        return {
            "run": self.name(folder),
            "kind": "run" if facts else "report",
            "state": str(facts.get("state", "")),
            "started_at": str(facts.get("started_at", "")),
            "command": " ".join(facts.get("command") or facts.get("workload") or []),
            **read_headline(folder),
        }


def _all_below(folder: Path) -> Iterator[Path]:
    return (Path(at) / name for at, folders, files in os.walk(folder) for name in (*folders, *files))


def _changed_at(path: Path) -> float:
    places = (path, path / "report.json", path / MANIFEST) if path.is_dir() else (path,)
    return max(place.stat().st_mtime for place in places if place.exists())
