"""Runs the commands of the contract on this machine's GPU, and looks at what is in the reports they leave.

    python benchmarks/contract_commands.py --out benchmarks/results/contract-commands-h200
    python benchmarks/contract_commands.py --out … --only range,kernel
    python benchmarks/contract_commands.py --list

A part is good when its report holds what was asked for: regions with counters, the kernels of the filter, the numbers of
the one launch, values in their range (`contract_checks.py`). All parts take about half an hour one after another;
`--jobs` runs some at the same time, but counters are taken by one only (`one_at_a_time`): seconds are upper limits then.
A call begins no part that would not end `--within` its seconds, and the next call with the same file goes on with those
that are missing or bad; each part names its commit. Where there is only a copy of the tree, LLM_PERF_COMMIT is it.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

import contract_checks
import llm_perf_opt
from contract_parts import PARTS, Bench, Part
from llm_perf_opt.errors import UserError
from llm_perf_opt.nsight.tools import find_ncu, find_nsys, library_path_for
from llm_perf_opt.rundir.directory import gpu_facts
from provenance import commit

ROOT = Path(__file__).resolve().parents[1]
_LAST_LINES = 15
_LAST_WORDS_S = 60  # for a command that was interrupted to write what it has
_UNREADABLE = (UserError, OSError, ValueError, LookupError, TypeError)  # of a report that is not what it should be
_LAST_RESULTS = 8  # regions of a run that the result names


@define
class Outcome:
    """What a part gave."""

    name: str
    about: str
    command: str
    exit_code: int
    seconds: float
    problems: list[str]  # none: it is good
    commit: str = ""
    runs: list[dict[str, Any]] = field(factory=list)
    last_lines: list[str] = field(factory=list)


def look(run: Path) -> dict[str, Any]:
    """What a run directory holds, in a few numbers."""
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {
        "state": manifest["state"],
        "steps": {step["name"]: [step["status"], step["exit_code"], step["seconds"]] for step in manifest["steps"]},
    }
    with contextlib.suppress(UserError):  # a report of ncu that cannot be read is a problem of its part
        results = contract_checks.results_of(run)
        found["results_of_ncu"], found["passes"] = len(results), sorted({a.passes for a in results if a.passes})
    if (run / "report.json").exists():
        report = llm_perf_opt.load(run).data
        scope = report.main_scope
        found["diagnostics"] = sorted({d.code for d in report.diagnostics})
        having = [r for r in (scope.regions if scope else []) if r.inclusive.metrics]
        found["regions"] = len(scope.regions) if scope else 0
        found["regions_with_counters"] = {
            r.key: {
                "kernels": r.inclusive.kernel_count,
                "counters": len(r.inclusive.metrics),
                "sources": sorted({m.source for m in r.inclusive.metrics.values()}),
            }
            for r in having[:_LAST_RESULTS]
        }
    return found


def run_part(part: Part, bench: Bench, limit: float) -> Outcome:
    folder = bench.folder_of(part)
    started = time.monotonic()
    try:
        command = part.argv(bench)
    except (*_UNREADABLE, subprocess.SubprocessError) as error:  # it needs the name of a kernel
        return Outcome(part.name, part.about, "", -1, 0.0, [f"there is no command: {error}"], commit())
    argv = [sys.executable if word == "python" else word for word in command]
    with (folder / "output").open("w+b") as output:
        child = subprocess.Popen(
            argv, cwd=folder, env=bench.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                code = child.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                code = child.wait()
    runs = sorted(path.parent for path in folder.rglob("manifest.json") if "earlier" not in str(path))
    problems = list(checked(part, bench, folder, runs))
    lines = (folder / "output").read_text(errors="replace").splitlines()
    return Outcome(
        part.name,
        part.about,
        without_folders(shlex.join(command)),
        code,
        round(time.monotonic() - started, 1),
        [without_folders(problem) for problem in problems],
        commit(),
        [look(run) for run in runs],
        [without_folders(line) for line in lines[-_LAST_LINES:]] if problems or part.keeps_output else [],
    )


def checked(part: Part, bench: Bench, folder: Path, runs: list[Path]) -> Iterator[str]:
    """What is wrong with a part; a report that cannot even be looked at is the first of it."""
    try:
        yield from part.check(bench, folder, runs)
    except (*_UNREADABLE, subprocess.SubprocessError) as error:
        yield f"the result cannot be looked at: {type(error).__name__}: {error}"


def without_folders(text: str) -> str:
    """No folders of this machine."""
    return re.sub(r"(?<=[\s=\[,'])/[^\s',\]]*/", "", f" {text}")[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of parts, comma separated; they run even if they were good")
    parser.add_argument("--within", type=float, default=560, help="seconds in which the parts begun now are to end")
    parser.add_argument("--jobs", type=int, default=1, help="parts at the same time")
    parser.add_argument("--out", default="", help="where the result goes, without the ending")
    parser.add_argument("--work", help="folder for the runs (default: a temporary one)")
    parser.add_argument("--list", action="store_true", help="only print the parts")
    arguments = parser.parse_args()
    if arguments.list:
        print("".join(f"{part.name:<20} {part.seconds:>4} s  {part.about}\n" for part in PARTS), end="")
        return 0
    only = [name for name in arguments.only.split(",") if name]
    if unknown := set(only) - {part.name for part in PARTS}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; --list prints them")
    started = time.monotonic()
    nsys, ncu = find_nsys(), find_ncu()
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), environment.get("PYTHONPATH", "")]))
    if extra := library_path_for(nsys.path):
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([extra, environment.get("LD_LIBRARY_PATH", "")])
    work = Path(arguments.work or tempfile.mkdtemp(prefix="contract-")).resolve()
    if arguments.jobs > 1:
        tools = one_at_a_time(work, nsys.path, ncu.path)
        environment["PATH"] = os.pathsep.join([str(tools), environment["PATH"]])
    bench = Bench(work, str(nsys.path), str(tools / ncu.path.name if arguments.jobs > 1 else ncu.path), environment)
    about = {
        "made_by": "python benchmarks/contract_commands.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "gpus": [{k: g[k] for k in ("name", "driver_version")} for g in gpu_facts()],
        "tools": {"nsys": nsys.version, "ncu": ncu.version, "llm_perf_opt": llm_perf_opt.__version__},
    }
    results = earlier(arguments.out)
    good = {name for name, outcome in results.items() if not outcome.problems}
    writing = threading.Lock()

    def one(part: Part) -> None:
        left = arguments.within - (time.monotonic() - started)
        if part.seconds > left:
            print(f"left   {part.name}: about {part.seconds} s, and {left:.0f} s are left", flush=True)
            return
        outcome = run_part(part, bench, min((1 + arguments.jobs) * part.seconds + 30, left))
        lines = [f"{'BAD ' if outcome.problems else 'good'}   {part.name}  {outcome.seconds} s"]
        lines += [f"         {line}" for line in [*outcome.problems, *outcome.last_lines]]
        with writing:
            results[part.name] = outcome
            print("\n".join(lines), flush=True)
            if arguments.out:
                write(Path(arguments.out), about, ordered(results))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, [p for p in PARTS if (p.name in only if only else p.name not in good)]))
    return int(any(outcome.problems for outcome in results.values()) or len(results) < len(PARTS))


def one_at_a_time(work: Path, nsys: Path, ncu: Path) -> Path:
    """A folder with an ncu, and an nsys that samples the GPU, that run only when no other does: of two at once, one
    finds the counters of the GPU in use."""
    folder = work / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for tool, taking in ((ncu, '*" --target-processes "*'), (nsys, "*=help*) ;; *--gpu-metrics-*")):
        script, quoted = folder / tool.name, shlex.quote(str(tool))
        wait = f"exec flock -o {shlex.quote(str(work / 'counters.lock'))} {quoted}"
        script.write_text(
            f'#!/bin/sh\ncase " $* " in {taking}) {wait} "$@";; esac\nexec {quoted} "$@"\n', encoding="utf-8"
        )
        script.chmod(0o755)
    return folder


def earlier(out: str) -> dict[str, Outcome]:
    """Parts that another call has run."""
    file = Path(out).with_suffix(".json") if out else None
    content = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    known = {part.name for part in PARTS}
    return {raw["name"]: Outcome(**raw) for raw in content.get("results", []) if raw["name"] in known}


def ordered(results: dict[str, Outcome]) -> list[Outcome]:
    return [results[part.name] for part in PARTS if part.name in results]


def write(out: Path, about: dict[str, Any], results: list[Outcome]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {**about, "results": [asdict(outcome) for outcome in results]}
    out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(render(about, results), encoding="utf-8")


def render(about: dict[str, Any], results: list[Outcome]) -> str:
    """The result as a page."""
    gpus = ", ".join(f"{g['name']} (driver {g['driver_version']})" for g in about["gpus"])
    tools = ", ".join(f"{name} {version}" for name, version in about["tools"].items())
    good = sum(not outcome.problems for outcome in results)
    missing = [part.name for part in PARTS if part.name not in {outcome.name for outcome in results}]
    lines = [
        "# The commands of the contract, run",
        "",
        f"{about['date']} · {gpus} · {tools} · made by `{about['made_by']}`, commit {about['commit'] or '(unknown)'}",
        "",
        f"{good} of {len(results)} parts are good: what is in their reports was looked at, not how the commands ended."
        + (f" Not run: {', '.join(missing)}." if missing else ""),
        "",
        "| part | what is asked | seconds | regions with counters | from | commit | |",
        "|---|---|---:|---:|---|---|---|",
    ]
    for outcome in results:
        regions = [r for run in outcome.runs for r in run.get("regions_with_counters", {}).values()]
        sources = ", ".join(sorted({source for region in regions for source in region["sources"]})) or "–"
        state = "; ".join(outcome.problems).replace("|", "\\|") or "good"
        lines.append(
            f"| {outcome.name} | {outcome.about} | {outcome.seconds} | {len(regions)} | {sources} "
            f"| {outcome.commit} | {state} |"
        )
    for outcome in results:
        lines += ["", f"## {outcome.name}", "", f"    {outcome.command}"]
        lines += ["", *(f"    {line}" for line in outcome.last_lines)] if outcome.last_lines else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
