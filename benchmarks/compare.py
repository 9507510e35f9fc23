"""`llm-perf compare` on changes that were planted: is each found, sized and explained, and does noise raise an alarm?

    python benchmarks/compare.py --out benchmarks/results/compare-h200        on a GPU, with nsys: about four minutes
    python benchmarks/compare.py --out /tmp/x --from FOLDER                   again from what an earlier call recorded

One process of `programs/changed_decoder.py` runs all variants in turns under `llm-perf measure`, another one under
nsys; both recordings are split into one run directory a variant, whose blocks are its runs. So the times of a
comparison are those of one process. Then the same program is measured twice, three processes each, for what differs
between processes. Exit code 1: a change was not found, sized wrong, or something was found where nothing changed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.api.sides import open_side
from llm_perf_opt.comparing.collected import collect
from llm_perf_opt.comparing.comparison import Comparison
from llm_perf_opt.comparing.evaluation import compare
from llm_perf_opt.comparing.side import Side
from llm_perf_opt.readers.measured import read_measured
from llm_perf_opt.readers.open import MEASURED
from llm_perf_opt.regions.patterns import RegionFilter
from provenance import commit

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "changed_decoder.py"
LLM_PERF = [sys.executable, "-c", "from llm_perf_opt.cli.entry import entry; entry()"]
# Variant -> what was changed, the stage it is in, kinds of causes of which the first has to be one, a word of that.
CHANGES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "copy": ("one more copy a layer", "decode", ("launches", "new kernel", "new copy"), ""),
    "slow": ("a kernel 5 % slower", "prefill", ("slower kernel",), "planted"),
    "no_graph": ("the CUDA graph is gone", "decode", ("idle", "graph"), "graph"),
    "item": (".item() in the loop", "loop", ("idle",), "synchronisations"),
    "attention": ("attention by another back end", "prefill", ("replaced kernel", "new kernel"), ""),
    "batch5": ("batch 4 → 5", "prefill", ("more work",), ""),
}
BASE, SLOW3 = 20, 15  # blocks of the base, and of the step that is 3 % slower
RUNS = 5  # blocks a side
WITHIN = 0.2  # of the true change
PAIRS_ALIKE, PAIRS_SLOWER = 20, 10
TRACED = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
TRACED += ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")


def record(folder: Path, seconds: float) -> dict[str, Any]:
    """All that needs the GPU, into a folder; how long each part took. `seconds`: for all of it."""
    took, began = {}, time.time()
    blocks = ",".join([f"base={BASE}", f"slow3={SLOW3}", *(f"{name}={RUNS}" for name in CHANGES)])
    program = [sys.executable, str(PROGRAM), "--state", str(folder / "state.json")]
    run(
        [
            *LLM_PERF,
            "measure",
            "--quiet",
            "--out",
            folder / "all",
            "--",
            *program,
            "--times",
            folder / "times.json",
            "--blocks",
            blocks,
        ]
    )
    took["measure"] = time.time() - began
    few = ",".join(["base=2", *(f"{name}=2" for name in CHANGES)])
    trace = ["nsys", "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "--cuda-graph-trace=node"]
    run([*trace, "-f", "true", "-o", folder / "all", *program, "--blocks", few])
    run(
        [
            "nsys",
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            "-o",
            folder / "all.sqlite",
            folder / "all.nsys-rep",
        ]
    )
    (folder / "all.nsys-rep").unlink(missing_ok=True)
    took["nsys"] = time.time() - began - took["measure"]
    each = took["measure"]  # more than one process of a few blocks takes
    for side in ("first", "second"):
        if seconds - (time.time() - began) > 1.2 * 3 * min(each, 18):
            before = time.time()
            run(
                [
                    *LLM_PERF,
                    "measure",
                    "--quiet",
                    "--runs",
                    "3",
                    "--out",
                    folder / side,
                    "--",
                    *program,
                    "--blocks",
                    "base=2",
                ]
            )
            each = (time.time() - before) / 3
    took["processes"] = time.time() - began - took["measure"] - took["nsys"]
    return took


def run(command: list[Any]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")


# -- from one recording to one a variant -------------------------------------------------------------------


class Measured:
    """A measured process whose ranges `block:VARIANT:ROUND` are runs."""

    def __init__(self, file: Path) -> None:
        content = json.loads(file.read_text(encoding="utf-8"))
        (self.process,) = [p for p in content["processes"] if any("block:" in name for _, name in p["names"])]
        self.gpus = content["gpus"][0] if content["gpus"] else []
        names = [name for _, name in self.process["names"]]
        self.blocks: dict[str, list[list[list[int]]]] = {}
        outer = [(names[row[0]], row[2], row[3]) for row in self.process["rows"] if names[row[0]].startswith("block:")]
        inner = sorted(
            (row for row in self.process["rows"] if not names[row[0]].startswith("block:")), key=lambda r: r[2]
        )
        for name, start, end in sorted(outer, key=lambda block: block[1]):
            rows = [row for row in inner if start <= row[2] and row[3] <= end]
            self.blocks.setdefault(name.split(":")[1], []).append(rows)

    def write(self, file: Path, blocks: list[list[list[int]]]) -> Path:
        """A measured run of its own, each block a run."""
        facts = {name: self.process[name] for name in ("pid", "names", "uuids")}
        processes = [{"run": n, **facts, "once": [], "rows": rows} for n, rows in enumerate(blocks)]
        gpus = [self.gpus for _ in blocks]
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f'{MEASURED} "version": 2, "gpus": {json.dumps(gpus)}, "processes": {json.dumps(processes)}}}\n'
        file.write_text(text, encoding="utf-8")
        return file

    def side(self, folder: Path, blocks: list[list[list[int]]]) -> Side:
        timeline = read_measured(self.write(folder / "side.json", blocks))
        return collect([], [timeline], "side", RegionFilter())


def split_timeline(source: Path, target: Path, variant: str) -> Path:
    """The blocks of a variant, as if nothing else had been recorded."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    with closing(sqlite3.connect(target)) as db:
        text = "coalesce(r.text, (SELECT value FROM StringIds s WHERE s.id = r.textId))"
        blocks = db.execute(f"SELECT r.start, r.end, {text} FROM NVTX_EVENTS r WHERE {text} LIKE 'block:%'").fetchall()
        own = [(start, end) for start, end, name in blocks if name.split(":")[1] == variant]
        inside = " OR ".join(f"(start >= {start} AND start <= {end})" for start, end in own)
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in TRACED:
            if table in there:
                db.execute(f"DELETE FROM {table} WHERE NOT ({inside})")
        db.execute(f"DELETE FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND NOT ({inside})")
        db.execute(f"DELETE FROM NVTX_EVENTS AS r WHERE {text} LIKE 'block:%'")
        db.commit()
        db.execute("VACUUM")
    return target


