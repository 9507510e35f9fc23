"""On a GPU: is nothing lost, and nothing left running, when a run is killed while ncu profiles?

    python tests/manual/check_kill.py [--work DIR] [--out FILE.json]

Runs `llm-perf profile` on a small program, kills it with SIGKILL when ncu has taken some results, and goes on with
`--resume`: less than a minute. Exits with 1 if one of these does not hold:

- within ten seconds no process of the run is left
- `llm-perf report` opens the run as it is, with its timeline
- `--resume` ends with 0, takes no second timeline, and gives every kernel of the regions its counters
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import llm_perf_opt
from llm_perf_opt.nsight.tools import find_ncu, find_nsys

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from provenance import commit

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import nvtx, torch
a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
for step in range(20):
    with nvtx.annotate("step", domain="LLM"):
        for width in range(1, 41):
            with nvtx.annotate("product", domain="LLM"):
                (a[: 32 * width] @ a).relu_()  # another grid for every width
torch.cuda.synchronize()
"""
ENTRY = "from llm_perf_opt.cli.main import entry; entry()"


def llm_perf(*words: str) -> list[str]:
    return [sys.executable, "-c", ENTRY, *words]


def left_running(run: Path) -> list[str]:
    """Commands that still have to do with a run."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(str(run).encode() in word for word in words):
                found.append(b" ".join(words)[:200].decode(errors="replace"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    work = Path(arguments.work or tempfile.mkdtemp(prefix="kill-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    run, program = work / "killed", work / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    path = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "PYTHONPATH": path}
    checks: list[tuple[str, bool, str]] = []

    command = llm_perf("profile", "--no-windows", "--out", str(run), "--", sys.executable, str(program))
    child = subprocess.Popen(command, cwd=work, env=environment)
    log = run / "ncu" / "run.log"
    while child.poll() is None and (
        not log.exists() or log.read_text(errors="replace").count("==PROF== Profiling") < 15
    ):
        time.sleep(0.05)
    taken = log.read_text(errors="replace").count("==PROF== Profiling") if log.exists() else 0
    child.send_signal(signal.SIGKILL)
    child.wait()
    checks.append(
        ("it was killed while ncu profiled", child.returncode == -signal.SIGKILL and taken >= 15, f"{taken} results")
    )
    until = time.monotonic() + 10
    while left_running(run) and time.monotonic() < until:
        time.sleep(0.1)
    left = left_running(run)
    checks.append(("nothing is left running", not left, "; ".join(left)))
    opened = subprocess.run(llm_perf("report", str(run)), cwd=work, env=environment, capture_output=True, text=True)
    kernels = sum(r.exclusive.kernel_count for r in llm_perf_opt.load(run).main_scope.regions)
    checks.append(
        ("llm-perf report opens it, timeline and all", opened.returncode == 0 and kernels > 0, f"{kernels} kernels")
    )

    began = time.monotonic()
    resumed = subprocess.run(llm_perf("profile", "--resume", str(run)), cwd=work, env=environment)
    seconds = round(time.monotonic() - began, 1)
    steps = [s["name"] for s in json.loads((run / "manifest.json").read_text(encoding="utf-8"))["steps"]]
    coverage = llm_perf_opt.load(run).coverage
    whole = coverage is not None and coverage.signatures_matched == coverage.signatures > 0
    checks.append(("--resume ends with 0", resumed.returncode == 0, f"exit {resumed.returncode} after {seconds} s"))
    checks.append(("the timeline is not taken again", steps.count("nsys") == 1, " ".join(steps)))
    told = f"{coverage.signatures_matched} of {coverage.signatures} signatures" if coverage else "no counters"
    checks.append(("every kernel has its counters", whole, told))
    for what, good, figure in checks:
        print(f"{'pass' if good else 'FAIL'}  {what}: {figure}")
    if arguments.out:
        result = {
            "made_by": "python tests/manual/check_kill.py",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "tools": {"nsys": find_nsys().version, "ncu": find_ncu().version, "llm_perf_opt": llm_perf_opt.__version__},
            "checks": [{"what": what, "pass": good, "figure": figure} for what, good, figure in checks],
        }
        Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not all(good for _, good, _ in checks))


if __name__ == "__main__":
    sys.exit(main())
