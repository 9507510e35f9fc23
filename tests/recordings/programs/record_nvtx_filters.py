"""Ask the real ncu which results every NVTX expression of tests/test_patterns.py matches, and write it down.

    LLM_PERF_NCU=/path/to/ncu python tests/recordings/programs/record_nvtx_filters.py

writes tests/recordings/ncu-<version>-nvtx-filter-transcript.json: report -> expression -> ids of results,
or null where ncu refuses the expression.
"""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from conftest import RECORDINGS, installed, plain_bytes, recording  # noqa: E402


def matching_results(ncu: str, report: Path, expression: str) -> list[int] | None:
    """Ids of the results that ncu lists for one `--nvtx-include`; None where it refuses the expression."""
    argv = [ncu, "--import", str(report), "--page", "raw", "--csv", "--nvtx-include", expression]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if "Invalid configuration for nvtx-include" in done.stdout + done.stderr:
        return None
    if done.returncode or "==ERROR==" in done.stdout + done.stderr:
        raise RuntimeError(f"ncu failed on {expression!r}: {done.stdout[-300:]}{done.stderr[-300:]}")
    # A line break in a range name breaks a row in two: only its beginning counts. Column two is a process id.
    return sorted(int(number) for number in re.findall(r'^"(\d+)","\d+",', done.stdout, re.MULTILINE))


def main() -> None:
    from test_patterns import expressions_by_report

    ncu = installed("ncu")
    if ncu is None:
        raise SystemExit("No ncu: set LLM_PERF_NCU or put it on PATH.")
    told = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"Version (\d+\.\d+\.\d+)", told)[1]
    transcript = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        for name, expressions in expressions_by_report().items():
            report = Path(folder) / f"{name}.ncu-rep"
            report.write_bytes(plain_bytes(recording(f"ncu-*-{name}.ncu-rep")))
            found = pool.map(lambda e, report=report: matching_results(ncu, report, e), expressions)
            transcript[name] = dict(zip(expressions, found, strict=True))
    target = RECORDINGS / f"ncu-{version}-nvtx-filter-transcript.json"
    with target.open("w", encoding="utf-8") as file:
        json.dump(transcript, file, ensure_ascii=True, indent=0, sort_keys=True)
        file.write("\n")
    print(target.name, {name: len(found) for name, found in transcript.items()})


if __name__ == "__main__":
    main()
