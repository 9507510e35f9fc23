"""How good are counters extrapolated from a few launches? Beside ncu's own measurement of the whole region.

One program was recorded three times on an H200 (tests/recordings/README.md has the commands): its timeline, the
first three launches of every signature inside prefill and decode with kernel replay, and the two regions as a
whole with range replay. The first two are joined, the third is the truth. Results go to benchmarks/results.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.metrics.groups import groups_for
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.model import NCUProfileRegion
from llm_perf_opt.version import __version__
from provenance import commit

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent / "tests" / "recordings"
TIMELINE = "nsys-2025.3.1-h200-decoder-8layers-warm.sqlite.xz"
SAMPLES = "ncu-2025.3.1-h200-decoder-8layers-warm-per-launch-config.ncu-rep.xz"
TRUTH = "ncu-2025.3.1-h200-decoder-8layers-warm-app-range.ncu-rep.xz"
_H200, _ = groups_for("9.0")
_WORK, _TRAFFIC = ("tensor_ops",), ("dram_read", "dram_write", "l2")
_COLLECTED = _H200.of_level("roofline", ["bf16"])
COUNTERS = {c.name: "tensor operations" for c in _COLLECTED if c.role in _WORK}
COUNTERS |= {c.name: c.title for c in _COLLECTED if c.role in _TRAFFIC}


def regions(*names: str) -> dict[str, NCUProfileRegion]:
    recordings = [read_recording(RECORDINGS / name, launch_config=True) for name in names]
    report = build_report(recordings, ReportOptions())
    return {region.key: region for region in report.scope("aggregate").regions}


def compare() -> list[dict[str, object]]:
    estimated, measured = regions(TIMELINE, SAMPLES), regions(TRUTH)
    rows = []
    for key in ("LLM@prefill", "LLM@decode"):
        for metric, title in COUNTERS.items():
            estimate = estimated[key].inclusive.metrics[metric]
            truth = measured[key].inclusive.metrics[metric]
            rows.append(
                {
                    "region": key,
                    "counter": title,
                    "metric": metric,
                    "estimate": estimate.value,
                    "truth": truth.value,
                    "ratio": estimate.value / truth.value,
                    "samples": estimate.samples,
                    "launches": estimate.launches,
                    "coverage": estimate.coverage,
                    "spread": estimate.spread,
                }
            )
    return rows


def main() -> None:
    rows = compare()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {
        "command": "python benchmarks/join_accuracy.py",
        "date": today,
        "commit": commit(),
        "llm_perf_opt": __version__,
        "gpu": "NVIDIA H200",
        "tools": "nsys and ncu of Nsight Compute 2025.3.1, torch 2.11, driver 580",
        "recordings": [TIMELINE, SAMPLES, TRUTH],
        "rows": rows,
    }
    (HERE / "results" / "join-accuracy.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    lines = [
        "# Extrapolated counters against range replay",
        "",
        f"`{facts['command']}`, {today}, {facts['gpu']}, {facts['tools']}. Decoder of 1.0 billion parameters, 8 layers,",
        "prompt 2048, 8 decode steps, bf16, eager; caches and clocks left alone. Estimate: timeline joined with kernel",
        "replay of the first three launches of each signature. Truth: app-range replay of the same program.",
        "",
        "| region | counter | estimate / truth | from | spread |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        spread = "–" if row["spread"] is None else f"± {100 * float(str(row['spread'])):.1f} %"
        lines.append(
            f"| `{row['region']}` | {row['counter']} | {row['ratio']:.3f} | "
            f"{row['samples']} of {row['launches']} launches | {spread} |"
        )
    text = "\n".join(lines) + "\n"
    (HERE / "results" / "join-accuracy.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
