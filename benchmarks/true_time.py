"""`llm-perf measure` against programs that time themselves: is what it says true, and what does it cost them?

    python benchmarks/true_time.py --out benchmarks/results/true-time-h200             everything, about five minutes
    python benchmarks/true_time.py --out benchmarks/results/true-time-h200 --only decode,graph
    python benchmarks/true_time.py --tiny --out /tmp/true-time                         on a CPU: tests the script itself

Each part runs one program of `programs/self_timed.py` by itself and under `llm-perf measure`, in turns, twice
each. Compared are the medians of its regions (its own CUDA events against the report), its tokens per second, the time
until it starts, and, where the program knows them, energy, memory growth and peak. What measuring costs a step is found
within each process, where steps with ranges and without follow each other in turns: a program that the host holds up
takes up to twice as long from one second to the next on a machine with other users. Where runs without us differ by more
than a limit, or steps within them do, no comparison with them is held to it: it is told as noise, and what is held to
the limit is the comparison with the program's own timers in the same run. Results are written after each part;
parts measured by an earlier call stay in the file. Exit code 1: a limit was missed.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from in_parts import run_parts
from provenance import commit

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "self_timed.py"
PARTS = {
    "decode": "own decode loop, 32 layers, ranges around stages and steps",
    "dense": "the same with about 100 ranges a step: what each costs is told",
    "compiled": "decode loop through torch.compile; the first step compiles",
    "training": "GPT-2-style training loop",
    "graph": "decode steps replayed from a CUDA graph; the first step captures",
    "threads": "two threads with ranges and streams of their own",
    "energy": "half a minute of products, copies and pauses",
}
NOISE = "how far runs alone, and the speed within them, are from their mean"
BLOCKS = 20  # of a run, each with a speed of its own
LIMITS = {"region": 0.02, "tokens": 0.02, "step": 0.01, "start": 2.0, "energy": 0.02, "memory": 0.02}
STAGES = ("decode", "step")  # whose instances hold the same number of steps or tokens
TURNS = 2
SECONDS = 100.0  # for one run of a program
LEAST_MS = 1.0  # regions that take less are told only
WARMUP = 0.25  # of the own times of a region that are left out at the beginning, for their median


def alone(kind: str, tiny: bool) -> dict[str, Any]:
    """The program by itself: what it prints, and when it started."""
    began = time.time()
    command = [sys.executable, str(PROGRAM), kind, *(["--tiny"] if tiny else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    return printed(done.stdout + done.stderr, began)


def measured(kind: str, tiny: bool, folder: Path) -> dict[str, Any]:
    """The same under `llm-perf measure`: what it prints, and what the report says."""
    began = time.time()
    product = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
    command = [*product, "measure", "--quiet", "--out", str(folder), "--"]
    command += [sys.executable, str(PROGRAM), kind, *(["--tiny"] if tiny else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    log = folder / "measure" / "workload.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    found = printed(text + done.stdout + done.stderr, began)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    regions = {region["key"].replace("LLM@", ""): region["timing"] for region in report["scopes"][-1]["regions"]}
    facts = report["environment"]["recordings"][0]
    return {**found, "regions": regions, "diagnostics": report["diagnostics"], "facts": facts}


def printed(text: str, began: float) -> dict[str, Any]:
    """What a program said of itself; the end of what it printed where it said nothing."""
    lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError("the program failed: " + " | ".join(text.splitlines()[-8:]))
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return {**found, "start_s": found["started_at"] - began, "wall_s": time.time() - began}


def own_median(found: dict[str, Any], name: str) -> float:
    """Of the instances that the report says are steady, where there is one; host noise makes others another median."""
    times, timing = found["milliseconds"][name], found.get("regions", {}).get(found["keys"][name])
    left_out = timing["warmup"]["instances"] if timing else math.ceil(len(times) * WARMUP)
    return statistics.median(times[left_out:] or times)


def part(kind: str, tiny: bool) -> dict[str, Any]:
    """One program, compared."""
    by_itself, under = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if kind == "energy" else TURNS):
            if kind != "energy":
                by_itself.append(alone(kind, tiny))
            under.append(measured(kind, tiny, Path(folder) / str(number)))
    first = under[0]
    checks = [check for name, key in first["keys"].items() for check in compare_region(name, key, by_itself, under)]
    if by_itself:
        checks += compare_cost(by_itself, under)
    checks = [told(found, kind, checks) for found in checks]
    checks += compare_energy(first) + compare_memory(by_itself, under) + compare_warmup(first)
    return {
        "what": PARTS[kind],
        "where": first["where"],
        "torch": first["torch"],
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "checks": checks,
        "diagnostics": [f"{d['code']}: {d['message']}" for d in first["diagnostics"]],
        "gpu_use": first["facts"].get("gpu_use"),
        "energy": first["facts"].get("energy"),
        "timing": [{key: run["regions"].get(key) for key in run["keys"].values()} for run in under],
        "own_medians_ms": [{name: own_median(run, name) for name in run["keys"]} for run in under],
        "in_turns": {
            name: [in_turns_facts(run) for run in runs]
            for name, runs in (("alone", by_itself), ("measured", under))
            if runs and "with_ranges_ms" in runs[0]
        },
        "seconds": {"alone": [run["wall_s"] for run in by_itself], "measured": [run["wall_s"] for run in under]},
    }


def told(found: dict[str, Any], kind: str, checks: list[dict[str, Any]]) -> dict[str, Any]:
    """A comparison of one process with another, without its limit where noise is larger; of many ranges in little time, all cost."""
    noise = next((other["said"] for other in checks if other["what"] == NOISE), 0.0)
    between_runs = found["what"].endswith((", runs without us", ", runs alone"))
    cost = between_runs or "in turns" in found["what"]
    if (between_runs and found["limit"] and noise > found["limit"]) or (kind in ("dense", "threads") and cost):
        return {**found, "limit": None, "ok": True}
    return found


def check(what: str, true: float | None, said: float | None, limit: float | None, unit: str) -> dict[str, Any]:
    """One comparison; `limit` None: told only. A value that is missing fails where one was due."""
    if true is None or said is None:
        missed = true is not None and limit is not None
        return {"what": what, "true": true, "said": said, "off": None, "limit": limit, "unit": unit, "ok": not missed}
    off = said / true - 1 if true else 0.0
    ok = limit is None or abs(off) <= limit
    return {"what": what, "true": true, "said": said, "off": off, "limit": limit, "unit": unit, "ok": ok}


def compare_region(name: str, key: str, by_itself: list[Any], under: list[Any]) -> list[dict[str, Any]]:
    """Its median as the report has it: against the program's own in the same runs, and in those without us."""
    said = [run["regions"].get(key) for run in under]
    medians = [timing["steady"]["median_ns"] / 1e6 for timing in said if timing and timing["steady"]["median_ns"]]
    found = statistics.mean(medians) if len(medians) == len(under) else None
    own = statistics.mean(own_median(run, name) for run in under)
    few = min(len(run["milliseconds"][name]) for run in under) < 5  # of two instances, one may be warm-up
    # Of a region of microseconds, the program's own events are a part that shows.
    limit = None if few or own < LEAST_MS else LIMITS["region"]
    checks = [check(f"median of {key}, same runs", own, found, limit, "ms")]
    if name in STAGES:
        checks.append(compare_rate(name, key, under, None if few else LIMITS["tokens"]))
    if by_itself:
        without = min(own_median(run, name) for run in by_itself)
        fastest = min(medians) if found is not None else None
        # What inner ranges take is disturbed most by looking at them: told.
        inner = key.count("/") > 2
        checks.append(check(f"median of {key}, runs without us", without, fastest, None if inner else limit, "ms"))
    return checks


