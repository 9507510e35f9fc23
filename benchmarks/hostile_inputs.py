"""Inputs made to hang, crash or fill the machine: what does it cost to read each, and what is the answer?

    python benchmarks/hostile_inputs.py               500 inputs; results/hostile-inputs.json and .md
    python benchmarks/hostile_inputs.py --count 50    fewer
    python benchmarks/hostile_inputs.py --minutes 10  as many as fit; called again, it goes on with the next

Schemas that are code, journals and logs beside a file, and small files with much to do (`tests/fuzzing/hostile.py`),
each through a verb that reads recordings, one after the other in one process; time and memory are those of the whole
verb and of the process it reads in. None may take more than ten seconds or two gigabytes. The ten seconds are those of
a quiet machine: CPU time and waiting count, what other programs kept the processors busy does not. Where the load is
higher than there are processors CPU time alone counts. The wall time and the load are told beside it. What is done is in `data/hostile-inputs-*.jsonl`, of one commit and one choice of inputs each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from attrs import astuple  # noqa: E402

from fuzzing.worker import MOST_MEMORY_MB, MOST_SECONDS, Fuzzer, Outcome  # noqa: E402
from provenance import commit  # noqa: E402

RESULTS, DONE = HERE / "results", HERE / "data"
_SLOWEST_KEPT = 20
FAMILIES = {"hostile SQLite": 0.4, "journals and logs beside SQLite": 0.1, "work out of proportion": 0.5}


def run(count: int, minutes: float | None, seed: int, anew: bool) -> tuple[list[Outcome], int]:
    """What became of the inputs, and how many are left to do.

    Families take turns, so that whoever stops early has seen all of them.
    """
    shares = {name: max(1, round(share * count)) for name, share in FAMILIES.items()}
    turns = sorted((number / share, name, number) for name, share in shares.items() for number in range(share))
    DONE.mkdir(exist_ok=True)
    file = DONE / f"hostile-inputs-{commit()}-{seed}-{count}.jsonl"
    if anew:
        file.unlink(missing_ok=True)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [Outcome(*json.loads(line)) for line in lines]
    left = turns[len(found) :]
    began = time.monotonic()
    with Fuzzer(seed) as fuzzer, file.open("a", encoding="utf-8") as done:
        for at, (_, name, number) in enumerate(left):
            if minutes is not None and time.monotonic() - began > minutes * 60:
                return found, len(left) - at
            outcome = fuzzer.run(name, number)
            found.append(outcome)
            print(json.dumps(astuple(outcome)), file=done, flush=True)
            if outcome.problem:
                print(f"{name} {number}: {outcome.problem}", flush=True)
    return found, 0


def row(name: str, found: list[Outcome]) -> dict[str, Any]:
    return {
        "what": name,
        "inputs": len(found),
        "refused": sum(o.refused for o in found),
        "findings": sum(bool(o.problem) for o in found),
        "median_s": round(statistics.median(o.seconds for o in found), 2),
        "slowest_s": round(max(o.seconds for o in found), 2),
        "most_cpu_s": round(max(o.cpu_s for o in found), 2),
        "longest_wall_s": round(max(o.wall_s for o in found), 2),
        "peak_mb": round(max(o.peak_mb for o in found)),
    }


def summary(found: list[Outcome], arguments: argparse.Namespace) -> dict[str, Any]:
    verbs = sorted({o.verb for o in found})
    return {
        "command": f"python benchmarks/hostile_inputs.py --seed {arguments.seed} --count {arguments.count}",
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "limits": {"seconds": MOST_SECONDS, "memory_mb": MOST_MEMORY_MB},
        "inputs": len(found),
        "findings": sum(bool(o.problem) for o in found),
        "families": [row(name, mine) for name in FAMILIES if (mine := [o for o in found if o.kind == name])],
        "verbs": [row(verb or "(crashed)", [o for o in found if o.verb == verb]) for verb in verbs],
        "cases": [
            [o.kind, o.number, o.verb, o.refused, o.seconds, o.peak_mb, o.problem]
            for place, o in enumerate(sorted(found, key=lambda o: -o.seconds))
            if o.problem or place < _SLOWEST_KEPT
        ],
    }


def markdown(result: dict[str, Any]) -> str:
    limits = result["limits"]
    lines = [
        "# Hostile inputs",
        "",
        f"Written by `{result['command']}` at {result['commit']} on {result['date']} (Python {result['python']}).",
        "",
        f"{result['inputs']} inputs, {result['findings']} findings. A finding is more than {limits['seconds']:.0f} s or"
        f" {limits['memory_mb']:,.0f} MB, a crash, a traceback, a refusal without cause and next step, or anything"
        " written outside the output folder. Time is work and waiting, without what others kept the processors busy;"
        f" the load was {max(result['load_average'])} on {result['processors']} processors, so that the wall time is longer.",
    ]
    for title, rows in (("family", result["families"]), ("verb", result["verbs"])):
        lines += ["", f"| {title} | inputs | refused | findings | median | slowest | CPU | wall | peak memory |"]
        lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
        for r in rows:
            counts = f"{r['inputs']} | {r['refused']} | {r['findings']}"
            times = [r[name] for name in ("median_s", "slowest_s", "most_cpu_s", "longest_wall_s")]
            shown = " | ".join(f"{time:.2f} s" for time in times)
            lines.append(f"| {r['what']} | {counts} | {shown} | {r['peak_mb']:,} MB |")
    lines += [""] + [f"- {kind} {number}: {told}" for kind, number, *_, told in result["cases"] if told]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="inputs altogether (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1, help="other inputs (default: %(default)s)")
    parser.add_argument("--anew", action="store_true", help="forget what is done already")
    arguments = parser.parse_args()
    found, left = run(arguments.count, arguments.minutes, arguments.seed, arguments.anew)
    if not found:
        return 1
    result = summary(found, arguments)
    print(markdown(result))
    if left:
        print(f"{left} inputs are left, and no result is written: call it again, and it goes on.")
    else:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "hostile-inputs.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "hostile-inputs.md").write_text(markdown(result), encoding="utf-8")
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
