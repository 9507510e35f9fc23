"""`llm-perf compare` on recordings alone: planted edits, noise, and what it costs; needs no GPU.

    python benchmarks/compare_recordings.py --out benchmarks/results/compare-recordings

Edits are planted into a real recording (`tests/planted.py`), so that the true change is known to the nanosecond. Pairs
in which nothing changed are drawn from the steady instances of real recordings, with runs that differ by a percent.
For the cost, a timeline of 1.08 million kernels is compared with a copy of it. Exit code 1: a limit was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.api.sides import open_side
from llm_perf_opt.comparing.evaluation import compare
from llm_perf_opt.comparing.side import GPU, UNDISTURBED, RegionSide, Side, Times
from provenance import commit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from planted import Planted, as_run  # noqa: E402 - of the tests

STEP, ATTENTION = "LLM@decode/decode_step", "cudnn_generated_fort_native_sdpa_sm80_flash_fprop"
TILE, COPY = "8x64_64x16_2x1_v_bz_TNN", "CatArrayBatchedCopy"
# What is planted, how, and what the first cause or sentence has to say; the true change of a step, ns, from the edit.
EDITS: list[tuple[str, Callable[[Planted], Any], str, Callable[[Any], float]]] = [
    *(
        (f"a kernel {length // 1000} µs slower", lambda p, n=length: p.slow_down(TILE, "decode_step", n), TILE, lambda _, n=length: 16.0 * n)
        for length in (5_000, 20_000, 90_000, 400_000)
    ),
    *(
        (f"{each} more launches", lambda p, n=each: p.add_launches(COPY, "decode_step", n), f"{each} more launches of {COPY}", lambda r, n=each: n * (r[0] + r[1]))
        for each in (1, 12, 72, 500)
    ),
    *(
        (f"a synchronisation of {length / 1e6:g} ms", lambda p, n=length: p.add_synchronisations("decode_step", n), "synchronisations 0 → 1", lambda _, n=length: n)
        for length in (300_000, 3_000_000)
    ),
    ("a range renamed", lambda p: p.rename("decode_step", "token"), f"{STEP} is now called LLM@decode/token", lambda _: 0.0),
    ("a kernel replaced", lambda p: p.swap_kernel(ATTENTION, "decode_step", "my_attention"), "→ my_attention", lambda _: 0.0),
]  # fmt: skip
CLOCKS = (1980, 1500)  # MHz of the SMs, before and after
CLOCK_OFF = 0.2  # of the true change, at most
PAIRS, RUNS = 20, 5
MOST_TIME = MOST_MEMORY = 2.2  # of one report
KERNELS = 1_080_000
LLM_PERF = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]


def planted(folder: Path) -> list[dict[str, Any]]:
    with Planted(folder / "base.sqlite"):
        pass
    base, rows = open_side(folder / "base.sqlite", quiet=True), []
    for what, edit, words, size in EDITS:
        path = folder / "new.sqlite"
        with Planted(path) as new:
            told = edit(new)
        found = compare(base, open_side(path, quiet=True))
        step = next(r for r in found.regions if STEP in (r.key, r.renamed_from))
        true, changed = size(told), step.delta_ns
        pairs = [
            " → ".join(u.short for u in uses)
            for p in step.pairs
            if p.how == "order of launches"
            for uses in (p.before + p.after,)
        ]
        said = [*found.sentences, *(cause.what for cause in step.causes[:2]), *pairs]
        rest = max(
            (
                abs(sum(c.delta_ns for c in r.causes) - r.delta_ns) / max(abs(r.delta_ns), 1.0)
                for r in found.regions
                if r.before_ns
            ),
            default=0.0,
        )
        rows.append(
            {
                "what": what,
                "true_ns": true,
                "found_ns": changed,
                "verdict": step.verdict,
                "named": any(words in text for text in said),
                "off": abs(changed - true),
                "causes_off": rest,
            }
        )
        path.unlink()
    return rows


def lowered_clock(folder: Path) -> dict[str, Any]:
    """Two run directories of one program, measured five times each; of the second, every kernel of a step takes as much
    longer as the clock that was sampled meanwhile is lower."""
    sides, true = [], 0.0
    for mhz in CLOCKS:
        with Planted(folder / f"{mhz}.sqlite") as recording:
            if mhz != CLOCKS[0]:
                true = recording.lower_clock("decode_step", CLOCKS[0] / mhz)
            sides.append(open_side(as_run(folder / f"{mhz}", recording, mhz, "decode", "decode_step"), quiet=True))
    found = compare(*sides)
    step = found.region(STEP)
    return {
        "mhz": list(CLOCKS),
        "true_ns": true,
        "found_ns": step.delta_ns,
        "off": abs(step.delta_ns / true - 1),
        "verdict": found.verdict,
        "reason": found.reasons[0] if found.reasons else "",
        "first_cause": {"kind": step.causes[0].kind, "what": step.causes[0].what, "delta_ns": step.causes[0].delta_ns},
    }


def real_instances() -> list[np.ndarray]:
    """Steady instances of the recordings in the repository, around their medians."""
    found = []
    for path in sorted((ROOT / "tests" / "recordings").glob("*.sqlite.*")):
        for region in open_side(path, quiet=True).regions.values():
            for source, times in region.times.items():
                if source != GPU and times.instances >= 8 and times.typical > 20_000:
                    found.append(np.concatenate(times.runs) / times.typical)
    return found


def noise(real: list[np.ndarray]) -> dict[str, Any]:
    """How often something is found where nothing changed, and where 3 % did."""
    tight = [shape for shape in real if np.ptp(np.quantile(shape, [0.25, 0.75])) < 0.04]

    def side(shape: np.ndarray, random: np.random.Generator, typical: float, runs: int, between: float) -> Side:
        drawn = [typical * np.exp(random.normal(0, between)) * random.choice(shape, size=60) for _ in range(runs)]
        times = Times.of(drawn)
        return Side(
            "side", {"step": RegionSide("step", ("step",), None, {UNDISTURBED: times}, times.instances, 60 * typical)}
        )

    def count(
        verdicts: tuple[str, ...], shapes: list[np.ndarray], pairs: int, change: float, runs: int, between: float
    ) -> int:
        found = 0
        for seed in range(pairs):
            random = np.random.default_rng(seed)
            shape = shapes[random.integers(len(shapes))]
            both = (side(shape, random, 40e6 * factor, runs, between) for factor in (1.0, 1.0 + change))
            found += compare(*both).verdict in verdicts
        return found

    alarm = ("better", "worse")
    return {
        "distributions": len(real),
        "alarms": count(alarm, real, PAIRS, 0.0, RUNS, 0.01),
        "alarms_of_1000": count(alarm, real, 1000, 0.0, RUNS, 0.01),
        "one_run_alarms": count(alarm, real, PAIRS, 0.0, 1, 0.01),
        "one_run_alarms_of_1000": count(alarm, real, 1000, 0.0, 1, 0.01),
        "found_of_100": count(("worse",), tight, 100, 0.03, RUNS, 0.004),
    }


def cost(folder: Path, times: int) -> dict[str, Any]:
    """Processor time and peak memory of a report and of a comparison, best of some: wall time is others' too."""
    timeline, other = folder / "timeline.sqlite", folder / "other.sqlite"
    subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "make_timeline.py", "--kernels", str(KERNELS), timeline],
        check=True,
        capture_output=True,
    )
    os.link(timeline, other)
    found: dict[str, list[tuple[float, float, float]]] = {"report": [], "compare": []}
    for _ in range(times):
        for verb, words in (
            ("report", [timeline, "--out", folder / "report"]),
            ("compare", [timeline, other, "--out", folder / "compared"]),
        ):
            found[verb].append(_used([*LLM_PERF, verb, *map(str, words), "--quiet"]))
    best = {
        verb: {"cpu_s": min(r[0] for r in rows), "wall_s": min(r[1] for r in rows), "peak_mb": min(r[2] for r in rows)}
        for verb, rows in found.items()
    }
    ratios = {name: best["compare"][name] / best["report"][name] for name in ("cpu_s", "wall_s", "peak_mb")}
    return {"kernels": KERNELS, **best, "ratios": ratios}


