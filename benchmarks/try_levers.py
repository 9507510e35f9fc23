"""What `llm-perf try` predicts, measures and refuses, for programs of different kinds.

    python benchmarks/try_levers.py [--only TEXT] [--runs N] [--budget TIME] [--out DIR]

Each program of `benchmarks/programs/tried.py` is tried as it is, then with the levers of `benchmarks/broken_levers`,
which break its results on purpose. Good is: prediction within a factor of 1.5 of the measured gain for 80 % of the levers
that won, every broken lever refused, and a factor of 3 for a plain `generate()`.
Results go to benchmarks/results/try-levers-h200.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
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


def row_of(kind: str, runs: int, budget: str) -> dict[str, Any]:
    limits = ["--runs", str(runs), *(["--budget", budget] if budget else [])]
    found = try_program(kind, *limits)
    broken = try_program(kind, "--runs", "1", "--levers", ",".join(map(str, BROKEN)))
    fields = (
        "name",
        "verdict",
        "reason",
        "evidence",
        "gain",
        "interval",
        "predicted_gain",
        "outputs",
        "outputs_detail",
    )
    tried = [*found["levers"], *([found["together"]] if found["together"] else [])]
    return {
        "program": kind,
        "error": found.get("error", ""),
        "best": found["best"],
        "levers": [{name: lever[name] for name in (*fields, "warmup_s", "pays_off_after")} for lever in tried],
        "broken": [{name: lever[name] for name in ("name", "verdict", "reason")} for lever in broken["levers"]],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    told = [lever for row in rows for lever in row["levers"] if lever["gain"] and lever["predicted_gain"]]
    near = [
        one for one in told if max(one["gain"] / one["predicted_gain"], one["predicted_gain"] / one["gain"]) <= FACTOR
    ]
    broken = [lever for row in rows for lever in row["broken"] if lever["verdict"] not in ("not applied", "failed")]
    return {
        "programs": len(rows),
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
        f"{total['predictions_within_factor']} of {total['predicted']} predictions are within a factor of {FACTOR}; "
        f"{total['broken_levers_refused']} of {total['broken_levers']} levers that break the results are refused.",
        "",
        "| program | lever | verdict | predicted | measured | outputs |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in result["rows"]:
        for lever in row["levers"]:
            numbers = [f"{lever[name]:.2f}×" if lever[name] else "–" for name in ("predicted_gain", "gain")]
            lines.append(
                f"| {row['program']} | {lever['name']} | {lever['verdict']} | {' | '.join(numbers)} | {lever['outputs']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--budget", default="")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    import torch

    rows = []
    for kind in KINDS:
        if given.only in kind:
            rows.append(row_of(kind, given.runs, given.budget))
            print(json.dumps(rows[-1]), flush=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    result = {"commit": commit(), "gpu": gpu, "summary": summary(rows), "rows": rows}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{RESULT}.json").write_text(json.dumps(result, indent=1) + "\n")
    (given.out / f"{RESULT}.md").write_text(markdown(result))
    print(json.dumps(result["summary"]))


if __name__ == "__main__":
    main()
