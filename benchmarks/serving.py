"""Steps of a serving engine against the engine's own records: phases, tokens, tokens per second, and no time unaccounted.

    python benchmarks/serving.py --out benchmarks/results/serving-h200          a minute or two on a GPU
    python benchmarks/serving.py --tiny --out /tmp/serving                      on a CPU: tests the script itself

Two parts, each transformers' continuous batching in a spawned process (`programs/batched_server.py`): `batch`, which is
`generate_batch()`, and `http`, the same engine behind HTTP under the load of `llm-perf measure --load`. Where nsys is
installed, `batch` is recorded too (`llm-perf profile`). Every step of the report has to be what the engine recorded, in
order, and its tokens per second within 2 % of those handed out. Exit code 1: a limit was missed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.readers.measured import read_measured
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.columns import Timeline
from llm_perf_opt.regions.step_numbers import numbers_of, without_numbers
from provenance import commit

PROGRAM = Path(__file__).resolve().parent / "programs" / "batched_server.py"
PRODUCT = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
SECONDS = 140.0
LIMIT = 0.02
LOAD = {True: (6, 3, 40, 12), False: (48, 16, 400, 128)}  # by --tiny: requests, at once, words, tokens
Step = tuple[str, int, int, int]  # phase, requests, tokens read, tokens made


def steps_of(timeline: Timeline) -> tuple[list[Step], float]:
    """The steps of a recording in order, and the seconds from the first to the last."""
    ranges, found, bounds = timeline.ranges, [], []
    for which in ranges.start.argsort(kind="stable").tolist():
        name = timeline.strings[int(ranges.name[which])]
        if numbers_of(name)[0] >= 0:
            found.append((without_numbers(name), *numbers_of(name)))
            bounds += [int(ranges.start[which]), int(ranges.end[which])]
    return found, (max(bounds) - min(bounds)) / 1e9 if bounds else 0.0


def recorded(step: list[list[int]]) -> Step:
    """What the engine says of a step: a request that has made a token before decodes."""
    decodes = {before > 0 for _, _, before in step}
    phase = "mixed_step" if len(decodes) == 2 else "decode_step" if True in decodes else "prefill"
    return phase, len(step), sum(read for read, _, _ in step), sum(new for _, new, _ in step)


def compared(timeline: Timeline, records: dict[str, Any]) -> dict[str, Any]:
    found, seconds = steps_of(timeline)
    truth = [recorded(step) for step in records["steps"]]
    wrong = [[list(ours), list(theirs)] for ours, theirs in zip(found, truth, strict=False) if ours != theirs]
    rate, handed_out = sum(new for *_, new in found) / max(seconds, 1e-9), records["made"] / records["seconds"]
    phases: dict[str, int] = {}
    for phase, *_ in truth:
        phases[phase] = phases.get(phase, 0) + 1
    return {
        "steps": len(found),
        "recorded": len(truth),
        "phases": phases,
        "wrong": len(wrong) + abs(len(found) - len(truth)),
        "first_wrong": wrong[:3],
        "tokens_per_s": rate,
        "engine_tokens_per_s": handed_out,
        "rate_off": rate / handed_out - 1,
        "good": not wrong and len(found) == len(truth) and abs(rate / handed_out - 1) <= LIMIT,
    }


def run(verb: list[str], program: list[str], folder: Path) -> float:
    began = time.monotonic()
    command = [*PRODUCT, *verb, "--quiet", "--out", str(folder), "--", sys.executable, str(PROGRAM), *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(verb)} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return time.monotonic() - began


def account(folder: Path) -> dict[str, Any]:
    """How much of the GPU's time the stages of a recording hold."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    scope = report["scopes"][-1]
    whole = scope["totals"]["gpu_time_ns"]
    regions = [r for r in scope["regions"] if r["depth"] == 0 and r["range_kind"] != "recording"]
    held = {r["key"]: (r["inclusive"]["gpu_time_ns"] or 0) / whole for r in regions} if whole else {}
    return {"gpu_time_ns": whole, "held": held, "outside": 1 - sum(held.values()) if whole else None}


def batch(tiny: bool, folder: Path) -> dict[str, Any]:
    records, flags = folder / "records.json", ["--tiny"] if tiny else []
    took = run(["measure", "--annotate", "stages"], ["batch", str(records), *flags], folder / "run")
    measured = compared(read_measured(folder / "run" / "measure" / "run.json"), json.loads(records.read_text()))
    return {**measured, "took_s": took}


def profiled(tiny: bool, folder: Path) -> dict[str, Any]:
    records, flags = folder / "records.json", ["--tiny"] if tiny else []
    verb = ["profile", "--annotate", "stages", "--no-counters", "--no-measure"]
    took = run(verb, ["batch", str(records), *flags], folder / "run")
    timeline = read_recording(folder / "run" / "nsys" / "run.sqlite")
    assert isinstance(timeline, Timeline)
    found = compared(timeline, json.loads(records.read_text()))
    # A profiler slows the host down: the rate is that of the same run, and phases alone count.
    return {**found, "good": not found["wrong"], "account": account(folder / "run"), "took_s": took}


def http(tiny: bool, folder: Path) -> dict[str, Any]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    requests, at_once, words, tokens = LOAD[tiny]
    load = ["--load", str(requests), "--concurrency", str(at_once), "--prompt-tokens", str(words)]
    load += ["--output-tokens", str(tokens), "--url", f"http://127.0.0.1:{port}"]
    records, flags = folder / "records.json", ["--tiny"] if tiny else []
    took = run(["measure", *load], ["http", str(port), str(records), *flags], folder / "run")
    measured = compared(read_measured(folder / "run" / "measure" / "run.json"), json.loads(records.read_text()))
    seen = json.loads((folder / "run" / "measure" / "load.json").read_text())
    off = measured["tokens_per_s"] / seen["output_tokens_per_s"] - 1
    good = not measured["wrong"] and abs(off) <= LIMIT and seen["requests"]["answered"] == requests
    return {**measured, "load": seen, "rate_off": off, "good": good, "took_s": took}


PARTS = {"batch": batch, "profiled": profiled, "http": http}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results, without a suffix")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="", help="parts, with commas")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else [p for p in PARTS if p != "profiled" or shutil.which("nsys")]
    file = given.out.with_suffix(".json")
    results = json.loads(file.read_text()) if file.exists() else {}
    results |= {"commit": commit(), "made": datetime.now(UTC).isoformat(timespec="seconds")}
    bad = False
    for part in wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = PARTS[part](given.tiny, Path(folder))
            except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
                found = {"good": False, "error": str(error)[-2000:]}
        bad |= not found["good"]
        results.setdefault("parts", {})[part] = found
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        brief = {key: found.get(key) for key in ("good", "steps", "wrong", "phases", "rate_off", "took_s", "error")}
        print(part, json.dumps(brief), flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