def compare_rate(name: str, key: str, under: list[Any], limit: float | None) -> dict[str, Any]:
    """Steps or tokens per second are their number over all the time of what is steady."""
    own, said = [], []
    for run in under:
        times, timing = run["milliseconds"][name], run["regions"].get(key)
        own.append(statistics.mean(times[timing["warmup"]["instances"] if timing else 0 :] or times))
        if timing and timing["steady"]["instances"]:
            said.append(timing["steady"]["total_ns"] / timing["steady"]["instances"] / 1e6)
    found = 1e3 / statistics.mean(said) if len(said) == len(under) else None
    return check(f"{key} per second, steady ones, same runs", 1e3 / statistics.mean(own), found, limit, "1/s")


def compare_cost(by_itself: list[Any], under: list[Any]) -> list[dict[str, Any]]:
    def mean(runs: list[Any], name: str) -> float:
        return statistics.mean(run[name] for run in runs)

    start = mean(under, "start_s") - mean(by_itself, "start_s")
    wall = mean(under, "wall_s") - mean(by_itself, "wall_s")
    tokens = check(
        "steps or tokens per second, runs alone",
        *(max(run["tokens_per_second"] for run in runs) for runs in (by_itself, under)), LIMITS["tokens"], "1/s",
    )  # fmt: skip
    fastest, measured_fastest = (min(run["step_ms"] for run in runs) for runs in (by_itself, under))
    step = check("a step, runs alone", fastest, measured_fastest, LIMITS["step"], "ms")
    noise = max(abs(run["step_ms"] / mean(by_itself, "step_ms") - 1) for run in by_itself)
    speeds = [speed for run in by_itself for speed in levels(run)]
    if speeds:
        tenths = statistics.quantiles(speeds, n=10)
        noise = max(noise, (tenths[-1] - tenths[0]) / 2 / statistics.mean(speeds))
    seconds = {"true": None, "off": None, "unit": "s"}
    return [
        *compare_in_turns(by_itself, under),
        tokens,
        step,
        {"what": NOISE, "said": noise, **seconds, "unit": "", "limit": None, "ok": True},
        {"what": "later start of the program", "said": start, **seconds, "limit": LIMITS["start"], "ok": start <= LIMITS["start"]},
        {"what": "more wall time, report included", "said": wall, **seconds, "limit": None, "ok": True},
    ]  # fmt: skip


