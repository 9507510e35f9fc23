"""Real models through the whole pipeline on this machine's GPU: stage timings, timeline, counters, and FLOPs compared.

    python benchmarks/models.py --out benchmarks/results/models-h200
    python benchmarks/models.py --out benchmarks/results/models-h200 --only decoder

Each model goes through `deep_profile_runner`: stage 1 without a profiler, then nsys, then ncu. For every stage the
FLOPs by formula, by torch's counter and by the counters of the tensor cores are set side by side. Results are
written after each model; one measured by an earlier call stays in the file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import llm_perf_opt
from llm_perf_opt.metrics.quantity import Quantity
from llm_perf_opt.regions.model import NCUProfileRegionReport
from llm_perf_opt.rundir.directory import gpu_facts
from provenance import commit

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = "datasets/omnidocbench/subsets/dev-3.txt"
RUNNER = ["python", "-m", "llm_perf_opt.runners.deep_profile_runner"]
MODELS = {
    "decoder": ["model=hf_causal_lm", "infer.prompt_tokens=2048", "infer.max_new_tokens=17"],
    "ocr": ["model=deepseek_ocr", f"dataset.subset_filelist={PAGES}", "infer.max_new_tokens=17"],
}


def measure(name: str, folder: Path, limit: float) -> dict[str, Any]:
    """One model, from the command to the figures of its run."""
    run = folder / name
    command = [*RUNNER, *MODELS[name], f"hydra.run.dir={run}"]
    argv = [sys.executable if word == "python" else word for word in command]
    started = time.monotonic()
    with (folder / f"{name}.log").open("w+b") as log:
        code = subprocess.run(
            ["timeout", "-s", "INT", str(limit), *argv], cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT
        ).returncode
    found: dict[str, Any] = {
        "command": shlex.join(command[:-1]),
        "exit_code": code,
        "seconds": round(time.monotonic() - started, 1),
    }
    if code:
        found["last_words"] = (folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
    if (run / "manifest.json").exists():
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        found["steps"] = [
            {"name": s["name"], "status": s["status"], "seconds": s["seconds"]}
            for s in manifest["steps"]
            if s["name"] in ("stage1", "nsys", "ncu")
        ]
    if (run / "torch_profiler" / "metrics.json").exists():
        metrics = json.loads((run / "torch_profiler" / "metrics.json").read_text(encoding="utf-8"))
        found["timing_ms"] = {s["path"]: s["milliseconds"] for s in metrics["timing"]["stages"]}
    if (run / "report.json").exists():
        report = llm_perf_opt.load(run).data
        found["stages"] = stages(report)
        found["diagnostics"] = sorted({d.code for d in report.diagnostics})
    return found


def stages(report: NCUProfileRegionReport) -> list[dict[str, Any]]:
    """What the report says of each stage."""
    scope = report.main_scope
    rows = []
    for region in scope.regions if scope else []:
        found = region.performance
        if found is None or region.key not in {*report.stages, *with_formula(report)}:
            continue
        work = found.work
        rows.append(
            {
                "region": region.key,
                "instances": region.instances,
                "kernels": region.inclusive.kernel_count,
                "wall_ms": in_ms(found.time.wall),
                "busy_ms": in_ms(found.time.busy),
                "coverage": work.coverage,
                "formula_flop": amount(work.formula),
                "torch_counter_flop": amount(work.torch_counter),
                "tensor_cores_flop": sum(q.of("FLOP") for q in work.tensor.values()) if work.tensor else None,
                "counted_over_formula": work.counted_over_formula,
                "note": work.formula_note,
                "dram_bytes": amount(work.dram),
                "verdict": found.verdict.title,
                "kernel_verdict": found.gpu_verdict.title,
                "limit_over_now": found.speed_of_light.limit_over_now if found.speed_of_light else None,
            }
        )
    return rows


def with_formula(report: NCUProfileRegionReport) -> list[str]:
    scope = report.main_scope
    return [r.key for r in scope.regions if r.performance and r.performance.work.formula] if scope else []


def amount(quantity: Quantity | None) -> float | None:
    return None if quantity is None else quantity.value


def in_ms(quantity: Quantity | None) -> float | None:
    return None if quantity is None else round(quantity.of("s") * 1e3, 3)


def render(content: dict[str, Any]) -> str:
    """The results as a page."""
    gpus = ", ".join(f"{g['name']} (driver {g['driver_version']})" for g in content["gpus"])
    lines = ["# Models through the whole pipeline", "", f"{gpus} · made by `{content['made_by']}`"]
    for name, model in content["models"].items():
        lines += ["", f"## {name}", "", f"    {model['command']}", ""]
        steps = ", ".join(f"{s['name']} {s['seconds']} s ({s['status']})" for s in model.get("steps", []))
        lines += [f"{model['date']} · exit {model['exit_code']} after {model['seconds']} s: {steps}.", ""]
        if model.get("timing_ms"):
            lines += [
                "Without a profiler, mean of the timed passes:",
                "",
                "| stage | ms | ± | count |",
                "|---|---:|---:|---:|",
            ]
            for path, t in model["timing_ms"].items():
                lines.append(f"| `{path}` | {t['mean']:.3f} | {t['std'] or 0:.3f} | {t['count']} |")
            lines.append("")
        lines += [
            "| stage | kernels | wall | covered | formula | torch's counter | tensor cores | over formula | verdict | its kernels |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|---|",
        ]
        for row in model.get("stages", []):
            lines.append(
                f"| `{row['region']}` | {row['kernels']:,} | {number(row['wall_ms'], 'ms', 1)} | "
                f"{number(row['coverage'], '', 4)} | {tera(row['formula_flop'])} | {tera(row['torch_counter_flop'])} | "
                f"{tera(row['tensor_cores_flop'])} | {number(row['counted_over_formula'], '', 3)} | {row['verdict']} | "
                f"{row['kernel_verdict']} |"
            )
        lines += ["", *(f"- `{r['region']}`: {r['note']}" for r in model.get("stages", []) if r["note"])]
    return "\n".join(lines) + "\n"


def tera(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e12:.4f} TFLOP"


def number(value: float | None, unit: str, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f} {unit}".strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--out", required=True, help="where the results go, without the ending")
    parser.add_argument("--only", default="", help=f"models, comma separated: {', '.join(MODELS)}")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a model is interrupted")
    parser.add_argument("--work", help="folder for run directories (default: a temporary one)")
    given = parser.parse_args(arguments)
    out = Path(given.out).with_suffix(".json")
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"models": {}}
    content |= {
        "made_by": "python benchmarks/models.py",
        "gpus": [{k: g[k] for k in ("name", "driver_version")} for g in gpu_facts()],
    }
    folder = Path(given.work or tempfile.mkdtemp(prefix="models-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in given.only.split(",") if name] or list(MODELS)
    for name in chosen:
        found = measure(name, folder, given.limit)
        content["models"][name] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), **found}
        print(json.dumps(found, indent=1), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(render(content), encoding="utf-8")
    return int(any(content["models"][name]["exit_code"] for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
