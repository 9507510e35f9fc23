"""How fast is `llm-perf report`, beside reading the same file and doing nothing, and beside nsys itself?

Three things are measured on one machine in one run, in turn, each in a fresh process, on a file that lies in
the page cache; the best time of several rounds counts, and the highest memory:

  sqlite3 fetchall   Python reads just the columns needed and throws them away: the floor of the obvious way
  llm-perf report    the whole command, from start to the written report.json
  nsys stats         `nsys stats --report nvtx_kern_sum`, its nearest answer, where there is an nsys

The timeline is a real recording repeated (make_timeline.py): 1.08 million kernels, and with --large also ten
million, where llm-perf alone is run, to show how time and memory grow. With --trace a PyTorch trace of two million
events (make_trace.py) is read as well, beside Python's `json.load` of it. The results go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from make_timeline import KERNELS, RANGES, RUNTIME, SOURCE
from make_trace import SOURCE as TRACE_SOURCE
from provenance import commit

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
RESULTS = HERE / "results"

# What the reader reads of the tables that grow with a recording, and nothing else (`tests/test_results.py` compares).
_WORK = ("start", "end", "deviceId", "correlationId", "globalPid", "graphNodeId")
FETCHED = {
    KERNELS: (*_WORK, "demangledName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_WORK, "bytes", "copyKind", "srcKind", "dstKind", "migrationCause"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_WORK, "bytes"),
    RUNTIME: ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "domainId", "text", "textId"),
}
FETCHALL = f"""
import sqlite3, sys
db = sqlite3.connect(f"file:{{sys.argv[1]}}?mode=ro", uri=True)
rows = [
    db.execute("SELECT " + ", ".join(f'"{{name}}"' for name in columns) + " FROM " + table).fetchall()
    for table, columns in {FETCHED}.items()
]
"""


JSON_LOAD = "import gzip, json, sys\nwith gzip.open(sys.argv[1]) as file: json.load(file)"


class BenchmarkFailed(Exception):
    """A measured command did not do its work; its figures would mean nothing."""


@dataclass(frozen=True)
class Run:
    """One process, from start to exit."""

    wall_s: float
    cpu_s: float
    peak_rss_mb: float


def measured(argv: list[str]) -> Run:
    """Runs a command and waits for it. Peak memory is that of its largest process, as the system counted it.

    The system counts from before the exec, so the peak is never less than what this process holds itself:
    that is why large imports come last here, and timelines are made in a process of their own.
    """
    # What pip installs is compiled. In a checkout Python does that when it first runs, unless the environment forbids it.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait again
        if child.returncode != 0:
            output.seek(0)
            tail = output.read()[-2000:].decode("utf-8", "replace")
            raise BenchmarkFailed(f"{Path(argv[0]).name} ended with exit status {child.returncode}:\n{tail}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def warm(path: Path) -> None:
    """Reads the file once, so that no measurement pays for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def timeline(kernels: int) -> Path:
    """The timeline of at least so many kernels; made anew when the recording it repeats has changed."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    path = DATA / f"timeline-{kernels}-{digest}.sqlite"
    if not path.exists():
        print(f"Making {path.name} ...", flush=True)
        maker = [sys.executable, str(HERE / "make_timeline.py"), "--kernels", str(kernels), str(path)]
        subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    return path


def contents(path: Path) -> dict[str, float]:
    """What the timeline holds."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:

        def count(what: str) -> int:
            return int(db.execute(f"SELECT count(*) FROM {what}").fetchone()[0])

        return {
            "kernels": count(KERNELS),
            "runtime_calls": count(RUNTIME),
            "ranges": count(f"NVTX_EVENTS WHERE eventType IN {RANGES}"),
            "size_mb": round(path.stat().st_size / 1e6, 1),
        }


def run_fetchall(path: Path) -> Run:
    return measured([sys.executable, "-c", FETCHALL, str(path)])


def run_llm_perf(command: str, path: Path, kernels: int) -> Run:
    with tempfile.TemporaryDirectory(dir=DATA) as out:
        run = measured([command, "report", str(path), "--format", "json", "--out", out])
        reported = reported_kernels(Path(out) / "report.json")
    if reported != kernels:
        raise BenchmarkFailed(f"the report counts {reported} kernels, the timeline has {kernels}")
    return run


def reported_kernels(report: Path) -> int | None:
    """Kernels of the aggregate scope of a report; a fast empty report must not pass for a fast one."""
    if not report.exists():
        raise BenchmarkFailed("llm-perf report wrote no report.json")
    for scope in json.loads(report.read_text(encoding="utf-8"))["scopes"]:
        if scope["scope"] == "aggregate":
            return int(scope["totals"]["kernel_count"])
    return None


def run_nsys(command: str, path: Path) -> Run:
    """On a copy: nsys writes indexes into the file, and would be faster the second time."""
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        copy = Path(folder) / "timeline.sqlite"
        shutil.copyfile(path, copy)
        return measured([command, "stats", "--report", "nvtx_kern_sum", "--format", "csv", "-q", str(copy)])


