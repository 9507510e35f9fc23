"""Changes planted into a real nsys export, so that what a comparison has to find is known to the nanosecond."""

from __future__ import annotations

import json
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

from conftest import plain_bytes, recording
from llm_perf_opt.readers.measured import collect
from llm_perf_opt.regions.gpu_samples import COLUMNS

KERNELS, RUNTIME, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"


class Planted:
    """A copy of a recording that can be changed; use it as a context manager."""

    def __init__(self, path: Path, name: str = "nsys*-decoder-8layers-warm.sqlite") -> None:
        self.path = path
        path.write_bytes(plain_bytes(recording(name)))
        self.db = sqlite3.connect(path)

    def __enter__(self) -> Planted:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.commit()
        self.db.close()

    def insert_time(self, moments: Sequence[int], lengths: int | Sequence[int]) -> None:
        """At each moment, all that comes later is later by so much; what goes on then takes so much longer."""
        each = [lengths] * len(moments) if isinstance(lengths, int) else lengths
        ordered = sorted(zip(moments, each, strict=True))
        at, later_by = [moment for moment, _ in ordered], [0, *accumulate(length for _, length in ordered)]
        for (table,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in self.db.execute(f"PRAGMA table_info({table})")]
            times = [column for column in ("start", "end") if column in columns]
            if "start" not in times:
                continue
            rows = self.db.execute(
                f"SELECT rowid, {', '.join(map('{!r}'.format, times))} FROM {table}".replace("'", '"')
            )
            moved = []
            for rowid, *found in rows.fetchall():
                later = [None if t is None else t + later_by[bisect_right(at, t)] for t in found]
                moved.append((*later, rowid))
            sets = ", ".join(f'"{column}" = ?' for column in times)
            self.db.executemany(f"UPDATE {table} SET {sets} WHERE rowid = ?", moved)

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """Start and end of the ranges with this name."""
        return self.db.execute(
            f"SELECT r.start, r.end FROM {RANGES} r JOIN StringIds s ON s.id = r.textId WHERE s.value = ? ORDER BY r.start",
            (name,),
        ).fetchall()

    def kernels(self, short_name: str, within: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Row and end of the kernels of this name that were launched in these stretches of time."""
        found = self.db.execute(
            f"SELECT k.rowid, k.end, r.start FROM {KERNELS} k JOIN StringIds s ON s.id = k.shortName "
            f"JOIN {RUNTIME} r ON r.correlationId = k.correlationId WHERE s.value LIKE ? ORDER BY k.start",
            (f"%{short_name}%",),
        ).fetchall()
        return [(row, end) for row, end, host in found if any(start <= host <= stop for start, stop in within)]

    def slow_down(self, short_name: str, ranges: str, length: int) -> int:
        """Every launch of a kernel in these ranges takes so much longer; how many there are."""
        chosen = self.kernels(short_name, self.ranges(ranges))
        self.insert_time([end for _, end in chosen], length)
        return len(chosen)

    def lower_clock(self, ranges: str, factor: float) -> float:
        """Every kernel launched in these ranges takes so many times as long; by how much a range is longer, in the mean."""
        within = self.ranges(ranges)
        chosen = self.kernels("", within)
        starts = dict(self.db.execute(f"SELECT rowid, start FROM {KERNELS}"))
        lengths = [round((factor - 1) * (end - starts[row])) for row, end in chosen]
        self.insert_time([end for _, end in chosen], lengths)
        return sum(lengths) / len(within)

    def add_launches(self, short_name: str, ranges: str, each: int) -> tuple[int, int]:
        """As many launches more in each of these ranges, one after the other: the first kernel of this name again.

        How long one takes, and how long the gap is that each comes with.
        """
        row, end = self.kernels(short_name, self.ranges(ranges))[0]
        (start,) = self.db.execute(f"SELECT start FROM {KERNELS} WHERE rowid = ?", (row,)).fetchone()
        took, gap = end - start, 1_000
        self.insert_time([(a + b) // 2 for a, b in self.ranges(ranges)], each * (took + gap))
        correlation = self.db.execute(f"SELECT max(correlationId) FROM {RUNTIME}").fetchone()[0]
        (call,) = self.db.execute(
            f"SELECT rowid FROM {RUNTIME} WHERE correlationId = (SELECT correlationId FROM {KERNELS} WHERE rowid = ?)",
            (row,),
        ).fetchone()
        for begin, stop in self.ranges(ranges):
            # The inserted time is in the middle of what was there before.
            at = (begin + stop - each * (took + gap)) // 2
            for _ in range(each):
                correlation += 1
                self._copy(KERNELS, row, start=at + 500, end=at + 500 + took, correlationId=correlation)
                self._copy(RUNTIME, call, start=at, end=at + 400, correlationId=correlation)
                at += took + gap
        return took, gap

    def add_synchronisations(self, ranges: str, length: int) -> None:
        """One more in each of these ranges, in which nothing happens."""
        self.insert_time([(a + b) // 2 for a, b in self.ranges(ranges)], length)
        (name,) = self.db.execute("SELECT id FROM StringIds WHERE value LIKE 'cudaDeviceSynchronize%'").fetchone()
        (call,) = self.db.execute(f"SELECT min(rowid) FROM {RUNTIME}").fetchone()
        (thread,) = self.db.execute(f"SELECT globalTid FROM {RANGES} WHERE textId IS NOT NULL LIMIT 1").fetchone()
        for number, (begin, stop) in enumerate(self.ranges(ranges)):
            at = (begin + stop - length) // 2
            values = {"start": at, "end": at + length, "correlationId": 10**7 + number}
            self._copy(RUNTIME, call, nameId=name, globalTid=thread, **values)

    def rename(self, old: str, new: str) -> None:
        self.db.execute("UPDATE StringIds SET value = ? WHERE value = ?", (new, old))

    def swap_kernel(self, short_name: str, ranges: str, name: str) -> int:
        """Launches of a kernel in these ranges are of another one now."""
        number = self.db.execute("SELECT max(id) FROM StringIds").fetchone()[0] + 1
        self.db.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        chosen = self.kernels(short_name, self.ranges(ranges))
        columns = "demangledName = ?, shortName = ?, mangledName = ?"
        self.db.executemany(
            f"UPDATE {KERNELS} SET {columns} WHERE rowid = ?", [(number, number, number, row) for row, _ in chosen]
        )
        return len(chosen)

    def _copy(self, table: str, row: int, **values: int) -> None:
        columns = [found[1] for found in self.db.execute(f"PRAGMA table_info({table})")]
        taken = ", ".join("?" if column in values else f'"{column}"' for column in columns)
        given = [values[column] for column in columns if column in values]
        self.db.execute(f"INSERT INTO {table} SELECT {taken} FROM {table} WHERE rowid = ?", (*given, row))


def as_run(folder: Path, recording: Planted, mhz: int, around: str, inside: str, runs: int = 5) -> Path:
    """A run directory with the recording, and the program measured: ranges as long as they are in it, the SM clock."""
    (folder / "nsys").mkdir(parents=True)
    (folder / "measure").mkdir()
    recording.db.commit()
    (folder / "nsys" / "run.sqlite").write_bytes(recording.path.read_bytes())
    left, seen = [], []
    for run in range(runs):
        left.append(folder / f"left-{run}")
        left[-1].mkdir()
        names = [{"name": [0, "LLM", around]}, {"name": [1, "LLM", inside]}, {"uuid": "1-2"}]
        (left[-1] / "7-1.names").write_text("".join(json.dumps(line) + "\n" for line in names))
        rows, later = array("q"), 10**12 * (run + 1)
        stretch = 1 + 0.001 * (run - runs // 2)  # runs of one program differ
        moments = [(n, *times) for n, name in enumerate((around, inside)) for times in recording.ranges(name)]
        for number, *times in sorted(moments, key=lambda row: (row[2], -row[0])):
            start, end = (later + round(stretch * time) for time in times)
            rows.extend((number, 7, start, end, start, end, 0, 0))
        (left[-1] / "7-1.rows").write_bytes(rows.tobytes())
        first, last = min(row[1] for row in moments), max(row[2] for row in moments)
        at = [later + round(stretch * (first + (last - first) * part / 40)) for part in range(-4, 45)]
        samples = [[t, 40_000 * n, mhz, 2600, 400_000, 60, 0, 10**9] for n, t in enumerate(at)]
        facts = {"uuid": "GPU-1-2", "name": "NVIDIA H200", "power_limit_mw": 700_000, "max_sm_mhz": 1980}
        seen.append([{**facts, "columns": list(COLUMNS), "samples": samples, "others": []}])
    collect(left, folder / "measure" / "run.json", seen)
    return folder


def short_names(path: Path) -> list[str]:
    """Short names of the kernels of an export, the most frequent first."""
    with closing(sqlite3.connect(path)) as db:
        return [
            name
            for name, _ in db.execute(
                f"SELECT s.value, count(*) FROM {KERNELS} k JOIN StringIds s ON s.id = k.shortName GROUP BY 1 ORDER BY 2 DESC"
            )
        ]
