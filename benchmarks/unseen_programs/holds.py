"""Which of the planted faults took on this machine: measured gains beside what was expected beforehand.

python holds.py DIR      (DIR holds times.json)
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any


def says(truth: dict[str, Any], times: dict[str, Any]) -> str:
    if "timing_error" in times or "step_ms" not in times:
        return "left out: no time"
    step, mended = times["step_ms"], times.get("mended", {}).get("step_ms")
    planted = ", ".join(
        f"{name} {times.get('planted_ms', {}).get(name, 0):.1f} ms" for name in truth.get("planted", [])
    )
    text = f"step {step:8.2f} ms"
    if mended is None:
        return f"{text}  {'FAILED: ' + str(times['mended']) if 'mended' in times else 'nothing mended'}"
    gain = (step - mended) / step
    noise = abs(times.get("step_ms_again", step) - step) / step
    low, high = truth["gain"]
    if gain < truth.get("holds", -1):
        # Also where noise hides it: what cannot be measured cannot be the truth.
        verdict = "LEFT OUT: the plant did not take"
    elif not low <= gain <= high:
        verdict = f"counts; expected {low:.0%} to {high:.0%}"
    else:
        verdict = "as expected"
    return f"{text}  mended {mended:8.2f} ms  gain {gain:4.0%} (noise {noise:.0%})  {verdict}  {planted}".rstrip()


def main() -> None:
    truth = tomllib.loads((Path(__file__).parent / "truth.toml").read_text())
    times = json.loads((Path(sys.argv[1]) / "times.json").read_text())
    if times["tiny"]:
        print("Small sizes on a CPU: these gains say nothing about the plants.")
    for name, expected in truth.items():
        print(f"{name:22} {expected['kind']:8} {says(expected, times['programs'].get(name, {}))}")


if __name__ == "__main__":
    main()
