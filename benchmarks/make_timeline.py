"""Makes a large nsys timeline out of a real one.

The recording is repeated end to end: kernels, runtime calls, memory operations and ranges of every copy are
shifted in time and get correlation ids of their own; all else is as recorded. Names, threads, nesting and the
share of launches without a range therefore stay those of a real program, at any size.

    python benchmarks/make_timeline.py --kernels 1080000 benchmarks/data/timeline.sqlite

Rows go from SQLite to SQLite inside one statement a table, so memory stays flat whatever the size.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import math
import re
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "recordings" / "nsys-2025.3.1-h200-decoder-36layers.sqlite.xz"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
REPEATED = re.compile(r"^(CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS)$")
RANGES = (59, 60)  # push/pop and start/end; the other NVTX rows (domains) are said once
GAP_NS = 1_000_000  # between one copy and the next


def unpack(source: Path, target: Path) -> None:
    """Copies a plain, gzip or xz file, unpacked."""
    with source.open("rb") as raw:
        magic = raw.read(6)
    opener = lzma.open if magic == b"\xfd7zXZ\0" else gzip.open if magic[:2] == b"\x1f\x8b" else open
    with opener(source, "rb") as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain)


def extent(db: sqlite3.Connection, tables: list[str]) -> tuple[int, int]:
    """First start and last end of everything that is repeated."""
    low, high = [], []
    for table in tables:
        first, last = db.execute(f'SELECT min(start), max(max(start, coalesce("end", start))) FROM {table}').fetchone()
        if first is not None:
            low.append(first)
            high.append(last)
    return min(low), max(high)


def repeat(db: sqlite3.Connection, table: str, copies: int, span: int, correlations: int) -> None:
    """Appends copies 1 to copies - 1 of a table's rows, one copy after the other."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    shifts = {"start": span, "end": span, "correlationId": correlations}
    values = ", ".join(f'r."{name}" + n.i * {shifts[name]}' if name in shifts else f'r."{name}"' for name in columns)
    only = f"WHERE eventType IN {RANGES}" if table == "NVTX_EVENTS" else ""
    db.execute(f"CREATE TEMP TABLE recorded AS SELECT * FROM {table} {only}")
    # CROSS JOIN keeps the order of the loops: copy by copy, not row by row.
    db.execute(
        f"WITH RECURSIVE n(i) AS"
        f" (SELECT 1 WHERE {copies} > 1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {copies})"
        f" INSERT INTO {table} SELECT {values} FROM n CROSS JOIN temp.recorded AS r"
    )
    db.execute("DROP TABLE temp.recorded")


def make(source: Path, target: Path, *, copies: int = 0, kernels: int = 0) -> dict[str, int]:
    """Writes the timeline; returns its row counts. Give the copies, or the least number of kernels."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".part")
    unpack(source, unfinished)
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as db:
        # No journal and no syncing: if this is interrupted, the .part file is thrown away.
        for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE", "cache_size = -65536"):
            db.execute(f"PRAGMA {setting}")
        present = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = [
            name
            for name in present
            if REPEATED.match(name) and "start" in {row[1] for row in db.execute(f"PRAGMA table_info({name})")}
        ]
        recorded = db.execute(f"SELECT count(*) FROM {KERNELS}").fetchone()[0]
        copies = copies or max(1, math.ceil(kernels / recorded))
        low, high = extent(db, tables)
        correlations = db.execute(f"SELECT max(correlationId) FROM {RUNTIME}").fetchone()[0] + 1
        db.execute("BEGIN")
        for table in tables:
            repeat(db, table, copies, high - low + GAP_NS, correlations)
        db.execute("COMMIT")
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(tables)}
    unfinished.replace(target)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="the SQLite file to write")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the recording to repeat (default: %(default)s)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--copies", type=int, default=0, help="how often the recording is repeated")
    size.add_argument("--kernels", type=int, default=1_080_000, help="at least so many kernels (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.copies < 0 or arguments.kernels < 1:
        parser.error("--copies and --kernels are counts")
    began = time.perf_counter()
    counts = make(arguments.source, arguments.target, copies=arguments.copies, kernels=arguments.kernels)
    for table, count in counts.items():
        print(f"{table}: {count:,}")
    size_mb = arguments.target.stat().st_size / 1e6
    print(f"{arguments.target.name}: {size_mb:,.0f} MB in {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
