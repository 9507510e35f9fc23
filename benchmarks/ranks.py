"""Two and four ranks on one GPU (gloo) with one llm-perf each: measured, recorded, counted, merged, and nothing hangs.

    python benchmarks/ranks.py --out benchmarks/results/ranks-h200         less than four minutes on a GPU
    python benchmarks/ranks.py --tiny --out /tmp/ranks                     on a CPU: tests the script itself

Launchers: torchrun, and a stand-in for srun, which starts each rank with the variables that srun gives it. Every rank
of `programs/ranks_program.py` keeps its own record of its steps; rank 1 waits for its data. Checked: the median step of
each rank within 5 % of its own record, the common time, the late rank named with its part; of a recording, all ranks in
one report; and counters of rank 0 under ncu while rank 1 is recorded by nsys. A part that needs a tool which is not
there is skipped. A part that takes longer than 75 s hangs. Exit code 1: a limit was missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from attrs import define

from in_parts import run_parts
from llm_perf_opt.errors import MissingTool
from llm_perf_opt.metrics.families import COLLECTIVE, family_of
from llm_perf_opt.nsight.tools import find_ncu, find_nsys
from provenance import commit

PROGRAM = Path(__file__).resolve().parent / "programs" / "ranks_program.py"
PRODUCT = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
NAME, SECONDS, LIMIT = "ranks-h200", 75.0, 0.05
LATE = 1  # as the program has it
ENDED, STEPS, COMMON = "ended in time", "each rank's step within 5 % of its own record", "common time within 5 %"
NAMED, ALL, COUNTED = "the late rank is named with its part", "all ranks in one report", "counters of rank 0, joined"
LEFT_OUT = "what is named like a collective was not counted"


@define(frozen=True)
class Job:
    """How a part starts its ranks, and what each llm-perf does."""

    launcher: str
    ranks: int
    words: tuple[str, ...] = ("measure",)
    needs: str = ""  # a profiler


PARTS = {
    "torchrun-2": Job("torchrun", 2),
    "torchrun-4": Job("torchrun", 4),
    "srun-2": Job("srun", 2),
    "srun-4": Job("srun", 4),
    "recorded-2": Job("torchrun", 2, ("profile", "--no-counters"), "nsys"),
    "recorded-4": Job("srun", 4, ("profile", "--no-counters"), "nsys"),
    "counters-2": Job("torchrun", 2, ("profile", "--counter-rank", "0"), "ncu"),
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def commands(job: Job, rank_command: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """What is started, with which variables: one torchrun, or what srun starts on a node, a process for each rank."""
    if job.launcher == "torchrun":
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        return [([*launcher, "--nproc-per-node", str(job.ranks), *rank_command], {})]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": str(job.ranks),
        "SLURM_STEP_NUM_TASKS": str(job.ranks),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURMD_NODENAME": "node1",
    }
    return [
        (rank_command, {**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(job.ranks)
    ]


def start(job: Job, folder: Path, tiny: bool) -> float:
    """Seconds the job took. What hangs is ended, and is an error, as is a rank that fails."""
    program = [sys.executable, str(PROGRAM), str(folder / "records"), *(["--tiny"] if tiny else [])]
    words = [*PRODUCT, *job.words, "--out", str(folder / "run"), "--quiet", "--", *program]
    log, began = folder / "log.txt", time.monotonic()
    with log.open("wb") as output:
        started = [
            subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command, variables in commands(job, words)
        ]
        try:
            codes = [one.wait(max(SECONDS - (time.monotonic() - began), 0.1)) for one in started]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"hangs: not done after {SECONDS:.0f} s; {tail(log)}") from None
        finally:
            for one in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
                one.wait()
    if any(codes):
        raise RuntimeError(f"ended with {codes}; {tail(log)}")
    return time.monotonic() - began


def tail(log: Path) -> str:
    return "the end of its log: " + log.read_text(encoding="utf-8", errors="replace")[-1500:]


def compared(job: Job, folder: Path) -> dict[str, Any]:
    """The merged report beside what each rank noted of itself."""
    report = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))
    own = [json.loads((folder / "records" / f"rank-{rank}.json").read_text()) for rank in range(job.ranks)]
    scopes = {scope["scope"] for scope in report["scopes"]}
    recorded = {rank for rank in range(job.ranks) if f"rank:{rank}" in scopes}
    counted = job.needs == "ncu"
    found: dict[str, Any] = {"ranks": job.ranks, "recorded": sorted(recorded)}
    limits = {ENDED: True, ALL: recorded == set(range(1 if counted else 0, job.ranks))}
    steps = report.get("rank_steps")
    if counted:
        found["coverage"] = report["coverage"]
        limits[COUNTED] = bool(report["coverage"] and report["coverage"]["launches"])
        if any(is_collective(kernel["kernel_name"]) for scope in report["scopes"] for kernel in scope["kernels"]):
            limits[LEFT_OUT] = not any(is_collective(kernel["kernel_name"]) for kernel in report["measured"])
    elif steps is None:
        limits[STEPS] = False
    else:
        skip = steps["warmup"]
        truth = [1e9 * median(record["step"][skip:]) for record in own]
        off = [row["median_ns"] / of_own - 1 for row, of_own in zip(steps["ranks"], truth, strict=True)]
        common = 1e9 * median(max(times) for times in zip(*(record["step"][skip:] for record in own), strict=True))
        found |= {"steps": steps["all_steps"], "off": off, "common_ns": steps["common_median_ns"]}
        found |= {"common_off": steps["common_median_ns"] / common - 1, "why": [row["why"] for row in steps["ranks"]]}
        limits[STEPS] = max(map(abs, off)) <= LIMIT
        limits[COMMON] = abs(found["common_off"]) <= LIMIT
        if not job.needs:  # a recording knows GPUs: its reason is in other words
            limits[NAMED] = found["why"][LATE].startswith("data takes ")
    return {**found, "limits": limits}


def is_collective(kernel: str) -> bool:
    return family_of(kernel) == COLLECTIVE


def missing(job: Job) -> str:
    """Why a part cannot be run here."""
    for tool, find in {"nsys": find_nsys, "ncu": find_ncu}.items():
        if job.needs in (tool, "ncu"):
            try:
                find()
            except MissingTool:
                return f"{tool} is not installed"
    return ""


def measure(name: str, tiny: bool) -> dict[str, Any]:
    job = PARTS[name]
    if why := missing(job):
        return {"skipped": why, "commit": commit()}
    print(f"{name}: at most {SECONDS:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as place:
        took = start(job, Path(place), tiny)
        found = compared(job, Path(place))
    checks = [{"what": what, "ok": ok} for what, ok in found.pop("limits").items()]
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {**found, "took_s": took, "checks": checks, "commit": commit(), "made": made}


def page(results: dict[str, Any]) -> str:
    lines = ["# Ranks on one GPU, one llm-perf each", ""]
    lines += ["| part | took | step of each rank off | common step | limits |", "|---|---|---|---|---|"]
    for name, part in results["parts"].items():
        if "took_s" not in part:
            lines.append(f"| {name} | {(part.get('skipped') or part.get('failed', ''))[:300]} | | | |")
            continue
        off = ", ".join(f"{one:+.2%}" for one in part.get("off", [])) or "–"
        common = f"{part['common_ns'] / 1e6:.2f} ms ({part['common_off']:+.2%})" if "common_ns" in part else "–"
        missed = [check["what"] for check in part["checks"] if not check["ok"]]
        held = f"missed: {', '.join(missed)}" if missed else f"held: {', '.join(c['what'] for c in part['checks'])}"
        lines.append(f"| {name} | {part['took_s']:.1f} s | {off} | {common} | {held} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_parts(__doc__ or "", NAME, PARTS, measure, page))