def _used(command: list[str]) -> tuple[float, float, float]:
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[3]} failed with {process.returncode}")
    del before
    return used.ru_utime + used.ru_stime, time.time() - began, used.ru_maxrss / 1024


def render(result: dict[str, Any]) -> str:
    lines = [
        "# `llm-perf compare` on recordings alone",
        "",
        f"Written by `python benchmarks/compare_recordings.py` on {result['date']}.",
        "",
    ]
    lines += [
        "| planted into a step of 15.7 ms | true | found | verdict | named | causes are off by |",
        "|---|---:|---:|---|---|---:|",
    ]
    for row in result["planted"]:
        named = "yes" if row["named"] else "**no**"
        lines.append(
            f"| {row['what']} | {row['true_ns'] / 1e3:+,.1f} µs | {row['found_ns'] / 1e3:+,.1f} µs | {row['verdict']} | {named} | {100 * row['causes_off']:.4f} % |"
        )
    clock, found, used = result["clock"], result["noise"], result["cost"]
    lines += [
        "",
        f"The SM clock lowered from {clock['mhz'][0]:,} to {clock['mhz'][1]:,} MHz, simulated: in a run measured five times, every"
        f" kernel of a step takes as much longer. True {clock['true_ns'] / 1e3:+,.1f} µs, found {clock['found_ns'] / 1e3:+,.1f} µs;"
        f" first cause: {clock['first_cause']['what']} ({clock['first_cause']['delta_ns'] / 1e3:+,.1f} µs); verdict:"
        f" {clock['verdict']} ({clock['reason']}).",
        "",
        f"Pairs in which nothing changed, instances drawn from {found['distributions']} distributions of real recordings, runs that differ by 1 %:",
        "",
    ]
    lines.append(
        f"- {RUNS} runs a side: {found['alarms']} alarms in {PAIRS} pairs, {found['alarms_of_1000']} in 1,000."
    )
    lines.append(
        f"- One run a side: {found['one_run_alarms']} alarms in {PAIRS} pairs, {found['one_run_alarms_of_1000']} in 1,000."
    )
    lines.append(
        f"- A step of 40 ms that is 3 % slower, {RUNS} runs a side that differ by 0.4 %: found in {found['found_of_100']} of 100."
    )
    lines += [
        "",
        f"Two timelines of {used['kernels']:,} kernels, against one report of one of them:",
        "",
        "| | report | compare | ratio |",
        "|---|---:|---:|---:|",
    ]
    for name, title in (
        ("cpu_s", "processor time, s"),
        ("wall_s", "wall time, s (other programs ran beside it)"),
        ("peak_mb", "peak memory, MB"),
    ):
        lines.append(
            f"| {title} | {used['report'][name]:.1f} | {used['compare'][name]:.1f} | {used['ratios'][name]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="result without its ending: OUT.json and OUT.md")
    parser.add_argument("--times", type=int, default=3, help="of each command whose cost is measured")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    with tempfile.TemporaryDirectory() as folder:
        result["planted"] = planted(Path(folder))
        result["clock"] = lowered_clock(Path(folder))
        result["noise"] = noise(real_instances())
        result["cost"] = cost(Path(folder), arguments.times)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(render(result), encoding="utf-8")
    print(render(result))
    good = all(
        row["named"] and row["causes_off"] <= 0.001 and row["off"] <= 0.001 * row["true_ns"] + 1
        for row in result["planted"]
    )
    clock = result["clock"]
    good = good and clock["off"] <= CLOCK_OFF and clock["first_cause"]["kind"] == "clock" and "clock" in clock["reason"]
    quiet = result["noise"]["alarms"] == 0 and result["noise"]["found_of_100"] >= 90
    cheap = result["cost"]["ratios"]["cpu_s"] <= MOST_TIME and result["cost"]["ratios"]["peak_mb"] <= MOST_MEMORY
    return 0 if good and quiet and cheap else 1


if __name__ == "__main__":
    raise SystemExit(main())