# -- what is found -----------------------------------------------------------------------------------------


def true_change(times: dict[str, list[dict[str, float]]], variant: str, stage: str) -> tuple[float, float]:
    """Before and after, ns, by the program's own clock."""
    before, after = (statistics.median(block[stage] for block in times[name]) for name in ("base", variant))
    return 1e9 * before, 1e9 * after


def planted(folder: Path, measured: Measured, times: dict[str, Any]) -> list[dict[str, Any]]:
    sides = {}
    for variant in ("base", *CHANGES):
        place = folder / "runs" / variant
        measured.write(place / "measure" / "run.json", measured.blocks[variant][:RUNS])
        split_timeline(folder / "all.sqlite", place / "nsys" / "run.sqlite", variant)
        sides[variant] = open_side(place, quiet=True)
    rows = []
    for variant, (what, stage, kinds, word) in CHANGES.items():
        began = time.time()
        found = compare(sides["base"], sides[variant])
        region = found.region(stage)
        before, after = true_change(times, variant, stage)
        first = next((c for c in region.causes if (c.delta_ns > 0) == (region.delta_ns > 0)), None)
        others = [r.key for r in found.regions if r.key != stage and r.verdict in ("better", "worse")]
        error = region.delta_ns / (after - before) - 1 if after != before else None
        rows.append(
            {
                "variant": variant,
                "what": what,
                "stage": stage,
                "true_before_ns": before,
                "true_after_ns": after,
                "found_before_ns": region.before_ns,
                "found_after_ns": region.after_ns,
                "verdict": region.verdict,
                "interval": region.interval,
                "size_error": error,
                "first_cause": {"kind": first.kind, "what": first.what, "delta_ns": first.delta_ns} if first else None,
                "causes": [{"kind": c.kind, "what": c.what, "delta_ns": c.delta_ns} for c in region.causes[:6]],
                "adds_up_to": sum(c.delta_ns for c in region.causes),
                "exact": [{"what": e.what, "before": e.before, "after": e.after} for e in region.exact_changes],
                "sentence": found.sentences[0] if found.sentences else "",
                "others_changed": others,
                "notes": found.notes,
                "seconds": round(time.time() - began, 2),
                "found": region.verdict == "worse",
                "sized": error is not None and abs(error) <= WITHIN,
                "explained": first is not None and first.kind in kinds and word in first.what,
            }
        )
    return rows


def timed_on_gpu(block: list[list[int]]) -> bool:
    """Late in a long process few ranges are timed on the GPU; in a run of its own the first ones always are."""
    return {row[0] for row in block} == {row[0] for row in block if row[5] >= max(row[4], 0)}


