"""What `llm-perf profile` answers about programs with warm-up, beside what they say of themselves.

    python benchmarks/true_answers.py --out benchmarks/results/true-answers-h200            everything, about four minutes
    python benchmarks/true_answers.py --out benchmarks/results/true-answers-h200 --only cold,compiled
    python benchmarks/true_answers.py --tiny --out /tmp/true-answers         on a CPU, by `measure`: tests the script itself

Each part is one program that times itself (`programs/self_timed.py`, `programs/self_generating.py`) under the profiler,
without counters: measured first, and where the timeline alone has to tell warm-up, without that, too. Compared are the
steady times of its regions and its tokens per second; checked, what its warm-up is said to be, that the answer is about
the steady part, and that no region in which the GPU works most of the time is called bound by the host. `twenty`:
twenty runs of one program, whose steady medians lie close together, or the report says why not. Results are written
after each part; parts measured by an earlier call stay in the file. Exit code 1: an answer is wrong.
"""

from __future__ import annotations

import json
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
from true_time import check, own_median, printed, row

HERE = Path(__file__).resolve().parent
TIMED, GENERATING = HERE / "programs" / "self_timed.py", HERE / "programs" / "self_generating.py"
PARTS: dict[str, tuple[str, list[str], bool]] = {  # what it is, its words, whether also without measuring
    "decoder": ("decoder with ranges of its own", [str(TIMED), "decode"], False),
    "cold": ("generate(), the first call cold", [str(GENERATING), "cold"], True),
    "compiled": ("generate() with a static cache through torch.compile", [str(GENERATING), "compiled"], True),
    "training": ("GPT-2-style training; the first steps are slow", [str(TIMED), "training"], False),
    "twenty": ("twenty runs of decode steps from a CUDA graph", [str(TIMED), "graph"], False),
}
LIMITS = {"region": 0.02, "tokens": 0.02, "profiled": 0.5, "runs": 0.03}
WORKS = 0.65  # part of the time: a GPU that works so much is not held up by the host
HOST = ("host", "launch")
DECODE = "LLM@generate/decode"
SECONDS = 200.0
RUNS = 20


