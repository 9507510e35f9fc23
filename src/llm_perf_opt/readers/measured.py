"""Times that a program took of its own ranges, with no profiler (`inject/payload/_llm_perf_annotate/timers.py`).

The processes of a program leave rows of integers and the names they speak of; `collect` makes one file of them, and
`read_measured` a timeline that has ranges and no GPU work. A range takes the time between its CUDA events where it
has them: that is when the GPU got to its work and was done with it, whether the host waited for that or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, fields

from llm_perf_opt.errors import UnreadableInput
from llm_perf_opt.readers.open import MEASURED
from llm_perf_opt.readers.sandbox import Notes
from llm_perf_opt.regions.columns import Int64s, Process, Ranges, Timeline, Work
from llm_perf_opt.untrusted import parse_json, read_text

KIND = "measured"
# The columns of a row, as the program writes them; it cannot import this module.
_ROW = ("number", "name", "thread", "parent", "start", "end", "gpu_start", "gpu_end")
_FILE = re.compile(r"(\d{1,10})-\d{1,20}\.rows")
_LARGEST = 2_000_000_000  # bytes of rows; a day of ranges of a millisecond
_LARGEST_TEXT = 400_000_000


@define(eq=False)
class _OfProcess:
    pid: int
    names: list[tuple[str, str]]  # domain and name
    rows: Int64s  # shape (n, columns)

    def as_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "names": self.names, "rows": self.rows.tolist()}


def collect(folders: Iterable[Path], file: Path) -> int:
    """What the processes of some runs left, one folder a run, as one file; how many ranges that are."""
    processes = [
        _read(rows) for folder in folders for rows in sorted(folder.glob("*.rows")) if _FILE.fullmatch(rows.name)
    ]
    found = [process for process in processes if len(process.rows)]
    text = ", ".join(json.dumps(process.as_json()) for process in found)
    file.write_text(f'{MEASURED} "version": 1, "processes": [{text}]}}\n', encoding="utf-8")
    return sum(len(process.rows) for process in found)


def read_measured(file: Path, source: str | None = None) -> Timeline:
    """The timeline of measured runs; raises UnreadableInput where it has no row that makes sense."""
    found = _processes(file)
    if not found:
        raise UnreadableInput(
            f"{file.name} holds no times: the program opened no range that could be timed.",
            "Mark stages in it with torch.cuda.nvtx.range or nvtx.annotate, or add: --annotate stages",
        )
    strings: dict[str, int] = {}
    domains: dict[str, int] = {"": 0}
    threads: dict[tuple[int, int], int] = {}
    parts = []
    for number, process in enumerate(found):
        names = np.array([strings.setdefault(name, len(strings)) for _, name in process.names], dtype=np.int32)
        of_name = np.array([domains.setdefault(domain, len(domains)) for domain, _ in process.names], dtype=np.int32)
        columns = dict(zip(_ROW, process.rows.T, strict=True))
        thread = [threads.setdefault((number, t), len(threads)) for t in columns["thread"].tolist()]
        parts.append(
            Ranges(
                start=columns["start"],
                end=columns["end"],
                process=np.full(len(process.rows), number, dtype=np.int32),
                thread=np.array(thread, dtype=np.int32),
                domain=of_name[columns["name"]],
                name=names[columns["name"]],
                start_end=np.zeros(len(process.rows), dtype=np.bool_),
                took=_took(columns),
            )
        )
    empty = Work.empty()
    return Timeline(
        source=source or file.name,
        kind=KIND,
        strings=list(strings),
        domains=list(domains),
        processes=[Process(process.pid) for process in found],
        threads=[number for number, _ in threads],
        kernels=empty,
        copies=empty,
        graphs=empty,
        ranges=Ranges(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Ranges)}),
    )


def read_here(path: str, source: str, *columns: bool, notes: Notes) -> Timeline:
    """The same, in the process of a sandbox."""
    return read_measured(Path(path), source)


def _took(columns: dict[str, Int64s]) -> Int64s:
    on_gpu = columns["gpu_end"] >= np.maximum(columns["gpu_start"], 0)
    took: Int64s = np.where(on_gpu, columns["gpu_end"] - columns["gpu_start"], columns["end"] - columns["start"])
    return took


def _processes(file: Path) -> list[_OfProcess]:
    try:
        content = parse_json(read_text(file, _LARGEST_TEXT))
        found = [
            _OfProcess(
                int(process["pid"]),
                [(str(domain), str(name)) for domain, name in process["names"]],
                np.array(process["rows"], dtype=np.int64).reshape(-1, len(_ROW)),
            )
            for process in content["processes"]
        ]
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UnreadableInput(f"{file.name} holds no measured times ({error}).", "Measure again.") from error
    checked = [_OfProcess(p.pid, p.names, _sensible(p.rows, len(p.names))) for p in found]
    return [process for process in checked if len(process.rows)]


def _sensible(rows: Int64s, names: int) -> Int64s:
    """Rows that speak of a name and do not end before they begin."""
    name, start, end = rows[:, 1], rows[:, 4], rows[:, 5]
    return rows[(name >= 0) & (name < names) & (start >= 0) & (end >= start)]


def _read(file: Path) -> _OfProcess:
    """What one process wrote; what was cut off is left out."""
    pid = int(file.name.partition("-")[0])
    try:
        with file.open("rb") as content:
            raw = content.read(_LARGEST)
        lines = read_text(file.with_suffix(".names"), _LARGEST_TEXT, errors="replace").splitlines()
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"{file.name} cannot be read: {error}.", "Measure again.") from error
    names: list[tuple[str, str]] = []
    for line in lines:
        try:
            match parse_json(line):
                case [int(number), str(domain), str(text)] if number == len(names):
                    names.append((domain, text))
        except ValueError:  # the process was killed while it wrote
            continue
    width = len(_ROW)
    rows = np.frombuffer(raw[: len(raw) // (8 * width) * 8 * width], dtype="<i8").reshape(-1, width).astype(np.int64)
    return _OfProcess(pid, names, _sensible(rows, len(names)))
