"""Benchmarks of several parts: results are written after each, and parts measured by an earlier call stay in the file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from provenance import commit

RESULTS = Path(__file__).resolve().parent / "results"
Results = dict[str, Any]


def run_parts(
    about: str, name: str, parts: Iterable[str], measure: Callable[[str, bool], Results], page: Callable[[Results], str]
) -> int:
    """The command line of such a benchmark; its exit code is 1 where a check missed its limit or a part failed.

    `measure`: one part, as it is or in sizes for a CPU. `page`: results for people.
    """
    known = list(parts)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=str(RESULTS / name), help="result, without its ending")
    parser.add_argument("--only", default="", help=f"parts, separated by commas: {', '.join(known)}")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU: limits are told, not meant")
    options = parser.parse_args()
    chosen = [one for one in options.only.split(",") if one] or known
    if unknown := [one for one in chosen if one not in known]:
        parser.error(f"unknown parts: {', '.join(unknown)}; they are {', '.join(known)}")
    file = Path(options.out).with_suffix(".json")
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"parts": {}}
    for one in chosen:
        began = time.monotonic()
        try:
            results["parts"][one] = measure(one, options.tiny)
        except Exception as error:  # whatever it is, the other parts go on
            results["parts"][one] = {"failed": f"{type(error).__name__}: {error}"[:2000], "commit": commit()}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(page(results), encoding="utf-8")
        print(page({"parts": {one: results["parts"][one]}}), flush=True)
        print(f"({one}: {time.monotonic() - began:.0f} s)\n", flush=True)
    found = [results["parts"][one] for one in chosen]
    missed = [check["what"] for part in found for check in part.get("checks", ()) if not check["ok"]]
    failed = [one for one in chosen if "failed" in results["parts"][one]]
    print(f"{len(missed)} missed, {len(failed)} parts failed. {file.with_suffix('.md')} has it all.")
    return int(bool(missed or failed))
