"""Tries every fault of the matrix, and kills runs at random moments: how many were survived with nothing lost?

    python benchmarks/faults.py [--kills 100] [--only WORD] [--seed 1] [--out benchmarks/results/faults]

Needs neither a GPU nor NVIDIA's tools: stand-ins replay what the real ones said and left (tests/fault_matrix.py).
A fault counts as survived when the run ended with the exit code it should, its manifest and its recordings are
whole, `llm-perf report` opens it, and no process is left. A run that was killed must also become whole when it is
resumed with `llm-perf profile --resume`.
"""

from __future__ import annotations

import argparse
import collections
import json
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import commit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fault_matrix import KILLED, KILLED_IN_WINDOWS, Bench, Fault, Unavailable, faults, random_kills

RESULTS = Path(__file__).parent / "results" / "faults"


def try_faults(bench: Bench, chosen: list[Fault]) -> list[dict[str, Any]]:
    rows = []
    for fault in chosen:
        began = time.monotonic()
        row: dict[str, Any] = {"name": fault.name, "group": fault.group, "exit_code": fault.code}
        row |= {"diagnosis": fault.says, "timeline_kept": fault.kernels, "counters_kept": fault.counters}
        if not fault.manifest:  # no run directory to keep anything in
            row |= {"timeline_kept": None, "counters_kept": None}
        try:
            wrong = bench.attempt(fault)
        except Unavailable as reason:
            row |= {"outcome": "not possible here", "wrong": [str(reason)]}
        else:
            row |= {"outcome": "failed" if wrong else "survived", "wrong": wrong}
        row["seconds"] = round(time.monotonic() - began, 1)
        print(f"{row['outcome']:<18} {fault.group}: {fault.name} ({row['seconds']} s)", flush=True)
        for line in row["wrong"]:
            print(f"    {line}", flush=True)
        rows.append(row)
    return rows


def try_kills(bench: Bench, count: int, seed: int) -> dict[str, Any]:
    """Kills spread over the whole of a run, from before its directory to after its report."""
    lasts = {fault.name: duration(bench, fault) for fault in (KILLED, KILLED_IN_WINDOWS)}
    found: list[str] = []
    moments: collections.Counter[str] = collections.Counter()
    signals: collections.Counter[str] = collections.Counter()
    for done, (number, part) in enumerate(random_kills(count, seed), 1):
        fault = KILLED if done % 2 else KILLED_IN_WINDOWS
        while True:
            held_s = 1.0 if number == signal.SIGINT and done % 10 == 2 else 0.0  # every second one: the key held down
            wrong, at = bench.kill(number, part * lasts[fault.name], fault, held_s=held_s)
            found += wrong
            if at is not None:
                break
            lasts[fault.name] = duration(
                bench, fault
            )  # it was over by then: the machine has become quicker, and this was no kill
        moments[at] += 1
        signals[number.name] += 1
        for line in wrong:
            print(f"    {line}", flush=True)
        if done % 10 == 0:
            print(f"kills {done} of {count}, lost {len(found)}", flush=True)
    lost = len({line.partition(":")[0] for line in found})
    return {
        "kills": count,
        "lost": lost,
        "wrong": found,
        "seed": seed,
        "run_seconds": round(max(lasts.values()), 2),
        "signals": dict(signals),
        "step_at_the_kill": dict(moments),
    }


def duration(bench: Bench, fault: Fault) -> float:
    """How long a run takes that nobody disturbs."""
    bench.fresh()
    bench.windows = fault.windows
    began = time.monotonic()
    bench.plainly(fault)
    return time.monotonic() - began


def summary(rows: list[dict[str, Any]], kills: dict[str, Any]) -> str:
    tried = [row for row in rows if row["outcome"] != "not possible here"]
    survived = [row for row in tried if row["outcome"] == "survived"]
    text = f"faults tried {len(tried)}, survived {len(survived)}; kills {kills['kills']}, lost {kills['lost']}"
    left = len(rows) - len(tried)
    return f"{text} ({left} faults are not possible on this machine)" if left else text


def markdown(rows: list[dict[str, Any]], kills: dict[str, Any]) -> str:
    said = {True: "yes", False: "no", None: "–"}
    lines = ["# Faults", "", f"`make faults`: {summary(rows, kills)}.", ""]
    lines += [
        "Each fault is brought about with stand-ins for nsys and ncu that replay what the real tools said and left on "
        "an H200. Survived: the stated exit code and diagnosis, a valid manifest, every recording that had been written "
        "unchanged, `llm-perf report` opens the run, and no process is left.",
        "",
        "| fault | exit code | diagnosis | timeline kept | counters kept | outcome |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        code = "killed" if row["exit_code"] is None else row["exit_code"]
        kept = f"{said[row['timeline_kept']]} | {said[row['counters_kept']]}"
        says = f"`{row['diagnosis']}`" if row["diagnosis"] else ""
        lines.append(f"| {row['name']} | {code} | {says} | {kept} | {row['outcome']} |")
    steps = ", ".join(f"{n} in {name}" for name, n in kills["step_at_the_kill"].items())
    signals = ", ".join(f"{n} {name}" for name, n in kills["signals"].items())
    lines += [
        "",
        f"Kills at random moments of a run of about {kills['run_seconds']} s, from its first import to its report, every second with capture windows inside its program: {signals}; last step begun at the kill: {steps}. Runs that were over before their moment are not counted.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--only", default="", help="faults with this word in their name; nothing is written")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    # A shell lets what it starts in the background ignore Ctrl-C, and so would every run: what is ignored stays ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [fault for fault in faults() if arguments.only in fault.name]
    with tempfile.TemporaryDirectory(prefix="llm-perf-faults-") as folder:
        bench = Bench(Path(folder) / "bench")
        rows = try_faults(bench, chosen)
        kills = try_kills(bench, arguments.kills, arguments.seed)
    print(summary(rows, kills))
    if not arguments.only:
        machine = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
        content = {
            "summary": summary(rows, kills),
            "commit": commit(),
            "machine": machine,
            "faults": rows,
            "kills": kills,
        }
        arguments.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        arguments.out.with_suffix(".md").write_text(markdown(rows, kills), encoding="utf-8")
    return int(any(row["outcome"] == "failed" for row in rows) or kills["lost"] > 0)


if __name__ == "__main__":
    sys.exit(main())
