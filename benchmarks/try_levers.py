"""What `llm-perf try` predicts, measures and refuses, for programs of different kinds.

    python benchmarks/try_levers.py [--only generate_warm:levers,moe:broken,…] [--runs N] [--budget TIME] [--out DIR]

Each program of `benchmarks/programs/tried.py` is tried as it is (part `levers`), then with the levers of
`benchmarks/broken_levers`, which break its results on purpose (part `broken`). `--only` takes some parts, of one kind
or all; what earlier calls found stays in the result file, so that it can be filled in pieces: with `--runs 2 --budget 75s`
a part takes less than 100 s on an H200.
Good is: prediction within a factor of 1.5 of the measured gain for 80 % of the levers that won, every broken lever
refused, and a factor of 3 for a plain `generate()`. Results go to benchmarks/results/try-levers-h200.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
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
_PATIENCE_S = 3600


def try_program(kind: str, *options: str) -> dict[str, Any]:
    """What `try.json` says, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        code = "import sys; from llm_perf_opt.cli.main import main; sys.exit(main(sys.argv[1:]))"
        words = ["try", "--quiet", "--out", str(out), *options, "--", sys.executable, str(PROGRAM), kind]
        argv = [sys.executable, "-c", code, *words]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE_S, cwd=folder)
        try:
            return dict(json.loads((out / "try.json").read_text()))
        except (OSError, ValueError):
            return {"error": (ended.stderr or ended.stdout)[-2000:], "levers": [], "best": None, "together": None}


def tried_levers(kind: str, runs: int, budget: str) -> dict[str, Any]:
    """What the one command finds."""
    began = time.monotonic()
    found = try_program(kind, "--runs", str(runs), *(["--budget", budget] if budget else []))
    tried = [*found["levers"], *([found["together"]] if found["together"] else [])]
    return {
        "error": found.get("error", ""),
        "best": found["best"],
        "sentences": found.get("sentences", []),
        "took_s": round(time.monotonic() - began, 1),
        "levers": [{name: lever[name] for name in FIELDS} for lever in tried],
    }


def tried_broken(kind: str) -> dict[str, Any]:
    """What it says of levers that break the results."""
    found = try_program(kind, "--runs", "1", "--levers", ",".join(map(str, BROKEN)))
    names = ("name", "verdict", "reason", "evidence", "difference", "tolerance")
    return {
        "broken_error": found.get("error", ""),
        "broken": [{name: lever[name] for name in names} for lever in found["levers"]],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    tried = [lever for row in rows for lever in row.get("levers", ())]
    told = [lever for lever in tried if lever["verdict"] == "better" and lever["gain"] and lever["predicted_gain"]]
    near = [
        one for one in told if max(one["gain"] / one["predicted_gain"], one["predicted_gain"] / one["gain"]) <= FACTOR
    ]
    broken = [lever for row in rows for lever in row.get("broken", ()) if lever["verdict"] not in NO_EFFECT]
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
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--budget", default="")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    file = given.out / f"{RESULT}.json"
    rows: dict[str, dict[str, Any]] = {}
    if file.exists():
        earlier = json.loads(file.read_text())
        rows = {row["program"]: row for row in earlier["rows"]} if earlier["gpu"] == gpu else {}
    wanted = given.only.split(",") if given.only else list(KINDS)
    given.out.mkdir(parents=True, exist_ok=True)
    for word in wanted:
        kind, _, part = word.partition(":")
        if kind not in KINDS or part not in ("", "levers", "broken"):
            parser.error(f"there is no part {word}; programs: {', '.join(KINDS)}")
        row = rows.setdefault(kind, {"program": kind})
        row["commit"] = commit()
        if part != "broken":
            row |= tried_levers(kind, given.runs, given.budget)
        if part != "levers":
            row |= tried_broken(kind)
        print(json.dumps(row), flush=True)
        known = [rows[name] for name in KINDS if name in rows]
        result = {"commit": commit(), "gpu": gpu, "summary": summary(known), "rows": known}
        file.write_text(json.dumps(result, indent=1) + "\n")
        (given.out / f"{RESULT}.md").write_text(markdown(result))
    print(json.dumps(result["summary"]))


if __name__ == "__main__":
    main()