def levels(run: dict[str, Any]) -> list[float]:
    """Milliseconds of a step without ranges, from one part of the run to the next."""
    steps = run.get("without_ranges_ms", [])
    size = max(len(steps) // BLOCKS, 1)
    return [statistics.median(steps[at : at + size]) for at in range(0, len(steps), size)]


def in_turns_facts(run: dict[str, Any]) -> dict[str, Any]:
    """What is kept of steps in turns."""
    pairs = zip(run["with_ranges_ms"], run["without_ranges_ms"], strict=True)
    costs = [1e3 * (with_ranges - without) for with_ranges, without in pairs]
    return {
        "pairs": len(costs),
        "cost_us": [round(cost, 2) for cost in statistics.quantiles(costs, n=10)],  # tenths
        "levels_ms": [round(level, 5) for level in levels(run)],
    }


def compare_in_turns(by_itself: list[Any], under: list[Any]) -> list[dict[str, Any]]:
    """What the ranges of a step cost it while they are timed, above what they cost by themselves."""
    if "with_ranges_ms" not in under[0]:
        return []

    def cost(runs: list[Any]) -> tuple[float, float]:
        """The median, and the standard error of it."""
        pairs = [pair for run in runs for pair in zip(run["with_ranges_ms"], run["without_ranges_ms"], strict=True)]
        found = [with_ranges - without for with_ranges, without in pairs]
        middle = statistics.median(found)
        spread = 1.48 * statistics.median(abs(one - middle) for one in found)
        return middle, 1.25 * spread / math.sqrt(len(found))

    without = statistics.median(ms for run in under for ms in run["without_ranges_ms"])
    (ours, error), (by_themselves, other_error) = cost(under), cost(by_itself)
    ours, error = ours - by_themselves, 2 * math.hypot(error, other_error)
    what = f"a step with its ranges timed, in turns with steps without ranges (± {100 * error / without:.2f} %)"
    found = check(what, without, without + ours, None, "ms")
    limit = None if error / without > LIMITS["step"] else LIMITS["step"]  # else noise hides it
    return [{**found, "limit": limit, "ok": limit is None or (ours - error) / without <= limit}]


def compare_energy(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The outermost region of the program of that kind holds all that its own reading of the counter does."""
    true, energy = run.get("energy_j"), run["facts"].get("energy")
    if true is None:
        return []
    loop = run["regions"]["loop"]
    parts = [run["regions"][f"loop/{name}"] for name in ("products", "copies")]
    checks = [
        check("energy of the loop, against the program's own reading", true, loop["energy_j"], LIMITS["energy"], "J")
    ]
    if energy is not None:
        total = energy["regions_j"] + energy["no_region_j"]
        checks.append(
            check("regions and the rest, against the counter", energy["counter_j"], total, LIMITS["energy"], "J")
        )
    for name, timing in zip(("products", "copies"), parts, strict=True):
        used, median = timing["energy_j"], timing["steady"]["median_ns"]
        watts = None if used is None else used / (median / 1e9)
        checks.append(check(f"power while {name} (told)", None, watts, None, "W"))
    return checks


def compare_memory(by_itself: list[Any], under: list[Any]) -> list[dict[str, Any]]:
    checks, first = [], under[0]
    if first.get("growth_bytes") is not None and first["where"] != "CPU":
        said = first["regions"][first["keys"]["decode_step"]]["memory_growth_bytes"]
        checks.append(check("growth of the cache in a step", first["growth_bytes"], said, LIMITS["memory"], "B"))
    if first.get("peak_bytes") is not None:
        true = by_itself[0]["peak_bytes"]
        said = first["regions"][first["keys"]["step"]]["memory_peak_bytes"]
        checks.append(check("peak of a training step", true, said, LIMITS["memory"], "B"))
        own = "peak that the program reads itself, measured against alone"
        checks.append(check(own, true, first["peak_bytes"], 0.001, "B"))
    return checks


def compare_warmup(run: dict[str, Any]) -> list[dict[str, Any]]:
    wanted = run.get("warmup")
    if not wanted:
        return []
    why = run["regions"][wanted["region"]]["warmup"]["why"]
    what = f"warm-up of {wanted['region']} is {wanted['why']}; the report says {why}"
    return [
        {"what": what, "true": None, "said": None, "off": None, "limit": None, "unit": "", "ok": why == wanted["why"]}
    ]


def page(results: dict[str, Any]) -> str:
    """The result for people."""
    lines = ["# Times of `llm-perf measure` against those that programs take of themselves", ""]
    lines += ["`python benchmarks/true_time.py`. `off`: what was found over what is true, less one.", ""]
    for name, found in results["parts"].items():
        lines += [f"## {name}: {found.get('what', '')}", ""]
        if "failed" in found:
            lines += [f"Failed ({found['commit']}): {found['failed']}", ""]
            continue
        lines += [f"{found['where']}, torch {found['torch']}, commit {found['commit']}, {found['date']}.", ""]
        lines += ["| what | true | found | off | limit | |", "|---|---|---|---|---|---|"]
        lines += [row(check) for check in found["checks"]]
        lines += ["", *(f"- {text}" for text in found["diagnostics"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def row(check: dict[str, Any]) -> str:
    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value:,.4g} {check['unit']}".strip()

    off = "–" if check["off"] is None else f"{100 * check['off']:+.2f} %"
    limit = check["limit"]
    if limit is not None:
        limit = f"{limit:g} s" if check["unit"] == "s" else f"{100 * limit:g} %"
    is_told = check["limit"] is None and check["said"] is not None  # a figure that is held to nothing
    outcome = "**missed**" if not check["ok"] else "told" if is_told else "ok"
    return f"| {check['what']} | {cell(check['true'])} | {cell(check['said'])} | {off} | {limit or '–'} | {outcome} |"


def main() -> int:
    return run_parts(__doc__ or "", "true-time-h200", PARTS, part, page)


if __name__ == "__main__":
    sys.exit(main())
