"""From kernels to lines of the program, and from waits to lines: how much of it is right, and what it costs. Needs a GPU.

    python benchmarks/lines.py --out benchmarks/results/lines-h200            everything, about two minutes
    python benchmarks/lines.py --out benchmarks/results/lines-h200 --only eager,waits

    python benchmarks/lines.py --out benchmarks/results/lines-h200 --recorded  without a GPU: eager, graph, train and waits
                                                                               from tests/recordings

The program is tests/recordings/programs/lines.py, whose lines are tagged with what they launch. Parts:

  eager, graph, train   with an NVTX range around every tagged line, as the truth: for each launch, was it given to the
                        line it came from? And does the table by line of the report have the right times?
  long                  the same with so many steps that marks pause: most launches are given to lines by those like them
  waits                 planted waits (sleep, DataLoader, lock, cudaMalloc, .item()): named with their line, and how long?
  cost                  a step under nsys, and the same with lines noted
  profile               `llm-perf profile` with counters: FLOPs by line against the shapes, and its time against the program's
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.analysis.code_lines import launching_places
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.attribution import attribute
from llm_perf_opt.regions.code import parse_place
from llm_perf_opt.regions.columns import Timeline
from provenance import commit

PROGRAM = Path(__file__).resolve().parents[1] / "tests" / "recordings" / "programs" / "lines.py"
TEXT = PROGRAM.read_text(encoding="utf-8").splitlines()
LINE_OF = {found[1]: at for at, line in enumerate(TEXT, 1) if (found := re.search(r"  #: (\w+)$", line))}
# A wait in code that a library calls has its own line: that of the data set, not that of the loader.
INSIDE = {"loader": next(at for at, line in enumerate(TEXT, 1) if "time.sleep(0.012)" in line)}
# Seconds over six steps, as the program printed them when tests/recordings/lines-*-waits* was made.
RECORDED_WAITS = {"sleep": 0.09095, "loader": 0.07565, "lock": 0.12074, "malloc": 0.02208, "item": 0.07255}
RECORDED_FIRST = {"sleep": 0.01516, "loader": 0.01308, "lock": 0.02017, "malloc": 0.00070, "item": 0.03228}  # of those
LIMITS = {"eager": 0.95, "train": 0.95, "long": 0.95, "graph": 0.90, "waits": 0.10, "flops": 0.05, "profile": 4.0}
LLM_PERF = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
PARTS = ("eager", "graph", "train", "long", "waits", "cost", "profile")


def profiled(
    folder: Path, *command: str, options: tuple[str, ...] = ("--no-counters", "--no-measure")
) -> dict[str, Any]:
    """The report of a run of the program."""
    argv = [*LLM_PERF, "profile", "-q", *options, "--out", str(folder), "--"]
    done = subprocess.run([*argv, sys.executable, str(PROGRAM), *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"llm-perf profile failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


def region(report: dict[str, Any], key: str) -> dict[str, Any]:
    scope = next(scope for scope in report["scopes"] if scope["scope"] == "aggregate")
    return next(found for found in scope["regions"] if found["key"] == key)


def right_launches(recording: Path) -> tuple[float, int]:
    """Part of the GPU time inside truth ranges that is on the line of its range, as far as launches are known at all."""
    timeline = read_recording(recording, launch_config=True)
    assert isinstance(timeline, Timeline)
    attribution, kernels = attribute(timeline, "auto"), timeline.kernels
    place = launching_places(timeline, timeline.code.chosen(~timeline.code.sampled))
    time_of = (kernels.end - kernels.start).tolist()
    right = known = launches = 0
    for at, inside in enumerate(np.maximum.reduce(attribution.kernels.by_domain).tolist()):
        truth = re.findall(r"truth (\w+)", attribution.table.key(inside)) if inside >= 0 else []
        found = parse_place(timeline.strings[place[at]]) if place[at] >= 0 else None
        if truth and found is not None:
            launches += 1
            known += time_of[at]
            right += time_of[at] * (found.line == LINE_OF[truth[-1]])
    return right / max(known, 1), launches


def table_against_truth(report: dict[str, Any]) -> tuple[float, float]:
    """How much of the time the report's lines share with that of the truth ranges, and the part that has a line."""
    scope = next(scope for scope in report["scopes"] if scope["scope"] == "aggregate")
    truth: dict[int, float] = {}
    for found in scope["regions"]:
        tag = re.search(r"(?:^|/)truth (\w+)$", found["key"])
        if tag:
            truth[LINE_OF[tag[1]]] = truth.get(LINE_OF[tag[1]], 0.0) + found["inclusive"]["gpu_time_ns"]
    performance = region(report, "step")["performance"]
    lines: dict[int, float] = {}
    for line in performance["lines"]:
        lines[line["line"]] = lines.get(line["line"], 0.0) + line["time"]["value"]
    whole, known = sum(truth.values()), sum(lines.values())
    return sum(min(truth[at] / whole, lines.get(at, 0.0) / known) for at in truth), performance["lines_known"]


