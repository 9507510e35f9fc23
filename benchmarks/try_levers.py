"""What `llm-perf try` predicts, measures and refuses, for programs of different kinds.

    python benchmarks/try_levers.py [--only generate_warm:levers,moe:broken,…] [--runs N] [--budget SECONDS] [--out DIR]
    python benchmarks/try_levers.py --within 540 --out DIR     # parts that are not measured yet, as many as end in time

Each program of `benchmarks/programs/tried.py` is tried as it is (part `levers`, one by one, for it is timed), and with
the levers of `benchmarks/broken_levers`, which break its results on purpose (part `broken`, several at once, for nothing
is timed). `--only` takes some parts, of one kind or all. What earlier calls found stays in the result file of DIR, or is
taken from benchmarks/results; with `--within`, parts that were measured with this very commit are not measured again,
and those that were never measured come first, so that the same call two times measures all of them: twelve programs
take about 1,050 s on an H200. What is not done when the time is over is interrupted, and what it found by then counts.
Where there is only a copy of the tree, LLM_PERF_COMMIT says which it is, the same in both calls.
Good is: prediction within a factor of 1.5 of the measured gain for 80 % of the levers that won, every broken lever
refused, and a factor of 3 for a plain `generate()`. Results go to DIR/try-levers-h200.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "src")]
from provenance import commit  # noqa: E402

PROGRAM = ROOT / "benchmarks" / "programs" / "tried.py"
BROKEN = sorted((ROOT / "benchmarks" / "broken_levers").glob("*.py"))
KINDS = (
    *("generate_cold", "generate_warm", "decode_loop", "compiled", "train", "train_checkpointed", "moe"),
    *("vision_language", "fp32", "unaligned", "data_bound", "synchronising"),
)
RESULT = "try-levers-h200"
FACTOR = 1.5
NO_EFFECT = ("not applied", "failed")
FIELDS = (
    *("name", "verdict", "reason", "evidence", "launches", "stage", "before", "after", "gain", "interval"),
    *("predicted_gain", "outputs", "outputs_detail", "warmup_s", "pays_off_after", "runs"),
)
_PATIENCE_S = 240.0  # for one part, however much time there is: others are to be measured, too
_TOGETHER = 12  # programs whose results are broken at the same time
_USUAL_S = {"levers": 80.0, "broken": 100.0}  # of one program on an H200, for a start
_AFTER_S = 20.0  # an interrupted trial writes what it knows
_BEGAN = time.monotonic()
RESULTS = ROOT / "benchmarks" / "results"


def try_program(kind: str, *options: str, patience_s: float) -> dict[str, Any]:
    """What `try.json` says, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        code = "import sys; from llm_perf_opt.cli.main import main; sys.exit(main(sys.argv[1:]))"
        words = ["try", "--quiet", "--out", str(out), *options, "--", sys.executable, str(PROGRAM), kind]
        argv = [sys.executable, "-c", code, *words]
        log = Path(folder) / "log"
        with log.open("w") as written:
            begun = subprocess.Popen(argv, stdout=written, stderr=written, cwd=folder, start_new_session=True)
            stopped = end_in_time(begun, patience_s)
        try:
            found = dict(json.loads((out / "try.json").read_text()))
        except (OSError, ValueError):
            found = {"error": stopped or log.read_text()[-2000:], "levers": [], "best": None, "together": None}
        return {**found, "stopped": stopped}


def end_in_time(begun: subprocess.Popen[Any], patience_s: float) -> str:
    """Interrupt a trial that takes too long: it ends its program, and writes what it knows. Why it was, or nothing."""
    try:
        begun.wait(max(patience_s - _AFTER_S, 1.0))
        return ""
    except subprocess.TimeoutExpired:
        begun.send_signal(signal.SIGTERM)
    try:
        begun.wait(_AFTER_S)
    except subprocess.TimeoutExpired:
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
    return f"it was stopped after {patience_s:.0f} s"


def tried_levers(kind: str, runs: int, budget_s: float, patience_s: float = _PATIENCE_S) -> dict[str, Any]:
    """What the one command finds."""
    began = time.monotonic()
    found = try_program(kind, "--runs", str(runs), "--budget", f"{budget_s:.0f}s", patience_s=patience_s)
    tried = [*found["levers"], *([found["together"]] if found["together"] else [])]
    return {
        "error": found.get("error", "") or ("" if any(lever["runs"] for lever in tried) else found["stopped"]),
        "stopped": found["stopped"],
        "best": found["best"],
        "sentences": found.get("sentences", []),
        "took_s": round(time.monotonic() - began, 1),
        "levers": [{name: lever[name] for name in FIELDS} for lever in tried],
    }


def tried_broken(kind: str, patience_s: float = _PATIENCE_S) -> dict[str, Any]:
    """What it says of levers that break the results."""
    found = try_program(kind, "--runs", "1", "--levers", ",".join(map(str, BROKEN)), patience_s=patience_s)
    names = ("name", "verdict", "reason", "evidence", "difference", "tolerance")
    return {
        "broken_error": found.get("error", "") or found["stopped"],
        "broken": [{name: lever[name] for name in names} for lever in found["levers"]],
    }


def parts_of(only: str) -> list[tuple[str, str]]:
    """Kind and part, as `--only` names them: what breaks programs first, for it is quick; raises ValueError."""
    found = []
    for word in only.split(",") if only else KINDS:
        kind, _, part = word.partition(":")
        if kind not in KINDS or part not in ("", *_USUAL_S):
            raise ValueError(f"there is no part {word}; programs: {', '.join(KINDS)}")
        found += [(kind, one) for one in ([part] if part else _USUAL_S)]
    return sorted(found, key=lambda one: one[1])