def llm_perf(verb: str, options: list[str], words: list[str], tiny: bool, folder: Path) -> dict[str, Any]:
    """Run a program under a verb: what it says of itself, and the report."""
    product = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
    program = [sys.executable, *words, *(["--tiny"] if tiny else [])]
    began = time.time()
    command = [*product, verb, "--quiet", "--out", str(folder), *options, "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    logs = [folder / "measure" / "workload.log", folder / "workload.log"]
    text = next((log.read_text(errors="replace") for log in logs if log.exists()), "")
    own = printed(text + done.stdout + done.stderr, began)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {"own": own, "report": report, "wall_s": time.time() - began}


def by_key(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {region["key"]: region for region in report["scopes"][-1]["regions"]}


def steady(own: dict[str, Any], regions: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What the program says its regions take once it is warm: milliseconds, by key."""
    if "steady_ms" in own:
        return {own["keys"][name]: ms for name, ms in own["steady_ms"].items()}
    timings = {key.replace("LLM@", ""): region["timing"] for key, region in regions.items()}
    found = {**own, "regions": timings}
    return {f"LLM@{key}": own_median(found, name) for name, key in own["keys"].items()}


def own_rates(own: dict[str, Any], regions: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Tokens per second of whole stages, by key: tokens over all the time of the instances that are steady."""
    rates: float | dict[str, float] = own["tokens_per_second"]
    if isinstance(rates, dict):
        return rates
    if DECODE not in regions:
        return {}
    times = own["milliseconds"]["decode"][regions[DECODE]["timing"]["warmup"]["instances"] :]
    steps = len(own["milliseconds"]["decode_step"]) / len(own["milliseconds"]["decode"])
    return {DECODE: 1e3 * steps / statistics.mean(times or own["milliseconds"]["decode"])}


def truth(what: str, ok: bool) -> dict[str, Any]:
    """Something that is right or is not."""
    return {"what": what, "true": None, "said": None, "off": None, "limit": None, "unit": "", "ok": ok}


def compare(found: dict[str, Any], measured: bool, tiny: bool) -> list[dict[str, Any]]:
    own, report = found["own"], found["report"]
    regions, answer = by_key(report), report["answer"]
    checks = []
    for key, ms in steady(own, regions).items():
        timing = regions[key]["timing"] if key in regions else None
        said = timing["steady"]["median_ns"] if timing else None
        # Microseconds, and what a profiler disturbs, are told only.
        limit = None if tiny or ms < 1 else LIMITS["region"] if measured else LIMITS["profiled"]
        checks.append(check(f"steady median of {key}", ms, None if said is None else said / 1e6, limit, "ms"))
        if timing is not None and measured:
            checks.append(truth(f"times of {key} are undisturbed", timing["source"] == "undisturbed"))
    for key, rate in own_rates(own, regions).items():
        tokens = ((regions.get(key) or {}).get("performance") or {}).get("tokens")
        limit = LIMITS["tokens"] if measured and not tiny else None
        checks.append(check(f"tokens per second of {key}", rate, tokens and tokens["now"]["value"], limit, "1/s"))
    for key, wanted in (own.get("warmup") or {}).items() if "steady_ms" in own else ():
        warmup = regions[key]["timing"]["warmup"]
        told = f"warm-up of {key}: {warmup['instances']} instances, {warmup['why']}"
        checks.append(truth(told, tiny or (warmup["instances"] >= 1 and warmup["why"] in wanted)))
    checks.append(truth(f"the answer is about a stage of the program: {answer['stage']}", answer["stage"] in regions))
    return checks + ([] if tiny else compare_verdicts(report, regions, answer))


def compare_verdicts(
    report: dict[str, Any], regions: dict[str, dict[str, Any]], answer: dict[str, Any]
) -> list[dict[str, Any]]:
    checks = []
    for key in report["stages"]:
        performance = regions[key]["performance"]
        wall, busy = (performance["time"][name] if performance else None for name in ("wall", "busy"))
        if not wall or not busy or not wall["value"]:
            continue
        share, bound = busy["value"] / wall["value"], performance["verdict"]["bound"]
        said = f"{key}: the GPU works {100 * share:.0f} % of the time; verdict: {bound}"
        checks.append(truth(said, share < WORKS or bound not in HOST))
    each = [
        {**fix, **there} for fix in answer["fixes"] for there in ({}, *fix.get("also", ()))
    ]  # one cause, several stages
    for fix in (fix for fix in each if fix["stage"] in regions):
        median = regions[fix["stage"]]["timing"]["steady"]["median_ns"]
        said = f"{fix['rule']} promises {fix['gain_ns'] / 1e6:.3g} ms of a steady {median / 1e6:.3g} ms"
        checks.append(truth(said, fix["gain_ns"] <= 1.02 * median))
    return checks


def part(name: str, tiny: bool) -> dict[str, Any]:
    what, words, also_unmeasured = PARTS[name]
    facts: dict[str, Any] = {"what": what, "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    checks: list[dict[str, Any]] = []
    facts |= {"checks": checks, "answers": [], "diagnostics": [], "seconds": []}
    with tempfile.TemporaryDirectory() as folder:
        ways = [True] if name == "twenty" or tiny or not also_unmeasured else [True, False]
        for measured in ways:
            verb, options = "measure", ["--annotate", "stages"] if Path(words[0]) == GENERATING else []
            if name == "twenty":
                options = ["--runs", str(2 if tiny else RUNS)]
            elif not tiny:
                # Of a program that was not measured first, what it says of itself comes at its end under nsys.
                verb, options = "profile", [*options, "--no-counters"]
                options += [] if measured else ["--no-measure", "--run-to-end"]
            found = llm_perf(verb, options, words, tiny, Path(folder) / str(measured))
            answer = found["report"]["answer"]
            new = compare_runs(found["report"], tiny) if name == "twenty" else compare(found, measured, tiny)
            how = "" if measured else " (not measured first)"
            checks += [{**one, "what": one["what"] + how} for one in new]
            facts["answers"].append({"measured": measured, **{k: answer[k] for k in ("where", "why", "do_first")}})
            facts["diagnostics"] += [f"{d['code']}: {d['message']}{how}" for d in found["report"]["diagnostics"]]
            facts["seconds"].append(found["wall_s"])
            facts |= {"where": found["own"]["where"], "torch": found["own"]["torch"]}
    return facts


def compare_runs(report: dict[str, Any], tiny: bool) -> list[dict[str, Any]]:
    """How far the steady medians of the runs of each region are apart."""
    told = [d["message"] for d in report["diagnostics"] if d["code"] == "RUNS_DIFFER"]
    checks = []
    for key, region in by_key(report).items():
        medians = region["timing"]["run_medians_ns"]
        spread = (max(medians) - min(medians)) / sorted(medians)[len(medians) // 2]
        close = spread <= LIMITS["runs"]
        ok = close or bool(told) or tiny
        said = f"medians of {key} in {len(medians)} runs are apart by {100 * spread:.1f} %"
        checks.append(truth(said + ("" if close else f"; the report says: {' '.join(told) or 'nothing'}"), ok))
    return checks


def page(results: dict[str, Any]) -> str:
    """The result for people."""
    lines = ["# Answers about programs with warm-up, beside what the programs say of themselves", ""]
    lines += ["`python benchmarks/true_answers.py`. `off`: what was found over what is true, less one.", ""]
    for name, found in results["parts"].items():
        lines += [f"## {name}: {found.get('what', '')}", ""]
        if "failed" in found:
            lines += [f"Failed ({found['commit']}): {found['failed']}", ""]
            continue
        took = ", ".join(f"{seconds:.0f} s" for seconds in found["seconds"])
        lines += [f"{found['where']}, torch {found['torch']}, commit {found['commit']}, {found['date']}; {took}.", ""]
        for answer in found["answers"]:
            said = " ".join(answer[line] for line in ("where", "why", "do_first"))
            lines += [f"> {'' if answer['measured'] else '(not measured first) '}{said}", ""]
        lines += ["| what | true | found | off | limit | |", "|---|---|---|---|---|---|"]
        lines += [row(check) for check in found["checks"]]
        lines += ["", *(f"- {text}" for text in found["diagnostics"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    return run_parts(__doc__ or "", "true-answers-h200", PARTS, part, page)


if __name__ == "__main__":
    sys.exit(main())