def reported(recording: Path, folder: Path) -> dict[str, Any]:
    """The report of a recording."""
    argv = [*LLM_PERF, "report", "-q", "--format", "json", "--out", str(folder), str(recording)]
    subprocess.run(argv, capture_output=True, check=True)
    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return found


def recorded(part: str) -> Path:
    return next((PROGRAM.parents[1]).glob(f"lines-*-{part}.sqlite.xz"))


def recorded_part(part: str, folder: Path) -> dict[str, Any]:
    report = reported(recorded(part), folder)
    if part == "waits":
        first = RECORDED_FIRST
        took = {name: [first[name], total - first[name]] for name, total in RECORDED_WAITS.items()}
        return against_planted(report, took)
    return against_truth(part, report, recorded(part))


def lines_part(part: str, folder: Path) -> dict[str, Any]:
    (folder / "truth").mkdir()
    kind, steps = ("eager", 1500) if part == "long" else (part, 6 if part == "train" else 20)
    options = ("--no-counters", "--no-measure", "--run-to-end")
    report = profiled(folder / "run", kind, "--steps", str(steps), "--truth", str(folder / "truth"), options=options)
    return against_truth(part, report, folder / "run" / "nsys" / "run.sqlite")


def against_truth(part: str, report: dict[str, Any], recording: Path) -> dict[str, Any]:
    share, launches = right_launches(recording)
    table, known = table_against_truth(report)
    return {
        "right_share_of_time": share,
        "launches_seen": launches,
        "kernels": region(report, "step")["inclusive"]["kernel_count"],
        "table_share": table,
        "time_with_a_line": known,
        "limit": LIMITS[part],
        "good": min(share, table, known) >= LIMITS[part],
    }


def waits_part(folder: Path) -> dict[str, Any]:
    report = profiled(folder / "run", "waits", "--steps", "6")
    printed = next(
        line for line in (folder / "run" / "workload.log").read_text(encoding="utf-8").splitlines() if line[:1] == "{"
    )
    return against_planted(report, json.loads(printed))


def against_planted(report: dict[str, Any], took: dict[str, list[float]]) -> dict[str, Any]:
    step = region(report, "step")
    warm, performance = step["timing"]["warmup"]["instances"], step["performance"]
    result: dict[str, Any] = {"warm-up": warm}
    for name in ("sleep", "loader", "lock", "malloc", "item"):
        places = {LINE_OF[name], INSIDE.get(name, LINE_OF[name])} | ({LINE_OF[name] - 1} if name == "item" else set())
        mine = [line for line in performance["lines"] if line["line"] in places]
        idle = sum(line["idle"]["value"] for line in mine if line["idle"])
        busy = sum(line["time"]["value"] for line in mine)
        causes: dict[str, int] = {}
        for line in performance["idle"]["lines"]:
            if line["line"] in places:
                causes[line["cause"]] = causes.get(line["cause"], 0) + line["time_ns"]
        truth = sum(took[name][warm:]) * 1e9 - busy
        result[name] = {
            "lines": sorted(places & {line["line"] for line in mine}),
            "cause": max(causes, key=lambda cause: causes[cause], default=""),
            "waited_ms": truth / 1e6,
            "told_ms": idle / 1e6,
            "off": idle / truth - 1,
        }
    result["limit"] = LIMITS["waits"]
    result["good"] = all(abs(found["off"]) <= LIMITS["waits"] for found in result.values() if isinstance(found, dict))
    return result


def cost_part(folder: Path) -> dict[str, Any]:
    medians: dict[str, list[float]] = {"plain": [], "lines": []}
    for turn in range(2):
        for name, more in (("plain", ("--no-lines",)), ("lines", ())):
            options = ("--no-counters", "--no-measure", "--run-to-end", *more)
            report = profiled(folder / f"{name}{turn}", "eager", "--steps", "300", options=options)
            medians[name].append(region(report, "step")["timing"]["steady"]["median_ns"] / 1e3)
    best = {name: min(found) for name, found in medians.items()}
    return {"step_us": medians, "ratio": best["lines"] / best["plain"], "good": True}


