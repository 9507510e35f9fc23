"""Runs the runners' commands of the contract on this machine's GPU and notes what each gave.

    python benchmarks/contract_commands.py [--only NAME,NAME] [--out benchmarks/results/contract-commands-<gpu>]

A command counts as good when it ends with the exit code it should and its run directory holds real numbers:
regions with kernels, and counters where they were asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

import llm_perf_opt
from llm_perf_opt.nsight.tools import find_ncu, find_nsys, library_path_for
from llm_perf_opt.rundir.directory import gpu_facts

DEEP, STAGE1 = (f"llm_perf_opt.runners.{name}" for name in ("deep_profile_runner", "llm_profile_runner"))
CLI = "pipeline.ncu.ncu_cli"
LIGHT = [
    "device=cuda:0",
    "pipeline.torch_profiler.enable=false",
    "pipeline.static_analysis.enable=false",
    "dataset.subset_filelist=datasets/omnidocbench/subsets/dev-3.txt",
    "dataset.sampling.num_epochs=1",
    "dataset.sampling.num_samples_per_epoch=1",
    "dataset.sampling.randomize=false",
    "infer.max_new_tokens=64",
]


@define
class Command:
    """One command and what is expected of it."""

    name: str
    argv: list[str]
    counters: bool = False  # a region must have some
    exit_code: int = 0


@define
class Result:
    """What a command gave."""

    name: str
    command: str
    exit_code: int
    seconds: float
    good: bool
    runs: list[dict[str, Any]] = field(factory=list)
    last_words: list[str] = field(factory=list)


def deep(*words: str) -> list[str]:
    return ["python", "-m", DEEP, "pipeline.ncu.enable=true", *words]


def commands(folder: Path, nsys: str, ncu: str) -> list[Command]:
    manifest = folder / "inputs.yaml"
    manifest.write_text("- prompt: Where does the time go?\n- prompt: And the bytes?\n", encoding="utf-8")
    stage1 = ["python", "-m", STAGE1]
    sections = f"{CLI}.sections=[SpeedOfLight,MemoryWorkloadAnalysis,Occupancy"
    llm = f"{CLI}.nvtx.include=LLM@*"
    decode = f"{CLI}.nvtx.include=decode*"
    exact = [f"{CLI}.kernel_name=my_exact_kernel_name", f"{CLI}.kernel_name_base=demangled"]
    matmul = [f"{CLI}.kernel_name=regex:.*matmul.*", f"{CLI}.kernel_name_base=demangled"]
    one_gemv = ["--kernel-name-base", "demangled", "--kernel-name", "regex:.*gemv.*"]
    one_gemv += ["--launch-skip", "2", "--launch-count", "1"]
    now = "hydra.run.dir=runs/nsys/${now:%Y%m%d-%H%M%S}"
    return [
        Command("range", deep(f"{CLI}.replay_mode=range", llm, f"{sections},SchedulerStats]"), counters=True),
        Command("app-range", deep(f"{CLI}.replay_mode=app-range", f"{CLI}.nvtx.include=prefill*"), counters=True),
        Command("kernel", deep(f"{CLI}.replay_mode=kernel", decode), counters=True),
        Command("exact-kernel", deep(llm, *exact)),
        Command("matmul-kernels", deep(decode, *matmul, f"{sections}]")),
        Command("nsys", [nsys, "profile", "--trace=cuda,osrt", "-o", "X", *stage1, now, *LIGHT]),
        Command("ncu", [ncu, "--target-processes", "all", *one_gemv, "-o", "Y", *stage1, *LIGHT]),
        Command(
            "manifest",
            [
                *stage1,
                "device=cuda:0",
                "repeats=1",
                "profiling.activities=[cpu,cuda]",
                "+run.mode=deep",
                f"+inputs.manifest={manifest}",
                "hydra.run.dir=runs/manifest",
                "hydra.job.chdir=true",
            ],
        ),
        Command(
            "torch-profiler-preset",
            [*stage1, "profiling=@profiling/torch/torch-profiler.min", "+run.mode=deep", "hydra.run.dir=runs/preset"],
        ),
        Command("sweep", ["python", "-m", DEEP, "-m", "run.mode=deep,light"], counters=True),
    ]


def look(run: Path) -> dict[str, Any]:
    """What a run directory holds, in a few numbers."""
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {
        "state": manifest["state"],
        "steps": {step["name"]: [step["status"], step["exit_code"], step["seconds"]] for step in manifest["steps"]},
        "files": sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file() and p.parent.parent == run),
    }
    if (run / "report.json").exists():
        report = llm_perf_opt.load(run).data
        scope = report.main_scope
        found["diagnostics"] = [d.code for d in report.diagnostics]
        found["regions"] = {
            r.key: {
                "instances": r.instances,
                "kernels": r.inclusive.kernel_count,
                "gpu_time_ms": None if r.inclusive.gpu_time_ns is None else round(r.inclusive.gpu_time_ns / 1e6, 3),
                "counters": len(r.inclusive.metrics),
                "sources": sorted({m.source for m in r.inclusive.metrics.values()}),
            }
            for r in (scope.regions if scope else [])
        }
    metrics = run / "torch_profiler" / "metrics.json"
    if metrics.exists():
        stages = json.loads(metrics.read_text(encoding="utf-8"))["timing"]["stages"]
        found["stage_timings_ms"] = {stage["path"]: round(stage["milliseconds"]["mean"], 3) for stage in stages}
    return found


def run_one(command: Command, base: Path, environment: dict[str, str], limit: float) -> Result:
    folder = base / command.name
    folder.mkdir()
    (folder / "datasets").symlink_to(Path(__file__).resolve().parents[1] / "datasets")
    started = time.monotonic()
    argv = [sys.executable if word == "python" else word for word in command.argv]
    with (folder / "output").open("w+b") as output:
        child = subprocess.Popen(argv, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            code = child.wait()
    seconds = round(time.monotonic() - started, 1)
    runs = [look(path.parent) for path in sorted(folder.rglob("manifest.json"))]
    counted = any(region["counters"] for run in runs for region in run.get("regions", {}).values())
    good = code == command.exit_code and (counted or not command.counters)
    if command.name in ("nsys", "ncu"):
        # ncu exits 0 and writes nothing where no kernel of that name runs: then it has to say so.
        nothing = "No kernels were profiled" in (folder / "output").read_text(errors="replace")
        good = good and (nothing or any(folder.glob("?.n*-rep")))
    words = [] if good else (folder / "output").read_text(errors="replace").splitlines()[-15:]
    text = re.sub(r"(?<=[\s=])/[^\s']*/", "", f" {shlex.join(command.argv)}").strip()  # no folders of this machine
    return Result(command.name, text, code, seconds, good, runs, words)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="names of commands, comma separated")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a command is interrupted")
    parser.add_argument("--out", default="", help="where the result goes, without the ending")
    parser.add_argument("--commit", default="", help="of the code that is run, to be noted in the result")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    nsys, ncu = find_nsys(), find_ncu()
    environment = dict(os.environ)
    if extra := library_path_for(nsys.path):
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([extra, environment.get("LD_LIBRARY_PATH", "")])
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_by": "python benchmarks/contract_commands.py",
        "commit": arguments.commit,
        "gpus": [{k: g[k] for k in ("name", "driver_version")} for g in gpu_facts()],
        "tools": {"nsys": nsys.version, "ncu": ncu.version, "llm_perf_opt": llm_perf_opt.__version__},
    }
    results: list[Result] = []
    lock = threading.Lock()

    def work(lane: list[Command]) -> None:
        for command in lane:
            result = run_one(command, folder, environment, arguments.limit)
            with lock:
                results.append(result)
                state = "good" if result.good else "BAD"
                print(f"{state}  {result.name}  exit {result.exit_code}  {result.seconds} s", flush=True)
                print("".join(f"    {line}\n" for line in result.last_words), end="", flush=True)
                if arguments.out:
                    write(Path(arguments.out), about, sorted(results, key=lambda r: names.index(r.name)))

    only = set(filter(None, arguments.only.split(",")))
    chosen = [c for c in commands(folder, str(nsys.path), str(ncu.path)) if c.name in only or not only]
    names = [c.name for c in chosen]
    # One profiler at a time, for nsys samples the GPU's counters too; what starts none runs at the same time.
    alone = ("manifest", "torch-profiler-preset")
    lanes = [[c for c in chosen if (c.name in alone) == which] for which in (False, True)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, lanes))
    return int(not all(result.good for result in results))


def write(out: Path, about: dict[str, Any], results: list[Result]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {**about, "commands": [asdict(result) for result in results]}
    out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(render(about, results), encoding="utf-8")


def render(about: dict[str, Any], results: list[Result]) -> str:
    """The result as a page."""
    gpus = ", ".join(f"{g['name']} (driver {g['driver_version']})" for g in about["gpus"])
    tools = ", ".join(f"{name} {version}" for name, version in about["tools"].items())
    lines = [
        "# The commands of the contract, run",
        "",
        f"{about['date']} · {gpus} · {tools} · made by `{about['made_by']}`, commit {about['commit'] or '(unknown)'}",
        "",
    ]
    lines += [
        "Commands that start a profiler ran one after another, the others at the same time: seconds are upper limits.",
        "",
    ]
    lines += ["| command | exit | seconds | regions with counters | from |", "|---|---|---|---|---|"]
    for result in results:
        regions = [r for run in result.runs for r in run.get("regions", {}).values() if r["counters"]]
        sources = sorted({source for r in regions for source in r["sources"]})
        cell = result.command.replace("|", "\\|")
        lines.append(f"| `{cell}` | {result.exit_code} | {result.seconds} | {len(regions)} | {', '.join(sources)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
