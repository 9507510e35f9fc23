"""How large may a recording be? Time and memory of `llm-perf report` at the sizes it is meant for, each with a limit.

  kernels   ten million kernels in one timeline (a real recording repeated, see make_timeline.py)
  regions   a hundred thousand differently named ranges, as `emit_nvtx` and numbered steps make them
  depth     ranges nested a thousand deep
  ranks     64 timelines of a million kernels each, read one after another

Whole processes, from the start of the command to the last file written, all formats. It ends with 1 where a limit is
exceeded or a report does not count what the timelines hold. The ranks need 13 GB of disk, which are given back.

    python benchmarks/load.py                     all of it
    python benchmarks/load.py --only ranks --ranks 8
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from bench_report import DATA, RESULTS, BenchmarkFailed, contents, find, machine, measured, timeline, warm
from make_timeline import KERNELS, RUNTIME
from provenance import commit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from synthetic import MAIN_THREAD, PROCESS, SCHEMA

A_RANK = 1_080_000  # kernels; the timeline that bench_report.py uses
# Seconds of processor time, which a busy machine does not change, and MB of the largest process: two to three times
# what was measured.
LIMITS = {"kernels": (90.0, 4500.0), "regions": (90.0, 2500.0), "depth": (60.0, 1500.0), "ranks": (600.0, 2500.0)}


def synthetic(path: Path, ranges: list[tuple[str, int, int]], every: int) -> Path:
    """A timeline of these ranges with a kernel launched `every` so many nanoseconds."""
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    last = max(end for _, _, end in ranges)
    launches = range(0, last, every)
    with closing(sqlite3.connect(unfinished)) as db:
        db.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {SCHEMA}")
        db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, 0)",
            ((start, end, name, MAIN_THREAD) for name, start, end in ranges),
        )
        db.executemany(
            f"INSERT INTO {RUNTIME} VALUES (?, ?, ?, ?, 0)",
            ((at, at + 1, MAIN_THREAD, number) for number, at in enumerate(launches, 1)),
        )
        db.executemany(
            f"INSERT INTO {KERNELS} VALUES (?,?,0,7,?,?,?,?,?,1,1,1,32,1,1,0,0,NULL)",
            (
                (at + 5, at + 5 + every // 2, number, PROCESS, *(1 + number % 40,) * 3)
                for number, at in enumerate(launches, 1)
            ),
        )
        db.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(0, "cudaLaunchKernel"), *((i, f"kernel_{i}") for i in range(1, 42))],
        )
        db.commit()
    unfinished.replace(path)
    return path


def many_regions() -> list[Path]:
    """A hundred phases with a thousand layers each: as many regions as there are ranges."""
    ranges = []
    for step in range(100):
        begin = step * 20_000_000
        ranges.append((f"phase {step}", begin, begin + 19_000_000))
        for op in range(1000):
            at = begin + op * 19_000
            ranges.append((f"layer {op}", at, at + 18_000))
    return [synthetic(DATA / "regions.sqlite", ranges, 10_000)]


def deep() -> list[Path]:
    """A thousand ranges inside one another, a hundred times."""
    ranges = []
    for turn in range(100):
        begin = turn * 20_000_000
        ranges += [(f"level {i}", begin + i * 1000, begin + 19_000_000 - i * 1000) for i in range(1000)]
    return [synthetic(DATA / "deep.sqlite", ranges, 20_000)]


def rank_files(folder: Path, ranks: int) -> list[Path]:
    """The same program on every rank, each with a process id of its own."""
    source = timeline(A_RANK)
    if shutil.disk_usage(folder).free < 1.2 * ranks * source.stat().st_size:
        raise BenchmarkFailed(f"{ranks} ranks need {ranks * source.stat().st_size / 1e9:.0f} GB of disk: give --ranks")
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as db:
        ((gid,),) = db.execute(f"SELECT DISTINCT globalPid FROM {KERNELS}").fetchall()
    data = source.read_bytes()
    # The five bytes above the thread's number are in every row of the process, and nowhere else.
    old = gid.to_bytes(8, "big")[:5]
    files = []
    for rank in range(ranks):
        new = (gid + (rank << 24)).to_bytes(8, "big")[:5]
        files.append(folder / f"rank{rank}.sqlite")
        files[-1].write_bytes(data.replace(old, new))
    with closing(sqlite3.connect(f"file:{files[-1]}?mode=ro", uri=True)) as db:
        for table, column in ((KERNELS, "globalPid"), (RUNTIME, "globalTid")):
            found = db.execute(f"SELECT DISTINCT ({column} >> 24) & 0xFFFFFF FROM {table}").fetchall()
            if found != [((gid >> 24 & 0xFFFFFF) + ranks - 1,)]:
                raise BenchmarkFailed(f"rank {ranks - 1} has other processes in {table}: {found}")
    return files


def run(name: str, files: list[Path], command: str) -> dict[str, Any]:
    """One report, and what it counts."""
    held = contents(files[0])
    for file in files if len(files) < 3 else ():
        warm(file)
    with tempfile.TemporaryDirectory(dir=DATA) as out:
        figure = measured([command, "report", *map(str, files), "--out", out])
        written = {p.name: round(p.stat().st_size / 1e6, 1) for p in Path(out).iterdir() if p.is_file()}
        report = json.loads((Path(out) / "report.json").read_bytes())
    aggregate = next(s for s in report["scopes"] if s["scope"] == "aggregate")
    kernels = aggregate["totals"]["kernel_count"]
    if kernels != held["kernels"] * len(files):
        raise BenchmarkFailed(f"{name}: the report counts {kernels:,} kernels, the timelines hold another number")
    seconds, megabytes = LIMITS[name]
    return {
        "case": name,
        "files": len(files),
        "kernels": kernels,
        "ranges": int(held["ranges"]) * len(files),
        "regions": len(aggregate["regions"]),
        "depth": max(r["depth"] for r in aggregate["regions"]) + 1,
        "scopes": len(report["scopes"]),
        "input_mb": round(sum(f.stat().st_size for f in files) / 1e6),
        "wall_s": round(figure.wall_s, 1),
        "cpu_s": round(figure.cpu_s, 1),
        "peak_rss_mb": round(figure.peak_rss_mb),
        "written_mb": written,
        "limit_s": seconds,
        "limit_mb": megabytes,
        "within_limits": figure.cpu_s <= seconds and figure.peak_rss_mb <= megabytes,
        "diagnostics": sorted({d["code"] for d in report["diagnostics"]}),
    }


HEADINGS = (
    "case",
    "files",
    "kernels",
    "ranges",
    "regions",
    "depth",
    "CPU time",
    "wall time",
    "peak memory",
    "report.json",
    "limits",
)


def row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        found["case"],
        f"{found['files']}",
        f"{found['kernels']:,}",
        f"{found['ranges']:,}",
        f"{found['regions']:,}",
        f"{found['depth']:,}",
        f"{found['cpu_s']:.1f} s",
        f"{found['wall_s']:.1f} s",
        f"{found['peak_rss_mb']:,} MB",
        f"{found['written_mb']['report.json']:.0f} MB",
        f"{found['limit_s']:.0f} s, {found['limit_mb']:,.0f} MB" + ("" if found["within_limits"] else " EXCEEDED"),
    )


def markdown(result: dict[str, Any]) -> str:
    host = result["machine"]
    lines = [
        "# Load: how large a recording may be",
        "",
        f"Written by `python benchmarks/load.py` on {result['date']}: {host['cpu']}, {host['cores']} cores,"
        f" Python {host['python']}. `llm-perf report`, whole processes, all formats.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|" + "---:|" * (len(HEADINGS) - 1),
        *("| " + " | ".join(row(found)) + " |" for found in result["cases"]),
        "",
        "Ranks are read one after another: peak memory is that of one rank, the first one (kept for the pictures of"
        " single launches) and the finished report. Beyond 20,000 regions in all scopes together only the main scope lists"
        " every region, and the report says so. Limits are of CPU time and peak memory; wall time depends on what else the"
        " machine does.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=list(LIMITS), action="append", help="one case; may be repeated")
    parser.add_argument("--kernels", type=int, default=10_000_000, help="of the large timeline (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=64, help="timelines given together (default: %(default)s)")
    parser.add_argument("--llm-perf", metavar="PATH", help="the llm-perf to measure (default: beside this Python)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    command = find(arguments.llm_perf, "llm-perf")
    if command is None:
        parser.error("no llm-perf found: run `make setup`, or give --llm-perf PATH")
    DATA.mkdir(parents=True, exist_ok=True)
    cases: dict[str, Callable[[], list[Path]]] = {
        "kernels": lambda: [timeline(arguments.kernels)],
        "regions": many_regions,
        "depth": deep,
    }
    found = []
    try:
        for name in arguments.only or LIMITS:
            print(f"{name} ...", flush=True)
            if name == "ranks":
                with tempfile.TemporaryDirectory(dir=DATA) as folder:
                    found.append(run(name, rank_files(Path(folder), arguments.ranks), command))
            else:
                found.append(run(name, cases[name](), command))
            print(
                "  " + ", ".join(f"{h}: {cell}" for h, cell in zip(HEADINGS, row(found[-1]), strict=True)), flush=True
            )
    except BenchmarkFailed as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    result = {"date": date, "commit": commit(), "machine": machine(None), "cases": found}
    if not arguments.only:
        (arguments.results / "load.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.results / "load.md").write_text(markdown(result), encoding="utf-8")
        print(f"Written: {arguments.results.name}/load.json and load.md")
    return 0 if all(case["within_limits"] for case in found) else 1


if __name__ == "__main__":
    sys.exit(main())