def profile_part(folder: Path) -> dict[str, Any]:
    command = ("eager", "--steps", "200")
    alone = []
    for _ in range(2):
        began = time.monotonic()
        subprocess.run([sys.executable, str(PROGRAM), *command], capture_output=True, check=True)
        alone.append(time.monotonic() - began)
    began = time.monotonic()
    report = profiled(folder / "run", *command, options=())
    took = time.monotonic() - began
    step = region(report, "step")
    steady = step["timing"]["steady"]["instances"] or 1
    performance = step["performance"]
    rows, width, layers = 512, 1024, 4
    # Products by construction, of one step.
    shapes = {"qkv": 3 * width * width, "up": 4 * width * width, "out": width * width, "down": 4 * width * width}
    expected = {name: 2 * rows * size * layers for name, size in shapes.items()} | {
        "head": 2 * rows * 4 * width * width
    }
    flops = {}
    counted = performance["instances"] if performance.get("instances") else steady
    for name, value in expected.items():
        line = next(line for line in performance["lines"] if line["line"] == LINE_OF[name])
        per_step = (
            line["flops"]["value"] / (line["calls"] / (layers if name != "head" else 1)) if line["flops"] else 0.0
        )
        flops[name] = per_step / value * (1 if name != "down" else 2)  # that line launches an addition too
    return {
        "alone_s": min(alone),
        "profile_s": took,
        "times_the_program": took / min(alone),
        "flops_by_line_over_shapes": flops,
        "steady_steps": counted,
        "limit": LIMITS["profile"],
        "good": all(abs(ratio - 1) <= LIMITS["flops"] for ratio in flops.values()),
    }


def written(results: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Lines of the program, against the truth",
        "",
        f"`python benchmarks/lines.py`, {results['date']}, commit {results['commit']}.",
        "",
    ]
    if any(part in results and results[part]["from"] != "this machine" for part in PARTS):
        lines[2] += " What there is of it comes from the recordings of an H200 in tests/recordings (`--recorded`)."
    rows = [(part, results[part]) for part in ("eager", "graph", "train", "long") if part in results]
    if rows:
        lines += [
            "| program | launches seen on their line | of the GPU time, right | table by line, right | with a line |"
        ]
        lines += ["|---|---:|---:|---:|---:|"]
    for part, found in rows:
        shares = (found["right_share_of_time"], found["table_share"], found["time_with_a_line"])
        told = " | ".join(f"{100 * share:.1f} %" for share in shares)
        lines.append(f"| {part} | {found['launches_seen']:,} of {found['kernels']:,} | {told} |")
    if "waits" in results:
        lines += ["", "| planted wait | line | cause | waited | told | off |", "|---|---|---|---:|---:|---:|"]
        for name, found in results["waits"].items():
            if isinstance(found, dict):
                told = f"{found['waited_ms']:.1f} ms | {found['told_ms']:.1f} ms | {100 * found['off']:+.1f} %"
                lines.append(f"| {name} | {', '.join(map(str, found['lines']))} | {found['cause']} | {told} |")
    if "cost" in results:
        found = results["cost"]
        lines += ["", f"A step of 1 ms under nsys takes {found['ratio']:.2f} times as long with lines noted."]
    if "profile" in results:
        found = results["profile"]
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found["flops_by_line_over_shapes"].items())
        lines += ["", f"`llm-perf profile`: {found['profile_s']:.0f} s, the program alone {found['alone_s']:.0f} s."]
        lines += [f"FLOPs by line over those of the shapes: {ratios}."]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="result files, without their ending")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--recorded", action="store_true", help="rate the recordings of the repository: no GPU")
    asked = parser.parse_args()
    parts = ["eager", "graph", "train", "waits"] if asked.recorded else asked.only.split(",")
    known = asked.out.with_suffix(".json")
    results: dict[str, Any] = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    results |= {"date": datetime.now(UTC).date().isoformat(), "commit": commit()}
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            named = {"waits": waits_part, "cost": cost_part, "profile": profile_part}
            run = named.get(part) if not asked.recorded else partial(recorded_part, part)
            results[part] = lines_part(part, Path(folder)) if run is None else run(Path(folder))
        results[part]["from"] = "tests/recordings" if asked.recorded else "this machine"
        print(part, json.dumps(results[part]), flush=True)
        written(results, asked.out)
    return 0 if all(results[part]["good"] for part in PARTS if part in results) else 1


if __name__ == "__main__":
    sys.exit(main())
