"""What the jobs on a real Slurm and a real Ray have in common: a program of several ranks, its runs, and what they left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUBMIT = ROOT / "docs" / "submit"  # the files of the documentation themselves
LLM_PERF = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
RANKS, LIMIT_S = 4, 120
# Ranks meet in each step by files in a shared folder, as a collective would make them; one that is alone gives up.
PROGRAM = """\
import os, pathlib, sys, time
import nvtx
def of_launcher(alone, *names):
    return int(next((os.environ[name] for name in names if name in os.environ), alone))
rank = of_launcher(0, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
ranks = of_launcher(1, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
meeting = pathlib.Path(sys.argv[1])
meeting.mkdir(parents=True, exist_ok=True)
for step in range(int(sys.argv[2])):
    with nvtx.annotate("step"):
        with nvtx.annotate("forward"):
            time.sleep(0.04 if rank == 1 else 0.02)
        with nvtx.annotate("all_reduce"):
            (meeting / f"{step}-{rank}").touch()
            limit = time.monotonic() + (5 if step else 60)  # who is placed last begins last
            while not all((meeting / f"{step}-{other}").exists() for other in range(ranks)):
                if time.monotonic() > limit:
                    sys.exit("a rank does not come")
                time.sleep(0.0005)
    if os.environ.get("FAILS") == str(rank) and step == 5:
        sys.exit(3)
"""


class Case:
    """One job, and what it left."""

    def __init__(self, folder: Path, environment: dict[str, str], name: str) -> None:
        self.run, self.meeting = folder / name, folder / f"{name}-meeting"
        self.environment, self.folder = environment, folder
        (folder / "program.py").write_text(PROGRAM)

    def program(self, steps: int) -> list[str]:
        return [sys.executable, str(self.folder / "program.py"), str(self.meeting), str(steps)]

    def start(self, words: list[str], **variables: str) -> subprocess.Popen[str]:
        environment = {**self.environment, **variables}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd=self.folder
        )

    def report(self, out: Path | None = None) -> dict[str, Any]:
        """The merged report; made now where the job could not. `out`: elsewhere."""
        made = (out or self.run) / "report.json"
        if not made.exists():
            elsewhere = ["--out", str(out)] if out is not None else []
            subprocess.run([*LLM_PERF, "report", str(self.run), "-q", *elsewhere], check=True, capture_output=True)
        content: dict[str, Any] = json.loads(made.read_text())
        return content

    def scopes(self) -> set[str]:
        return {str(scope["scope"]) for scope in self.report()["scopes"]}

    def told(self) -> str:
        return " ".join(f"{one['code']}: {one['message']}" for one in self.report()["diagnostics"])

    def when_stepping(self) -> None:
        """Wait until the ranks have met a few times."""
        deadline = time.monotonic() + 60
        while not (self.meeting / f"8-{RANKS - 1}").exists():
            if time.monotonic() > deadline:
                raise AssertionError("the job does not begin")
            time.sleep(0.1)

    def manifest(self, rank: int) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run / f"ranks/rank-{rank}/manifest.json").read_text())
        return content

    def pid_of(self, rank: int) -> int:
        return int(self.manifest(rank)["pid"])


def ended(job: subprocess.Popen[str], limit_s: float = LIMIT_S) -> tuple[int, str]:
    """Its exit code and what it printed; a job that hangs is the worst that can be."""
    try:
        printed, _ = job.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        job.kill()
        raise AssertionError("the job hangs") from None
    return job.returncode, printed


def all_ranks() -> set[str]:
    return {f"rank:{rank}" for rank in range(RANKS)}
