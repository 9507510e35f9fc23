"""Times and records all programs of programs.py in one process.

First all programs are timed with no profiler (a profiler that was once on may leave something behind), then all are set
up again and recorded. DIR/times.json is written after every program; the traces are packed into DIR/traces.tar.

    python run.py --out DIR [--seconds 150] [--only a,b] [--tiny]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import statistics
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from parts import Bench, Step
from torch.profiler import ProfilerActivity, profile, schedule

from programs import PROGRAMS

WARM, TIMED, RECORDED = 7, 6, 3
TAR_BYTES = 14_000_000


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends what runs Python for too long; a call that never returns is left to the last watchdog."""

    def over(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def forget(bench: Bench) -> None:
    bench.planted.clear()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if bench.cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(bench: Bench, step: Step) -> dict[str, Any]:
    """Steps back to back: the host's clock from sync to sync, and CUDA events between steps."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(TIMED + 1)] if bench.cuda else []
    bench.planted.clear()
    bench.sync()
    begin = time.perf_counter()
    for i in range(TIMED):
        if events:
            events[i].record()
        step()
    if events:
        events[TIMED].record()
    bench.sync()
    wall = (time.perf_counter() - begin) * 1e3
    found: dict[str, Any] = {"steps": TIMED, "step_ms": round(wall / TIMED, 4)}
    if events:
        each = [a.elapsed_time(b) for a, b in pairwise(events)]
        found |= {"event_ms": [round(t, 4) for t in each], "event_median_ms": round(statistics.median(each), 4)}
    if bench.planted:
        found["planted_ms"] = {n: round(sum(s) / TIMED * 1e3, 4) for n, s in bench.planted.items()}
    return found


def warm(bench: Bench, step: Step, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        step()
    bench.sync()
    return round(time.perf_counter() - begin, 3)


def take_times(bench: Bench, make: Callable[[Bench], Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    program = make(bench)
    bench.sync()
    found: dict[str, Any] = {"setup_s": round(time.perf_counter() - begin, 3)}
    found["warm_s"] = warm(bench, program.step, WARM)
    found |= timed(bench, program.step)
    if bench.cuda:
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    if program.mended:
        try:
            warm(bench, program.mended, 4)
            found["mended"] = timed(bench, program.mended)
            # Once more: what drifts between two runs of the same thing is the noise of their difference.
            warm(bench, program.step, 1)
            found["step_ms_again"] = timed(bench, program.step)["step_ms"]
        except Exception as problem:
            found["mended"] = {"error": repr(problem)}
    return found


def record(bench: Bench, make: Callable[[Bench], Any], path: Path) -> dict[str, Any]:
    program = make(bench)
    warm(bench, program.step, WARM)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
    how: dict[str, Any] = (
        {"schedule": schedule(wait=0, warmup=1, active=RECORDED, repeat=1)} if program.marks_steps else {}
    )
    bench.planted.clear()
    with profile(activities=activities, record_shapes=True, with_stack=False, **how) as profiler:
        # No synchronise of ours in between: the program is recorded as it runs. The profiler waits for the GPU when it ends.
        for _ in range(RECORDED + (1 if how else 0)):
            program.step()
            if how:
                profiler.step()
    profiler.export_chrome_trace(str(path))
    planted = {n: round(sum(s) / len(s) * 1e3, 4) for n, s in bench.planted.items()}
    found = {"trace_bytes": path.stat().st_size, "recorded_steps": RECORDED, "marks_steps": program.marks_steps}
    return found | ({"planted_while_recorded_ms": planted} if planted else {})


def pack(out: Path) -> None:
    """All traces in plain tar files, none larger than TAR_BYTES: traces.tar, traces-2.tar, ..."""
    parts: list[list[Path]] = [[]]
    for path in sorted(out.glob("*.json.gz")):
        if parts[-1] and sum(p.stat().st_size for p in [*parts[-1], path]) > TAR_BYTES:
            parts.append([])
        parts[-1].append(path)
    for i, paths in enumerate(p for p in parts if p):
        with tarfile.open(out / ("traces.tar" if i == 0 else f"traces-{i + 1}.tar"), "w") as tar:
            for path in paths:
                tar.add(path, arcname=path.name)
    for path in (p for paths in parts for p in paths):
        path.unlink()


class Book:
    """times.json, written anew after every program."""

    def __init__(self, out: Path, bench: Bench, names: list[str]) -> None:
        self.path = out / "times.json"
        self.programs: dict[str, dict[str, Any]] = {name: {} for name in names}
        self.head: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name() if bench.cuda else None,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "tiny": bench.tiny,
        }

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**self.head, "programs": self.programs}, indent=1) + "\n")
        new.replace(self.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--each", type=float, default=25, help="seconds that one program may take, each time")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU, to prove the script")
    given = parser.parse_args()
    begin = time.perf_counter()
    given.out.mkdir(parents=True, exist_ok=True)
    for old in (*given.out.glob("*.json.gz"), *given.out.glob("traces*.tar")):
        old.unlink()
    names = given.only.split(",") if given.only else list(PROGRAMS)
    if unknown := [name for name in names if name not in PROGRAMS]:
        parser.error(f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    if not given.tiny and not torch.cuda.is_available():
        parser.error("no GPU here; --tiny runs small sizes on the CPU")
    bench = Bench(torch.device("cpu" if given.tiny else "cuda"), given.tiny)
    torch.manual_seed(0)
    book = Book(given.out, bench, names)

    def last_resort() -> None:
        book.head["cut"] = "a program never came back; ended from outside"
        book.write()
        pack(given.out)
        os._exit(1)

    watchdog = threading.Timer(given.seconds + 20, last_resort)
    watchdog.daemon = True
    watchdog.start()

    def every(part: str, until: float, work: Callable[[str], dict[str, Any]]) -> None:
        for name in names:
            left = until - (time.perf_counter() - begin)
            if left < 2:
                book.programs[name][f"{part}_skipped"] = "no time left"
                continue
            start = time.perf_counter()
            try:
                with at_most(min(given.each, left)):
                    book.programs[name] |= work(name)
            except Exception:
                book.programs[name][f"{part}_error"] = traceback.format_exc()
            try:
                forget(bench)
            except Exception:
                book.programs[name][f"{part}_error"] = traceback.format_exc()
            took = time.perf_counter() - start
            book.programs[name][f"{part}_took_s"] = round(took, 2)
            book.write()
            short = "failed" if f"{part}_error" in book.programs[name] else "done"
            print(f"{time.perf_counter() - begin:6.1f} s  {part:6}  {name:24} {short} in {took:.1f} s", flush=True)

    every("timing", given.seconds * 0.55, lambda name: take_times(bench, PROGRAMS[name]))
    if bench.cuda:
        # The profiler starts once before any CUDA graph is captured: else their kernels are missing.
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
            torch.ones(1, device=bench.device).add_(1)
            torch.cuda.synchronize()
    every("trace", given.seconds - 6, lambda name: record(bench, PROGRAMS[name], given.out / f"{name}.json.gz"))
    book.head["seconds"] = round(time.perf_counter() - begin, 1)
    book.write()
    pack(given.out)
    watchdog.cancel()
    bad = [n for n, p in book.programs.items() if any(k.endswith(("_error", "_skipped")) for k in p)]
    print(f"{len(names) - len(bad)} of {len(names)} programs timed and recorded; not whole: {', '.join(bad) or 'none'}")


if __name__ == "__main__":
    main()