def rounds(runners: dict[str, Callable[[], Run]], repeat: int, path: Path) -> dict[str, list[Run]]:
    """Takes turns, so that a slow minute of the machine hits everybody."""
    runs: dict[str, list[Run]] = {name: [] for name in runners}
    for turn in range(repeat):
        for name, runner in runners.items():
            warm(path)
            run = runner()
            print(f"  round {turn + 1}/{repeat}  {name}: {run.wall_s:.2f} s, {run.peak_rss_mb:,.0f} MB", flush=True)
            runs[name].append(run)
    return runs


def summary(runs: list[Run], kernels: float) -> dict[str, Any]:
    best = min(runs, key=lambda run: run.wall_s)
    return {
        "wall_s": round(best.wall_s, 3),
        "cpu_s": round(best.cpu_s, 3),
        "peak_rss_mb": round(max(run.peak_rss_mb for run in runs), 1),
        "us_per_kernel": round(best.wall_s / kernels * 1e6, 4),
        "runs": [{name: round(value, 3) for name, value in asdict(run).items()} for run in runs],
    }


def first_line(argv: list[str]) -> str:
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (answer.stdout.strip() or "unknown").splitlines()[0]


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine(nsys: str | None) -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "numpy": package("numpy"),
        "llm-perf-opt": package("llm-perf-opt"),
        "nsys": first_line([nsys, "--version"]) if nsys else "not present",
    }