def pairs(folder: Path, measured: Measured) -> dict[str, Any]:
    """Pairs in which nothing changed, and pairs in which the step is 3 % slower."""
    draw = random.Random(0)
    base, slower = (list(filter(timed_on_gpu, measured.blocks[variant])) for variant in ("base", "slow3"))

    def verdicts(found: Comparison) -> dict[str, str]:
        return {region.key: region.verdict for region in found.regions}

    alike, found = [], []
    for _ in range(PAIRS_ALIKE):
        chosen = draw.sample(base, 2 * RUNS)
        alike.append(compare(measured.side(folder, chosen[:RUNS]), measured.side(folder, chosen[RUNS:])))
    for _ in range(PAIRS_SLOWER):
        before, after = draw.sample(base, RUNS), draw.sample(slower, RUNS)
        found.append(compare(measured.side(folder, before), measured.side(folder, after)))
    one_run = [
        compare(measured.side(folder, [one]), measured.side(folder, [other]))
        for one, other in zip(base[::2], base[1::2], strict=False)
    ]
    return {
        "alike": [verdicts(one) for one in alike],
        "alarms": sum(one.verdict in ("better", "worse") for one in alike),
        "one_run_alarms": sum(one.verdict in ("better", "worse") for one in one_run),
        "one_run_pairs": len(one_run),
        "slower": [
            {
                "verdict": one.region("prefill").verdict,
                "change": one.region("prefill").change,
                "interval": one.region("prefill").interval,
            }
            for one in found
        ],
        "slower_found": sum(one.region("prefill").verdict == "worse" for one in found),
    }


def between_processes(folder: Path) -> dict[str, Any] | None:
    """Two times three processes of the same program."""
    if not (folder / "second").is_dir():
        return None
    found = compare(*(open_side(folder / name, quiet=True) for name in ("first", "second")))
    return {
        "verdict": found.verdict,
        "regions": [
            {"key": r.key, "verdict": r.verdict, "change": r.change, "interval": r.interval, "reason": r.reason}
            for r in found.regions
        ],
    }


def render(result: dict[str, Any]) -> str:
    lines = ["# `llm-perf compare` on planted changes", ""]
    lines += [
        f"Written by `python benchmarks/compare.py` on {result['date']}, {result['gpu']}; all figures are in the JSON beside it.",
        "",
    ]
    lines += [
        "| change | stage | true | found | error | verdict | first cause | found, sized, explained |",
        "|---|---|---:|---:|---:|---|---|---|",
    ]
    for row in result["planted"]:
        true, found = row["true_after_ns"] - row["true_before_ns"], row["found_after_ns"] - row["found_before_ns"]
        error = "–" if row["size_error"] is None else f"{100 * row['size_error']:+.1f} %"
        cause = row["first_cause"]["what"].replace("|", "\\|")[:120] if row["first_cause"] else "–"
        marks = ", ".join("yes" if row[what] else "**no**" for what in ("found", "sized", "explained"))
        cells = [
            row["what"],
            row["stage"],
            f"{true / 1e3:+,.1f} µs",
            f"{found / 1e3:+,.1f} µs",
            error,
            row["verdict"],
            cause,
            marks,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    both = result["pairs"]
    lines += ["", f"- {PAIRS_ALIKE} pairs in which nothing changed, {RUNS} runs a side: {both['alarms']} alarms."]
    lines.append(f"- {both['one_run_pairs']} such pairs with one run a side: {both['one_run_alarms']} alarms.")
    lines.append(
        f"- 3 % slower, a step of 40 ms, {RUNS} runs a side: found in {both['slower_found']} of {PAIRS_SLOWER}."
    )
    if result["processes"]:
        lines.append(f"- Twice three processes of the same program: {result['processes']['verdict']}.")
    lines += ["", "Runs are blocks of one process, in turns, but for the last line."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="result without its ending: OUT.json and OUT.md")
    parser.add_argument("--from", dest="folder", type=Path, help="what an earlier call recorded (--keep)")
    parser.add_argument("--keep", type=Path, help="folder to record into")
    parser.add_argument("--seconds", type=float, default=220.0, help="for all that needs the GPU")
    arguments = parser.parse_args()
    folder = arguments.folder or arguments.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    took = {} if arguments.folder else record(folder, arguments.seconds)
    measured = Measured(folder / "all" / "measure" / "run.json")
    times = json.loads((folder / "times.json").read_text())
    result: dict[str, Any] = {
        "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seconds": took,
        "recorded": "by an earlier call" if arguments.folder else "by this call",
    }
    result["gpu"] = measured.gpus[0]["name"] if measured.gpus else "a GPU"
    result["planted"] = planted(folder, measured, times)
    result["pairs"] = pairs(folder, measured)
    result["processes"] = between_processes(folder)
    result["true"] = {
        variant: {stage: statistics.median(b[stage] for b in blocks) for stage in blocks[0]}
        for variant, blocks in times.items()
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(render(result), encoding="utf-8")
    print(render(result))
    good = all(row["found"] and row["sized"] and row["explained"] for row in result["planted"])
    quiet = result["pairs"]["alarms"] == 0 and (result["processes"] or {}).get("verdict") not in ("better", "worse")
    return 0 if good and quiet and result["pairs"]["slower_found"] >= 0.9 * PAIRS_SLOWER else 1


if __name__ == "__main__":
    raise SystemExit(main())
