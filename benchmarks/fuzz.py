"""Mutated inputs for every reader: none may bring a traceback, a hang, gigabytes, or a file outside its folder.

    python benchmarks/fuzz.py                       10,000 and more inputs; results/fuzz.json and fuzz.md
    python benchmarks/fuzz.py --count 500           fewer, in the same proportions
    python benchmarks/fuzz.py --minutes 60 --seed 7 other inputs, as many as fit
    python benchmarks/fuzz.py --kind 'ncu CSV' --only 17 --seed 1

What a case must do is in `tests/fuzzing/worker.py`: end within ten seconds and two gigabytes with a report that
can be read back, or with a cause and a next step; write into its output folder only; leave its input as it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from provenance import commit

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from fuzzing.cases import KINDS  # noqa: E402
from fuzzing.worker import MOST_MEMORY_MB, MOST_SECONDS, Fuzzer, Outcome  # noqa: E402

RESULTS = HERE / "results"
WHOLE = sum(weight for _, weight in KINDS.values())
_A_PROCESS = 400  # cases; then a new one, so that nothing adds up unseen


def plan(count: int, kind: str | None, only: int | None) -> Iterator[tuple[str, int]]:
    """Kinds take turns, so that whoever stops early has seen all of them."""
    if kind is not None:
        yield from ((kind, number) for number in (range(count) if only is None else [only]))
        return
    share = {name: max(1, round(weight * count / WHOLE)) for name, (_, weight) in KINDS.items()}
    turns = sorted((number / share[name], name, number) for name in share for number in range(share[name]))
    yield from ((name, number) for _, name, number in turns)


def run(arguments: argparse.Namespace) -> list[Outcome]:
    count = arguments.count
    found: list[Outcome] = []
    began = said = time.monotonic()
    fuzzer = Fuzzer(arguments.seed)
    try:
        for kind, number in plan(count if arguments.minutes is None else 10**6, arguments.kind, arguments.only):
            if arguments.minutes is not None and time.monotonic() - began > arguments.minutes * 60:
                break
            if found and len(found) % _A_PROCESS == 0:
                fuzzer.__exit__()
                fuzzer = Fuzzer(arguments.seed)
            outcome = fuzzer.run(kind, number)
            found.append(outcome)
            if outcome.problem:
                print(f"{kind} {number}: {outcome.problem}", flush=True)
            if time.monotonic() - said > 15:
                said = time.monotonic()
                print(f"  {len(found):,} inputs, {sum(bool(o.problem) for o in found)} findings", flush=True)
    except KeyboardInterrupt:
        print("Interrupted: this is what was tried so far.")
    finally:
        fuzzer.__exit__()
    return found


def summary(found: list[Outcome], arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    readers = []
    size = f"--count {arguments.count}" if arguments.minutes is None else f"--minutes {arguments.minutes:g}"
    for kind in KINDS:
        mine = [o for o in found if o.kind == kind]
        if mine:
            readers.append(
                {
                    "reader": kind,
                    "inputs": len(mine),
                    "refused": sum(o.refused for o in mine),
                    "findings": sum(bool(o.problem) for o in mine),
                    "slowest_s": round(max(o.seconds for o in mine), 2),
                    "peak_mb": round(max(o.peak_mb for o in mine)),
                }
            )
    return {
        "command": " ".join(["python benchmarks/fuzz.py", f"--seed {arguments.seed}", size]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "python": platform.python_version(),
        "seed": arguments.seed,
        "seconds": round(seconds),
        "inputs": len(found),
        "planned": None if arguments.minutes is not None else arguments.count,
        "findings": sum(bool(o.problem) for o in found),
        "limits": {"seconds": MOST_SECONDS, "memory_mb": MOST_MEMORY_MB},
        "slowest_s": round(max(o.seconds for o in found), 2),
        "peak_mb": round(max(o.peak_mb for o in found)),
        "readers": readers,
        "found": [{"kind": o.kind, "number": o.number, "problem": o.problem} for o in found if o.problem][:200],
    }


def markdown(result: dict[str, Any]) -> str:
    limits = result["limits"]
    planned = result["planned"]
    # Rounding makes a few more or less of each kind.
    stopped = f" (stopped before the {planned:,} planned)" if planned and result["inputs"] < planned * 0.95 else ""
    lines = [
        "# Mutated inputs",
        "",
        f"Written by `{result['command']}` on {result['date']} (Python {result['python']}, {result['seconds']:,} s).",
        "",
        f"{result['inputs']:,} inputs{stopped}, {result['findings']} findings. A finding is a traceback, a crash, more than"
        f" {limits['seconds']:.0f} s or {limits['memory_mb']:,.0f} MB, a refusal without cause and next step, a report that"
        " cannot be read back, or anything written outside the output folder.",
        "",
        "| reader | inputs | refused | findings | slowest | peak memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in result["readers"]:
        lines.append(
            f"| {row['reader']} | {row['inputs']:,} | {row['refused']:,} | {row['findings']} | {row['slowest_s']:.2f} s"
            f" | {row['peak_mb']:,} MB |"
        )
    lines += ["", "Refused: the answer is an error with its cause and the next step; the others gave a report."]
    if result["found"]:
        lines += ["", *(f"- {f['kind']} {f['number']}: {f['problem']}" for f in result["found"])]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=WHOLE, help="inputs altogether (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="other inputs (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="as many inputs as fit into this time, instead of --count")
    parser.add_argument("--kind", choices=list(KINDS), help="one kind only")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="with --kind: this one input")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count < 1 or (arguments.only is not None and arguments.kind is None):
        parser.error("--count is a number above 0, and --only needs --kind")
    began = time.monotonic()
    found = run(arguments)
    if not found:
        return 1
    result = summary(found, arguments, time.monotonic() - began)
    print(markdown(result))
    for problem, times in Counter(o.problem for o in found if o.problem).most_common(20):
        print(f"{times:>5} × {problem}")
    if arguments.kind is None:
        arguments.results.mkdir(parents=True, exist_ok=True)
        (arguments.results / "fuzz.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.results / "fuzz.md").write_text(markdown(result), encoding="utf-8")
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