def missing(parts: Sequence[tuple[str, str]], rows: dict[str, dict[str, Any]], now: str) -> list[tuple[str, str]]:
    """Those that were not measured with this commit, or failed; those first that were not tried yet."""
    found = [
        (kind, part)
        for kind, part in parts
        if rows.get(kind, {}).get(f"{part}_commit") != now or rows[kind].get(_ERRORS[part])
    ]
    return sorted(found, key=lambda one: (one[1], f"{one[1]}_commit" in rows.get(one[0], {})))


_ERRORS = {"levers": "error", "broken": "broken_error"}


def measured(
    parts: Sequence[tuple[str, str]], runs: int, budget_s: float, within_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is found of each part, as long as time is left for another one."""
    ends = _BEGAN + within_s

    def patience_s() -> float:  # what hangs is to leave the results of the others
        return min(_PATIENCE_S, ends - time.monotonic())

    broken = [kind for kind, part in parts if part == "broken"]
    while broken and time.monotonic() + _USUAL_S["broken"] <= ends:
        now, broken = broken[:_TOGETHER], broken[_TOGETHER:]
        with ThreadPoolExecutor(_TOGETHER) as pool:
            going = {pool.submit(tried_broken, kind, patience_s()): kind for kind in now}
            for done in as_completed(going):
                yield going[done], done.result()
    took = [_USUAL_S["levers"]]
    kinds = [kind for kind, part in parts if part == "levers"]
    for number, kind in enumerate(kinds):
        usual = sum(took) / len(took)
        share = (ends - time.monotonic()) / (
            len(kinds) - number
        ) - _AFTER_S  # levers that compile need more, if it is there
        if time.monotonic() + usual > ends:
            print(f"{kind}: no time left for the {usual:.0f} s that a program takes", flush=True)
            break
        found = tried_levers(kind, runs, min(max(budget_s, share), _PATIENCE_S / 2), patience_s())
        took.append(found["took_s"])
        yield kind, found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    rows, of_all = [row for row in rows if "levers" in row], rows
    tried = [lever for row in rows for lever in row["levers"]]
    told = [lever for lever in tried if lever["verdict"] == "better" and lever["gain"] and lever["predicted_gain"]]
    near = [
        one for one in told if max(one["gain"] / one["predicted_gain"], one["predicted_gain"] / one["gain"]) <= FACTOR
    ]
    broken = [lever for row in of_all for lever in row.get("broken", ()) if lever["verdict"] not in NO_EFFECT]
    won = [row for row in rows if row.get("best")]
    return {
        "programs": len(rows),
        "programs_made_faster": len(won),
        "outputs_agree": sum(one["outputs"] in ("same", "within noise") for one in tried if one["verdict"] == "better"),
        "levers_that_won": sum(one["verdict"] == "better" for one in tried),
        "predicted": len(told),
        "predictions_within_factor": len(near),
        "broken_levers": len(broken),
        "broken_levers_refused": sum(lever["verdict"] == "refused" for lever in broken),
    }


def markdown(result: dict[str, Any]) -> str:
    total = result["summary"]
    lines = [
        f"# What `llm-perf try` finds ({result['gpu']}, commit {result['commit']})",
        "",
        f"{total['programs_made_faster']} of {total['programs']} programs are made faster by one command; "
        f"{total['predictions_within_factor']} of {total['predicted']} predictions are within a factor of {FACTOR}; "
        f"{total['broken_levers_refused']} of {total['broken_levers']} levers that break the results are refused.",
        "",
        "| program | lever | verdict | predicted | measured | outputs |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in result["rows"]:
        for lever in row.get("levers", ()):
            numbers = [f"{lever[name]:.2f}×" if lever[name] else "–" for name in ("predicted_gain", "gain")]
            lines.append(
                f"| {row['program']} | {lever['name']} | {lever['verdict']} | {' | '.join(numbers)} | {lever['outputs']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts, with commas: KIND, KIND:levers, KIND:broken")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument(
        "--budget", type=float, default=70.0, help="seconds for each program, or more where there is time"
    )
    parser.add_argument("--within", type=float, help="seconds: parts that are not measured yet, as many as end in them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    file, rows, now = given.out / f"{RESULT}.json", {}, commit()
    for known in (file, RESULTS / file.name):
        if known.exists() and (earlier := json.loads(known.read_text()))["gpu"] == gpu:
            rows = {row["program"]: row for row in earlier["rows"]}
            break
    try:
        parts = parts_of(given.only)
    except ValueError as error:
        parser.error(str(error))
    if given.within is not None:
        parts = missing(parts, rows, now)
    given.out.mkdir(parents=True, exist_ok=True)
    for kind, found in measured(parts, given.runs, given.budget, given.within or math.inf):
        part = "levers" if "levers" in found else "broken"
        row = rows.setdefault(kind, {"program": kind})
        row |= {**found, "commit": now, f"{part}_commit": now}
        print(json.dumps(row), flush=True)
        known_rows = [rows[name] for name in KINDS if name in rows]
        result = {"commit": now, "gpu": gpu, "summary": summary(known_rows), "rows": known_rows}
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(markdown(result))
    left = missing(parts, rows, now)
    print(json.dumps(summary([rows[name] for name in KINDS if name in rows])))
    print(f"not measured yet: {', '.join(f'{kind}:{part}' for kind, part in left) or 'nothing'}")


if __name__ == "__main__":
    main()