def command_line() -> str:
    """As typed, but without the folders of this machine."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return " ".join(["python benchmarks/bench_report.py", *words])


def benchmark(arguments: argparse.Namespace, llm_perf: str, nsys: str | None) -> dict[str, Any]:
    path = timeline(arguments.kernels)
    held = contents(path)
    kernels = int(held["kernels"])
    runners: dict[str, Callable[[], Run]] = {
        "sqlite3 fetchall": lambda: run_fetchall(path),
        "llm-perf report": lambda: run_llm_perf(llm_perf, path, kernels),
    }
    if nsys:
        runners["nsys stats"] = lambda: run_nsys(nsys, path)
    print(f"{kernels:,} kernels", flush=True)
    figures = {name: summary(runs, kernels) for name, runs in rounds(runners, arguments.repeat, path).items()}
    ours = figures["llm-perf report"]["wall_s"]
    result: dict[str, Any] = {
        "command": command_line(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "repeat": arguments.repeat,
        "machine": machine(nsys),
        "timeline": held,
        "figures": figures,
        "times_the_wall_time_of_llm_perf": {
            name: round(figure["wall_s"] / ours, 2) for name, figure in figures.items() if name != "llm-perf report"
        },
    }
    if arguments.trace:
        result["trace"] = benchmark_trace(arguments, llm_perf)
    if arguments.large:
        result["large"] = benchmark_large(arguments, llm_perf, figures["llm-perf report"])
    return result


def benchmark_large(arguments: argparse.Namespace, llm_perf: str, small: dict[str, Any]) -> dict[str, Any]:
    """llm-perf alone on the larger timeline. A ratio of times per kernel near 1 means linear growth."""
    path = timeline(arguments.large_kernels)
    held = contents(path)
    kernels = int(held["kernels"])
    print(f"{kernels:,} kernels", flush=True)
    runs = rounds({"llm-perf report": lambda: run_llm_perf(llm_perf, path, kernels)}, arguments.large_repeat, path)
    figure = summary(runs["llm-perf report"], kernels)
    return {
        "repeat": arguments.large_repeat,
        "timeline": held,
        "figures": {"llm-perf report": figure},
        "time_per_kernel_against_the_small_timeline": round(figure["us_per_kernel"] / small["us_per_kernel"], 2),
        "peak_rss_bytes_per_kernel": round(figure["peak_rss_mb"] * 1e6 / kernels, 1),
    }


def benchmark_trace(arguments: argparse.Namespace, llm_perf: str) -> dict[str, Any]:
    """A gzipped PyTorch trace, beside Python's own decoder of its text."""
    digest = hashlib.sha256(TRACE_SOURCE.read_bytes()).hexdigest()[:8]
    path = DATA / f"trace-{arguments.events}-{digest}.json.gz"
    if not path.exists():
        print(f"Making {path.name} ...", flush=True)
        maker = [sys.executable, str(HERE / "make_trace.py"), "--events", str(arguments.events), str(path)]
        subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)

    def report() -> Run:
        with tempfile.TemporaryDirectory(dir=DATA) as out:
            run = measured([llm_perf, "report", str(path), "--format", "json", "--out", out])
            if not reported_kernels(Path(out) / "report.json"):
                raise BenchmarkFailed("the report of the trace has no kernels")
        return run

    runners: dict[str, Callable[[], Run]] = {
        "json.load": lambda: measured([sys.executable, "-c", JSON_LOAD, str(path)]),
        "llm-perf report": report,
    }
    print(f"{arguments.events:,} events", flush=True)
    runs = rounds(runners, arguments.repeat, path)
    figures = {name: summary(found, arguments.events) for name, found in runs.items()}
    for figure in figures.values():
        figure["us_per_event"] = figure.pop("us_per_kernel")
    return {"events": arguments.events, "size_mb": round(path.stat().st_size / 1e6, 1), "figures": figures}


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a measurement, for the screen and for Markdown."""
    table: list[tuple[str, ...]] = []
    ours = result["figures"]["llm-perf report"]["wall_s"]
    for part in (result, result.get("large")):
        if part is None:
            continue
        for name, figure in part["figures"].items():
            against = f"{figure['wall_s'] / ours:.2f} ×" if part is result else "–"
            table.append(
                (
                    f"{part['timeline']['kernels']:,}",
                    name,
                    f"{figure['wall_s']:.2f} s",
                    f"{figure['us_per_kernel']:.2f} µs",
                    f"{figure['peak_rss_mb']:,.0f} MB",
                    against,
                )
            )
    return table


HEADINGS = ("kernels", "what", "wall time", "per kernel", "peak memory", "against llm-perf")


def markdown(result: dict[str, Any]) -> str:
    held, host = result["timeline"], result["machine"]
    lines = [
        "# Speed of `llm-perf report`",
        "",
        f"Written by `{result['command']}` on {result['date']}; the figures of every run are in `report-speed.json`.",
        "",
        f"{host['cpu']}, {host['cores']} cores, {host['system']};"
        f" Python {host['python']}, SQLite {host['sqlite']}, NumPy {host['numpy']},"
        f" nsys: {host['nsys']}.",
        "",
        f"Timeline: {held['kernels']:,} kernels, {held['runtime_calls']:,} runtime calls,"
        f" {held['ranges']:,} ranges, {held['size_mb']:,.0f} MB."
        f" Whole processes, best of {result['repeat']}, file in the page cache, Python compiled as after an installation.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---:|---|---:|---:|---:|---:|",
        *("| " + " | ".join(row) + " |" for row in rows(result)),
    ]
    trace = result.get("trace")
    if trace:
        told = (
            f"{name} {figure['wall_s']:.2f} s ({figure['cpu_s']:.2f} s of CPU, {figure['peak_rss_mb']:,.0f} MB)"
            for name, figure in trace["figures"].items()
        )
        lines += [
            "",
            f"PyTorch trace, {trace['events']:,} events, {trace['size_mb']:.0f} MB gzipped: {'; '.join(told)}.",
        ]
    large = result.get("large")
    if large:
        ratio = large["time_per_kernel_against_the_small_timeline"]
        lines += [
            "",
            f"Time per kernel at {large['timeline']['kernels']:,} kernels: {ratio:.2f} times that at"
            f" {held['kernels']:,} (1 = linear);"
            f" {large['peak_rss_bytes_per_kernel']:.0f} bytes of peak memory a kernel"
            f" (best of {large['repeat']}).",
        ]
    return "\n".join(lines) + "\n"


def show(result: dict[str, Any]) -> None:
    # Imported only now: what this process holds in memory would count as the children's peak.
    from rich.console import Console
    from rich.table import Table

    table = Table(title="llm-perf report: speed")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "what" else "right", no_wrap=heading == "what")
    for row in rows(result):
        table.add_row(*row)
    Console().print(table)


def find(given: str | None, name: str) -> str | None:
    """The tool given, else the one beside this Python, else the one on PATH."""
    if given:
        return shutil.which(given)
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="rounds; the best counts (default: %(default)s)")
    parser.add_argument("--kernels", type=int, default=1_080_000, help="size of the timeline (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="also read a PyTorch trace, beside json.load")
    parser.add_argument("--events", type=int, default=2_000_000, help="size of that (default: %(default)s)")
    parser.add_argument("--large", action="store_true", help="also run llm-perf on the large timeline")
    parser.add_argument("--large-kernels", type=int, default=10_000_000, help="its size (default: %(default)s)")
    parser.add_argument("--large-repeat", type=int, default=1, help="rounds on it (default: %(default)s)")
    parser.add_argument("--llm-perf", metavar="PATH", help="the llm-perf to measure (default: beside this Python)")
    parser.add_argument("--nsys", metavar="PATH", help="the nsys to measure (default: the one on PATH, if any)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.repeat, arguments.large_repeat, arguments.kernels, arguments.large_kernels, arguments.events) < 1:
        parser.error("counts must be at least 1")
    llm_perf = find(arguments.llm_perf, "llm-perf")
    if llm_perf is None:
        parser.error("no llm-perf found: run `make setup`, or give --llm-perf PATH")
    nsys = find(arguments.nsys, "nsys")
    if nsys is None:
        if arguments.nsys:
            parser.error(f"no nsys at {arguments.nsys}")
        print("No nsys on PATH: its column stays out. Give --nsys PATH to have it.")
    DATA.mkdir(parents=True, exist_ok=True)
    try:
        result = benchmark(arguments, llm_perf, nsys)
    except BenchmarkFailed as error:
        print(f"bench_report: {error}", file=sys.stderr)
        return 1
    show(result)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "report-speed.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (arguments.results / "report-speed.md").write_text(markdown(result), encoding="utf-8")
    print(f"Written: {arguments.results.name}/report-speed.json and report-speed.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
