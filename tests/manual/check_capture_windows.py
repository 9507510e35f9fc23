"""On a GPU: does ncu profile exactly what the annotation in the program lets it, and is the program ended in order?

    python tests/manual/check_capture_windows.py [--work DIR]

Runs `llm-perf profile --annotate stages` on `annotate/plain.py` (generate() twice, 15 decode steps each), about two
minutes in all, and exits with 1 if one of these does not hold:

- `sampled`: the middle instances of prefill and decode_step come from one run of ncu, with as many results as the
  timeline has kernels there, every one of them inside those stages
- `ended`: the first instances are in, the program prints nothing of its later steps, the run ends with 0 and reports
  that it was ended on purpose
- `planned`: the plan's launches are exactly those with --run-to-end
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import llm_perf_opt
from llm_perf_opt.readers.ncu_rep import read_ncu_rep

ROOT = Path(__file__).resolve().parents[2]
PLAIN = Path(__file__).with_name("annotate") / "plain.py"


def profile(work: Path, name: str, *options: str) -> Path:
    """One run; its directory."""
    run = work / name
    code = "from llm_perf_opt.cli.main import entry; entry()"
    argv = [sys.executable, "-c", code, "profile", "--annotate", "stages", "--out", str(run), *options]
    path = os.pathsep.join(p for p in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    print(f"== {name}: llm-perf profile --annotate stages {' '.join(options)}", flush=True)
    ended = subprocess.run([*argv, "--", sys.executable, str(PLAIN)], env={**os.environ, "PYTHONPATH": path}, cwd=work)
    print(f"   exit {ended.returncode}", flush=True)
    if ended.returncode:
        raise SystemExit(f"{name} failed")
    return run


def results(run: Path) -> list[Any]:
    return [
        action for file in sorted((run / "ncu").glob("*.ncu-rep")) for action in read_ncu_rep(file, file.name).actions
    ]


def codes(run: Path) -> list[str]:
    return [d.code for d in llm_perf_opt.load(run).diagnostics]


def seconds(run: Path) -> list[float]:
    steps = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["steps"]
    return [s["seconds"] for s in steps if s["name"] == "ncu"]


def innermost(action: Any) -> str:
    stack = action.push_pop.get("LLM") or ["nothing"]
    return str(stack[-1])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work")
    work = Path(parser.parse_args().work or tempfile.mkdtemp(prefix="windows-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    checks: list[tuple[str, bool, str]] = []

    both = ("--include", "**/prefill", "--include", "**/decode_step")
    run = profile(work, "sampled", *both, "--sample", "middle")
    found = results(run)
    regions = {r.name: r for r in llm_perf_opt.load(run).main_scope.regions}
    per_instance = {n: regions[n].inclusive.kernel_count / regions[n].instances for n in ("prefill", "decode_step")}
    where = Counter(map(innermost, found))
    checks += [
        ("sampled: one run of ncu", len(seconds(run)) == 1, str(seconds(run))),
        ("sampled: the windows opened", "WINDOWS_DID_NOT_OPEN" not in codes(run), str(codes(run))),
        ("sampled: results only inside the stages", set(where) <= set(per_instance), str(dict(where))),
        *(
            (
                f"sampled: every kernel of one {n}",
                abs(where[n] - per_instance[n]) < 1,
                f"{where[n]}, {per_instance[n]:.1f}",
            )
            for n in per_instance
        ),
    ]

    run = profile(work, "ended", *both, "--sample", "first")
    checks += [
        ("ended: reported as on purpose", "ENDED_ON_PURPOSE" in codes(run), str(codes(run))),
        ("ended: has results", len(results(run)) > 0, str(len(results(run)))),
    ]

    whole = profile(work, "whole", *both, "--run-to-end")
    run = profile(work, "planned", *both)
    one, other = (Counter((a.mangled, a.grid, a.block, innermost(a)) for a in results(r)) for r in (whole, run))
    checks += [
        (
            "planned: the same launches as with --run-to-end",
            one == other,
            f"{sum(one.values())}, {sum(other.values())}",
        ),
        ("planned: the windows opened", "WINDOWS_DID_NOT_OPEN" not in codes(run), str(codes(run))),
    ]
    print(f"seconds under ncu: {seconds(whole)} to the end, {seconds(run)} ended early", flush=True)
    for what, good, value in checks:
        print(f"{'good' if good else 'BAD '}  {what}: {value}", flush=True)
    return int(not all(good for _, good, _ in checks))


if __name__ == "__main__":
    sys.exit(main())
