"""A hundred secrets in twenty spellings: how many of them are in what a run writes, and in a copy to share.

    python benchmarks/safe_hands_secrets.py          results/safe-hands-secrets.json and .md
    python benchmarks/safe_hands_secrets.py --seed 7 other secrets

The program has them in its command line and its environment, and prints all of them, also in base64, hexadecimal and
UTF-16. It is profiled with stand-ins for nsys and ncu (tests/fake_tools.py), reported on, exported and scrubbed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import fake_tools  # noqa: E402
from planted_secrets import PROGRAM, SPELLINGS, left_in, planted, secrets  # noqa: E402
from provenance import commit  # noqa: E402

RESULTS = HERE / "results"
_LLM_PERF = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]


def measure(seed: int, folder: Path) -> dict[str, Any]:
    found = secrets(seed)
    words, variables = planted(found)
    desk = folder / "desk"
    desk.mkdir()
    (desk / "program.py").write_text(PROGRAM)
    environment = {**os.environ, **variables, **fake_tools.write(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    chosen = ["--include", "decode*", "--sample", "first"]
    commands = [
        ["profile", *chosen, "--out", "run", "--", sys.executable, "program.py", "--steps", "16", *words],
        ["report", "run"],
        ["export", "run", "--csv", "tables"],
        ["scrub", "run", "--out", "shared"],
    ]
    for command in commands:
        subprocess.run([*_LLM_PERF, *command], cwd=desk, env=environment, check=True, capture_output=True)
    places = {"run": desk / "run", "tables": desk / "tables", "copy to share": desk / "shared"}
    left = {name: list(left_in(place, found, encoded=name == "copy to share")) for name, place in places.items()}
    printed = (desk / "run/workload.log").read_text(errors="replace")
    if printed.count("encoded:") < len(words) or not (desk / "shared/report.json").exists():
        raise SystemExit("The program did not print what was planted, or there is no copy: nothing is shown by this.")
    by_spelling = Counter(spelling for some in left.values() for _, spelling, _ in some)
    return {
        "command": f"python benchmarks/safe_hands_secrets.py --seed {seed}",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "python": platform.python_version(),
        "seed": seed,
        "secrets": sum(map(len, found.values())),
        "spellings": {spelling: by_spelling[spelling] for spelling in SPELLINGS},
        "files": {name: sum(p.is_file() for p in place.rglob("*")) for name, place in places.items()},
        "left": {name: len({secret for _, _, secret in some}) for name, some in left.items()},
        "where": sorted({f"{name}/{file}" for name, some in left.items() for file, _, _ in some}),
    }


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "# Secrets in what a run writes",
        "",
        f"Written by `{result['command']}` on {result['date']} (Python {result['python']}, commit {result['commit'][:12]}).",
        "",
        f"{result['secrets']} secrets in {len(result['spellings'])} spellings, in the command line and the environment of a program"
        " that prints all of them, also encoded. nsys and ncu are stand-ins that replay real recordings.",
        "",
        "| where | files | secrets left |",
        "|---|---:|---:|",
        *(f"| {name} | {result['files'][name]} | {count} |" for name, count in result["left"].items()),
        "",
        "Spellings: " + ", ".join(f"`{spelling}`" for spelling in result["spellings"]) + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=18)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.seed, Path(folder))
    (RESULTS / "safe-hands-secrets.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "safe-hands-secrets.md").write_text(markdown(result))
    print(markdown(result))
    return int(any(result["left"].values()))


if __name__ == "__main__":
    sys.exit(main())
