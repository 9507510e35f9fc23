"""What counters of a whole LLM run cost and how right they are, measured on this machine's GPU.

    python benchmarks/bridge.py --out benchmarks/results/bridge-h200
    python benchmarks/bridge.py --out benchmarks/results/bridge-h200 --only alone,profile,truth

One program (a decoder of 3.2 billion parameters) is used by all parts but `ocr` and `graphs`. Results are written
after every part, and parts measured by an earlier call stay in the file, so that they can be spread over several
calls; a part that needs figures of another (`profile` that of `alone`) takes them from there. Parts:

  alone     the program by itself, twice; the second counts: the first has a cold file cache (`ocr` and `graphs` do the
            same). `profile` and `measured` run it once more at their end and are compared with the mean of both: one
            machine takes 11 to 15 s for the same program within two minutes. The ratios to either are told, too
  profile   `llm-perf profile --no-measure --level roofline`, from the command to the finished HTML and JSON
  measured  the same with the run of the program by itself that comes first; its times against the program's own clock
  truth     app-range replay of the same program with the same counters, against the estimates of `profile`
  recipe    the usual recipe (NVTX include, `--set roofline`, kernel replay) on 50 kernels, multiplied out
  steps64   `profile` with 64 decode steps instead of 16, once as it is and once with --run-to-end
  ocr       the same command on a model in the shape of DeepSeek-OCR-2, and that program by itself
  graphs    the same command on a decoder whose decode steps replay a CUDA graph, and that program by itself

and, only where named: `ocr_truth`, `graphs_truth`, as `truth` for those two; `long`, a program that decodes for about
three minutes, measured and profiled.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field

import llm_perf_opt
from llm_perf_opt.analysis.build import ReportOptions, build_report
from llm_perf_opt.metrics.catalogue import is_tensor_work, names_of
from llm_perf_opt.nsight.ncu.argv import NcuOptions, build_ncu_cmd
from llm_perf_opt.nsight.tools import find_ncu, find_nsys
from llm_perf_opt.planning.chosen_regions import cut, outermost
from llm_perf_opt.readers.open import read_recording
from llm_perf_opt.regions.libraries import is_library_range
from llm_perf_opt.regions.model import NCUProfileRegion, NCUProfileRegionReport
from llm_perf_opt.regions.traffic import SOURCE
from llm_perf_opt.rundir.directory import gpu_facts
from provenance import commit

REPOSITORY = Path(__file__).resolve().parents[1]
DECODER = REPOSITORY / "tests" / "recordings" / "programs" / "decoder.py"
# As many warm-up steps as are recorded, and in `steps64` the same: there only the recorded steps differ.
LONG = ["--layers", "8", "--prompt", "2048", "--steps", "3400"]  # every step has a length that attention plans for
SHAPE = ["--layers", "36", "--mlp", "11008", "--prompt", "2048", "--warmup", "16"]
STAGE1 = ["python", "-m", "llm_perf_opt.runners.llm_profile_runner", "run.mode=light", "repeats=1"]
PAGES = REPOSITORY / "datasets" / "omnidocbench" / "subsets" / "dev-3.txt"
OCR = [*STAGE1, "model=deepseek_ocr", "infer.max_new_tokens=17", f"dataset.subset_filelist={PAGES}"]
GRAPHS = [
    *STAGE1,
    "model=hf_causal_lm",
    "model.cuda_graphs=true",
    "infer.prompt_tokens=2048",
    "infer.max_new_tokens=17",
]
PARTS = ("alone", "profile", "measured", "truth", "recipe", "steps64", "ocr", "graphs")
EXTRA_PARTS = ("ocr_truth", "graphs_truth", "long")
SECONDS = {"alone": 120, "profile": 180, "measured": 180, "truth": 240, "recipe": 180, "steps64": 300, "long": 580}
SECONDS |= {"ocr": 240, "graphs": 240}
SECONDS_OF_EXTRA_PART = 240
RECIPE_KERNELS = 50
_LINES = 40  # of what a command said, kept
STAGE_TIMES = re.compile(r"prefill ([0-9.]+) ms, decode ([0-9.]+) ms")  # as the decoder prints them
PROGRESS = re.compile(r"^==PROF== Profiling .* - (\d+)(?: \(\d+/\d+\))?:")
DRAM = tuple(names_of(role)[0] for role in ("dram_read", "dram_write"))
L2 = names_of("l2")[0]


def decoder(steps: int = 16) -> list[str]:
    return ["python", str(DECODER), *SHAPE, "--steps", str(steps)]


@define
class Check:
    """One figure against the limit it must keep."""

    what: str
    value: float | None  # None: it could not be measured
    limit: float
    least: bool = False  # the limit is the least, not the most

    @property
    def good(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.least else self.value <= self.limit


@define
class Part:
    """What one part gave."""

    commands: list[str] = field(factory=list)
    seconds: float = 0.0
    figures: dict[str, Any] = field(factory=dict)
    checks: list[Check] = field(factory=list)
    failed: str = ""  # why, where it gave nothing
    last_words: list[str] = field(factory=list)
    commit: str = ""  # of the code that was measured, where it is known
    date: str = ""

    @property
    def good(self) -> bool:
        return not self.failed and all(check.good for check in self.checks)


class PartFailed(Exception):
    """A part cannot be measured."""


@define
class Ran:
    """How a command ended."""

    seconds: float
    code: int
    log: Path
    begun: dict[int, float] = field(factory=dict)  # when ncu began each kernel, in seconds since its start
    said: list[tuple[float, str]] = field(factory=list)  # each line, and when it came

    def words(self) -> list[str]:
        """The last it said."""
        return self.log.read_text(errors="replace").splitlines()[-12:]


@define
class Bench:
    """The measurements of one call."""

    work: Path  # run directories and logs
    out: Path | None
    about: dict[str, Any]
    nsys: str
    ncu: str
    commit: str = ""
    parts: dict[str, Part] = field(factory=dict)
    deadline: float = float("inf")  # on the monotonic clock
    limit: float = 0.0  # seconds of the part in hand
    now: Part = field(factory=Part)

    # -- running ----------------------------------------------------------------------------------

    def measure(self, name: str, seconds: float) -> None:
        """One part, from start to written result, whatever happens in it."""
        self.now = Part(commit=self.commit, date=datetime.now(UTC).isoformat(timespec="seconds"))
        self.limit = min(seconds, self.deadline - time.monotonic())
        say(f"== {name} (at most {self.limit:.0f} s)")
        started = time.monotonic()
        try:
            if self.limit <= 0:
                raise PartFailed("no time was left for it")
            HOW[name](self)
        except PartFailed as error:
            self.now.failed = str(error)
        except Exception as error:
            self.now.failed = f"{type(error).__name__}: {error}"
        self.now.seconds = round(time.monotonic() - started, 1)
        self.parts[name] = self.now
        for key, value in self.now.figures.items():
            say(f"   {key}: {json.dumps(value)[:600]}")
        for check in self.now.checks:
            say(f"   {'pass' if check.good else 'FAIL'}  {check.what}: {check.value} (limit {check.limit})")
        for line in [f"failed: {self.now.failed}"] * bool(self.now.failed) + self.now.last_words:
            say(f"   {line}")
        say(f"   {self.now.seconds} s")
        self.write()

    def run(self, argv: Sequence[str], name: str, *, cache: str = "", terminal: bool = False) -> Ran:
        """Run a command until it ends or the time of the part is over; `PartFailed` where it fails.

        `terminal`: it writes to one, so that its lines come when they are written and not in blocks.
        """
        self.now.commands.append(shown(argv, self.work))
        real = [sys.executable if word == "python" else word for word in argv]
        if real[0] == "llm-perf":
            real = [sys.executable, "-c", "from llm_perf_opt.cli.main import entry; entry()", *real[1:]]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), *python_path()])}
        if cache:
            # What earlier captures cost is kept in the cache: with one of its own every part plans alike.
            environment["XDG_CACHE_HOME"] = str(self.work / cache)
        ran = Ran(0.0, 0, self.work / f"{name}.log")
        reading, writing = os.openpty() if terminal else os.pipe()
        started = time.monotonic()
        child = subprocess.Popen(
            real,
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
        os.close(writing)
        reader = threading.Thread(target=keep, args=(reading, ran, started), daemon=True)
        reader.start()
        try:
            child.wait(self.limit)
        except subprocess.TimeoutExpired:
            end(child)
        ran.seconds, ran.code = round(time.monotonic() - started, 2), child.returncode
        reader.join(5)  # a process left behind would block it
        say(f"   {name}: exit {ran.code} after {ran.seconds} s")
        if ran.code:
            self.now.last_words = ran.words()
            over = f" (the {self.limit:.0f} s of this part were over)" if ran.seconds > self.limit else ""
            raise PartFailed(f"{name} ended with exit code {ran.code}{over}")
        self.limit -= ran.seconds
        return ran

    def figure(self, part: str, name: str) -> Any:
        """A figure of another part, measured now or by an earlier call."""
        found = self.parts[part].figures.get(name) if part in self.parts else None
        if found is None:
            raise PartFailed(f"it needs {name!r} of part {part}, which has not been measured")
        return found

    # -- parts ------------------------------------------------------------------------------------

    def program_alone(self, program: Sequence[str], name: str, times: int) -> float:
        seconds = [self.run(program, f"{name}-{turn}").seconds for turn in range(1, times + 1)]
        self.now.figures["alone_s"] = seconds[-1]
        self.now.figures["alone_runs_s"] = seconds
        return seconds[-1]

    def alone_after(self, part: str, program: Sequence[str]) -> float:
        """The program by itself once more, right after the command; the mean of that and of the run before it."""
        before, after = float(self.figure(part, "alone_s")), self.run(program, "alone-after").seconds
        ours = self.now.figures["profile_s"]
        self.now.figures["alone_after_s"] = after
        self.now.figures["times_alone_before_and_after"] = [round(ours / before, 2), round(ours / after, 2)]
        return (before + after) / 2

    def profile(self, program: Sequence[str], name: str, *options: str) -> NCUProfileRegionReport:
        """`llm-perf profile` of a program: how long, what it cost, what it covers."""
        run = self.work / f"run-{name}"
        shutil.rmtree(run, ignore_errors=True)
        argv = ["llm-perf", "profile", "--level", "roofline", *options, "--out", run.name, "--", *program]
        ran = self.run(argv, f"profile-{name}", cache=f"cache-{name}")
        missing = [f for f in ("report.html", "report.json") if not (run / f).exists()]
        if missing:
            raise PartFailed(f"there is no {' and no '.join(missing)}")
        report = llm_perf_opt.load(run).data
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
        steps = [s for s in manifest["steps"] if s["name"] in ("nsys", "ncu")]
        self.now.figures |= {
            "profile_s": ran.seconds,
            "timeline_s": sum(s["seconds"] for s in steps if s["name"] == "nsys"),
            "counters_s": round(sum(s["seconds"] for s in steps if s["name"] == "ncu"), 2),
            "steps_s": {s["name"]: s["seconds"] for s in manifest["steps"] if s["seconds"]},
            "said": ran.said[:_LINES],
            "captures": [
                {"name": c["name"], "launches": c["launches"], "predicted_s": c["seconds"], "why": c["why"]}
                for c in plan["captures"]
            ],
            "metrics": plan["captures"][0]["metrics"],
            "launches": plan["regions"]["launches"],
            "signatures": plan["regions"]["signatures"],
            "results": plan["predicted"]["results"],
            "stages": {r.key: stage_figures(r) for r in stages(report)},
            "diagnostics": sorted({d.code for d in report.diagnostics if d.severity != "info"}),
        }
        for region in stages(report):
            told = " ".join([f"kernel time covered in {region.key}", *(o for o in options if o != "--no-measure")])
            self.now.checks.append(Check(told, coverage(region), 0.9999, least=True))
        if not stages(report):
            raise PartFailed("the report has no stage with kernels")
        return report

    def compared(self, program: Sequence[str], name: str) -> None:
        """app-range replay of the stages of a profiled program, against what its report says of them."""
        run = self.work / f"run-{name}"
        if not (run / "report.json").exists():
            raise PartFailed(
                f"there is no run directory of part {name}: both parts go into one call, or --work is kept"
            )
        report = llm_perf_opt.load(run).data
        plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
        chosen = stages(report)
        truth = self.work / f"truth-{name}"
        truth.with_suffix(".ncu-rep").unlink(missing_ok=True)
        argv = build_ncu_cmd(
            truth.name,
            list(program),
            ncu=self.ncu,
            nvtx_expr=list(dict.fromkeys(r.nvtx_include for r in chosen)),
            options=NcuOptions(replay_mode="app-range", metrics=tuple(plan["captures"][0]["metrics"])),
        )
        ran = self.run(argv, f"truth-{name}")
        if not truth.with_suffix(".ncu-rep").exists():
            self.now.last_words = ran.words()
            raise PartFailed("ncu left no report")
        measured = build_report([read_recording(truth.with_suffix(".ncu-rep"))], ReportOptions()).main_scope
        by_key = {r.key: r for r in (measured.regions if measured else [])}
        self.now.figures |= {"app_range_s": ran.seconds, "passes": ran_passes(ran.log)}
        rows = []
        for region in chosen:
            if region.key not in by_key:
                raise PartFailed(f"app-range has no result of {region.key}, only of {', '.join(by_key) or 'nothing'}")
            rows += compare(region, by_key[region.key])
        self.now.figures["rows"] = rows
        for row in rows:
            if row["limit"] is not None:
                what = f"{row['counter']} of {row['stage']}, off by"
                off = None if row["ratio"] is None else round(abs(row["ratio"] - 1), 4)
                self.now.checks.append(Check(what, off, row["limit"]))

    def recipe(self) -> None:
        """The cost of one kernel with the usual recipe, and of all of them."""
        kernels = sum(stage["kernels"] for stage in self.figure("profile", "stages").values())
        include = [w for key in ("prefill", "decode") for w in ("--nvtx-include", f"LLM@{key}/")]
        (self.work / "recipe.ncu-rep").unlink(missing_ok=True)
        argv = [self.ncu, "--clock-control", "none", "--nvtx", *include, "--set", "roofline"]
        argv += ["--launch-count", str(RECIPE_KERNELS)]
        argv += ["--target-processes", "all", "-o", "recipe", *decoder()]
        ran = self.run(argv, "recipe", terminal=True)
        if not (self.work / "recipe.ncu-rep").exists():
            self.now.last_words = ran.words()
            raise PartFailed("ncu left no report")
        # Net of the program's start: from the first profiled kernel to the last one, which has not ended by then.
        begun = sorted(ran.begun.values())
        if len(begun) < RECIPE_KERNELS:
            raise PartFailed(f"ncu told of {len(begun)} kernels only")
        by_progress = (begun[-1] - begun[0]) / (len(begun) - 1)
        # This one still has ncu's own start in it.
        by_difference = (ran.seconds - self.figure("alone", "alone_s")) / len(begun)
        per_kernel = min(by_progress, by_difference)
        ours = self.figure("profile", "profile_s")
        self.now.figures |= {
            "recipe_s": ran.seconds,
            "kernels_profiled": len(begun),
            "per_kernel_by_progress_s": round(by_progress, 4),
            "per_kernel_by_difference_s": round(by_difference, 4),
            "kernels_of_both_stages": kernels,
            "recipe_in_all_s": round(per_kernel * kernels),
            "ours_s": ours,
        }
        self.now.checks.append(Check("times faster than the recipe", round(per_kernel * kernels / ours, 1), 300, True))

    def times_alone(self, alone: float, limit: float = 4) -> None:
        ratio = round(self.now.figures["profile_s"] / alone, 2)
        self.now.figures["times_alone"] = ratio
        self.now.checks.append(Check("wall time over the program's alone", ratio, limit))

    def own_times(self, name: str, report: NCUProfileRegionReport) -> None:
        """The stages of a measured run against what the program printed of them in that very run."""
        said = STAGE_TIMES.search((self.work / f"run-{name}" / "measure" / "workload.log").read_text(errors="replace"))
        if said is None:
            raise PartFailed("the program did not say how long its stages took")
        own = {"LLM@prefill": float(said[1]), "LLM@decode": float(said[2])}
        self.now.figures["own_ms"] = own
        for region in stages(report):
            if region.key in own and region.timing is not None:
                found = region.timing.steady.median_ns / 1e6
                self.now.checks.append(
                    Check(f"time of {region.key}, off by", round(abs(found / own[region.key] - 1), 4), 0.02)
                )

    # -- the result -------------------------------------------------------------------------------

    def write(self) -> None:
        if self.out is None:
            return
        self.out.parent.mkdir(parents=True, exist_ok=True)
        parts = {
            name: {
                **attrs.asdict(part),
                "checks": [{**attrs.asdict(check), "pass": check.good} for check in part.checks],
            }
            for name, part in self.parts.items()
        }
        content = {**self.about, "parts": parts}
        self.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self.out.with_suffix(".md").write_text(render(self.about, self.parts), encoding="utf-8")


def measure_alone(bench: Bench) -> None:
    bench.program_alone(decoder(), "alone", 2)
    said = STAGE_TIMES.search((bench.work / "alone-2.log").read_text(errors="replace"))
    if said is None:
        raise PartFailed("the program did not say how long its stages took")
    bench.now.figures["stages_ms"] = {"LLM@prefill": float(said[1]), "LLM@decode": float(said[2])}


def measure_profile(bench: Bench) -> None:
    undisturbed = bench.figure("alone", "stages_ms")
    bench.profile(decoder(), "decoder", "--no-measure")
    bench.times_alone(bench.alone_after("alone", decoder()), 3.5)
    # What nsys adds to a launch: a stage whose GPU waits for the host by less may not do so without nsys.
    bench.now.figures["nsys_us_per_launch"] = {
        key: round((stage["wall_ms"] - undisturbed[key]) / stage["kernels"] * 1e3, 1)
        for key, stage in bench.now.figures["stages"].items()
    }


def measure_measured(bench: Bench) -> None:
    report = bench.profile(decoder(), "measured")
    bench.times_alone(bench.alone_after("alone", decoder()))
    bench.own_times("measured", report)


def measure_long(bench: Bench) -> None:
    program = ["python", str(DECODER), *LONG]
    alone = bench.program_alone(program, "long-alone", 1)
    report = bench.profile(program, "long")
    bench.times_alone(alone, 1.8)
    bench.own_times("long", report)


def measure_steps64(bench: Bench) -> None:
    before = bench.figure("profile", "counters_s")
    bench.profile(decoder(64), "steps64-to-end", "--no-measure", "--run-to-end")
    whole = bench.now.figures["counters_s"]
    to_end = {f"{name}_run_to_end": bench.now.figures[name] for name in ("profile_s", "timeline_s", "counters_s")}
    bench.profile(decoder(64), "steps64", "--no-measure")
    ended = bench.now.figures["counters_s"]
    bench.now.figures |= {"counters_16_steps_s": before, "counters_run_to_end_over_16_steps": round(whole / before, 2)}
    bench.now.figures |= to_end
    bench.now.checks.append(Check("counter captures over those of 16 steps", round(ended / before, 2), 1.3))


def measure_ocr(bench: Bench) -> None:
    alone = bench.program_alone(OCR, "ocr-alone", 2)
    bench.profile(OCR, "ocr", "--no-measure")
    bench.times_alone(alone)


def measure_graphs(bench: Bench) -> None:
    alone = bench.program_alone(GRAPHS, "graphs-alone", 2)
    report = bench.profile(GRAPHS, "graphs", "--no-measure")
    bench.now.figures["graph_kernels"] = {r.key: r.graph_kernels for r in stages(report)}
    inside = sum(r.graph_kernels for r in stages(report))
    bench.now.checks.append(Check("kernels inside CUDA graphs", inside, 1, least=True))
    bench.times_alone(alone)


HOW: dict[str, Callable[[Bench], None]] = {
    "alone": measure_alone,
    "profile": measure_profile,
    "measured": measure_measured,
    "long": measure_long,
    "truth": lambda bench: bench.compared(decoder(), "decoder"),
    "recipe": Bench.recipe,
    "steps64": measure_steps64,
    "ocr": measure_ocr,
    "graphs": measure_graphs,
    "ocr_truth": lambda bench: bench.compared(OCR, "ocr"),
    "graphs_truth": lambda bench: bench.compared(GRAPHS, "graphs"),
}


# -- reading ---------------------------------------------------------------------------------------


def stages(report: NCUProfileRegionReport) -> list[NCUProfileRegion]:
    """The regions that make up the run, none inside another: what app-range can measure one by one."""
    outer = [r for r in outermost(report) if r.inclusive.kernel_count and r.nvtx_include and not is_library_range(r)]
    return cut(outer, report, repeated=False)


def coverage(region: NCUProfileRegion) -> float | None:
    """Share of the kernel time that the samples of a region speak for; bytes of the whole GPU need none."""
    metrics = region.inclusive.metrics
    sampled = [v.coverage for n, v in metrics.items() if n.endswith(".sum") and v.source != SOURCE]
    known = [value for value in sampled if value is not None]
    return min(known) if known and len(known) == len(sampled) and all(name in metrics for name in DRAM) else None


def stage_figures(region: NCUProfileRegion) -> dict[str, Any]:
    return {
        "kernels": region.inclusive.kernel_count,
        "gpu_time_ms": round((region.inclusive.gpu_time_ns or 0) / 1e6, 3),
        "wall_ms": round((region.wall_ns or 0) / 1e6, 3),
        "coverage": coverage(region),
        "metrics": {
            name: {"value": value.value, "samples": value.samples, "launches": value.launches, "spread": value.spread}
            for name, value in region.inclusive.metrics.items()
            if name.endswith(".sum")
        },
    }


def compare(estimated: NCUProfileRegion, measured: NCUProfileRegion) -> list[dict[str, Any]]:
    """Estimate against truth of one stage; `limit`: how far they may be apart, None where nothing is promised."""
    one, other = estimated.inclusive.metrics, measured.inclusive.metrics
    rows = []

    def row(counter: str, metrics: Sequence[str], limit: float | None) -> None:
        if not metrics or any(m not in one or m not in other for m in metrics):
            raise PartFailed(f"{counter} of {estimated.key} is missing in the estimate or in the truth")
        estimate, truth = (sum(values[m].value for m in metrics) for values in (one, other))
        ratio = estimate / truth if truth else None if estimate else 1.0  # a stage may have no tensor work at all
        spreads = [one[m].spread for m in metrics]
        rows.append(
            {
                "stage": estimated.key,
                "counter": counter,
                "estimate": estimate,
                "truth": truth,
                "ratio": ratio,
                "limit": limit,
                "spread": spreads[0] if len(spreads) == 1 else None,
                "samples": one[metrics[0]].samples,
                "launches": one[metrics[0]].launches,
                "source": one[metrics[0]].source,
            }
        )

    row("tensor operations", [m for m in one if is_tensor_work(m)], 0.01)
    row("DRAM bytes", DRAM, 0.05)
    row("L2 bytes", [L2], 0.05)
    row("DRAM read", DRAM[:1], None)
    row("DRAM written", DRAM[1:], None)
    return rows


def ran_passes(log: Path) -> int | None:
    """How many times app-range launched the program."""
    found = re.findall(r"Application replay pass (\d+)", log.read_text(errors="replace"))
    return max(map(int, found)) if found else None


def keep(source: int, ran: Ran, started: float) -> None:
    """Write a command's output to its log, and note when ncu began which kernel."""
    line = b""
    with ran.log.open("wb", buffering=0) as log:
        while True:
            try:
                block = os.read(source, 1 << 16)
            except OSError:  # a terminal nobody writes to any more
                block = b""
            if not block:
                break
            log.write(block)
            *whole, line = (line + block).split(b"\n")
            now = time.monotonic() - started
            ran.said += [(round(now, 2), text.decode("utf-8", "replace")[:120]) for text in whole if text.strip()]
            # The line of a kernel begins when its profiling begins, and ends with it.
            for text in (*whole, line):
                if found := PROGRESS.match(text.decode("utf-8", "replace")):
                    ran.begun.setdefault(int(found[1]), now)
    os.close(source)


# -- small things ----------------------------------------------------------------------------------


def end(child: subprocess.Popen[bytes]) -> None:
    """Ask a command to end with all it started, then make it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with_group(child, number)
        try:
            child.wait(20)
            return
        except subprocess.TimeoutExpired:
            continue


def with_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def python_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


def shown(argv: Sequence[str], work: Path) -> str:
    """A command as somebody else would type it."""
    words = []
    for word in argv:
        text = word.replace(f"{REPOSITORY}{os.sep}", "").replace(f"{work}{os.sep}", "")
        words.append(Path(text).name if text.startswith(os.sep) else text)
    return shlex.join(words)


def say(text: str) -> None:
    print(text, flush=True)


def package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def facts(nsys: str, ncu: str) -> dict[str, Any]:
    return {
        "made_by": "python benchmarks/bridge.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpus": [{k: g.get(k) for k in ("name", "driver_version")} for g in gpu_facts()],
        "tools": {
            "nsys": nsys,
            "ncu": ncu,
            "llm_perf_opt": llm_perf_opt.__version__,
            **{name: package(name) for name in ("torch", "transformers", "nvtx")},
        },
    }


def earlier(out: Path | None) -> dict[str, Part]:
    """Parts an earlier call has measured."""
    if out is None or not out.with_suffix(".json").exists():
        return {}
    found = json.loads(out.with_suffix(".json").read_text(encoding="utf-8")).get("parts", {})
    names = [f.name for f in attrs.fields(Part) if f.name != "checks"]
    return {
        name: Part(
            **{n: part[n] for n in names if n in part},
            checks=[Check(c["what"], c["value"], c["limit"], c["least"]) for c in part["checks"]],
        )
        for name, part in found.items()
    }


# -- the page --------------------------------------------------------------------------------------


def render(about: dict[str, Any], parts: dict[str, Part]) -> str:
    """The results as a page."""
    gpus = ", ".join(f"{g['name']} (driver {g['driver_version']})" for g in about["gpus"]) or "no GPU"
    tools = ", ".join(f"{name} {number}" for name, number in about["tools"].items() if number)
    lines = [
        "# Counters of a whole run: what they cost and how right they are",
        "",
        f"{about['date']} · {gpus} · {tools} · made by `{about['made_by']}`",
        "",
        "A decoder of 3.2 billion parameters with random weights (36 layers, hidden 2048, 16 heads, 8 of keys and",
        "values, MLP 11008, bf16, eager), prompt 2048, 16 decode steps, unless a part says otherwise.",
        *(
            [f"Parts that name a commit were measured with it. Of the others: {about['note']}"]
            if "note" in about
            else []
        ),
        "",
        "| part | what | value | limit | |",
        "|---|---|---:|---:|---|",
    ]
    for name, part in parts.items():
        for check in part.checks:
            value = "–" if check.value is None else f"{check.value:g}"
            limit = f"{'≥' if check.least else '≤'} {check.limit:g}"
            lines.append(f"| {name} | {check.what} | {value} | {limit} | {'pass' if check.good else '**fail**'} |")
        if part.failed:
            lines.append(f"| {name} | not measured: {part.failed} | – | – | **fail** |")
    for name, part in parts.items():
        measured = f" Measured {part.date} with commit {part.commit or '(unknown)'}." if part.date else ""
        lines += ["", f"## {name}", "", f"{part.seconds} s in all.{measured}", ""]
        lines += [f"    {command}" for command in part.commands]
        lines += ["", *details(part)]
    return "\n".join(lines) + "\n"


def details(part: Part) -> list[str]:
    """The figures of a part, small ones as a list, stages and counters as tables."""
    plain = {k: v for k, v in part.figures.items() if k not in ("rows", "stages", "captures", "metrics", "said")}
    lines = [f"- {name}: {value}" for name, value in plain.items()]
    for capture in part.figures.get("captures", []):
        lines.append(
            f"- capture: {capture['launches']} launches, {capture['predicted_s']} s predicted; {capture['why']}"
        )
    if part.figures.get("stages"):
        lines += ["", "| stage | kernels | GPU time, ms | covered |", "|---|---:|---:|---:|"]
        for key, stage in part.figures["stages"].items():
            covered = "–" if stage["coverage"] is None else f"{stage['coverage']:.2%}"
            lines.append(f"| `{key}` | {stage['kernels']:,} | {stage['gpu_time_ms']} | {covered} |")
    if part.figures.get("rows"):
        lines += ["", "| stage | counter | estimate / truth | truth | from |", "|---|---|---:|---:|---:|"]
        for row in part.figures["rows"]:
            ratio = "–" if row["ratio"] is None else f"{row['ratio']:.4f}"
            taken = f"{row['samples']} of {row['launches']} launches"
            if row.get("source") == SOURCE:
                taken = f"{row['samples']} samples of the GPU"
            lines.append(f"| `{row['stage']}` | {row['counter']} | {ratio} | {row['truth']:.4g} | {taken} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--out", help="where the results go, without the ending")
    parser.add_argument("--only", default="", help=f"parts, comma separated: {', '.join((*PARTS, *EXTRA_PARTS))}")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=S", help="another time limit for a part")
    parser.add_argument("--in-all", type=float, default=float("inf"), metavar="S", help="end after so many seconds")
    parser.add_argument("--commit", default=commit(), help="of the code that is measured, to be noted with every part")
    parser.add_argument("--work", help="folder for run directories and logs (default: a temporary one)")
    arguments = parser.parse_args()
    chosen = [name.strip() for name in arguments.only.split(",") if name.strip()] or list(PARTS)
    limits: dict[str, float] = {**dict.fromkeys(EXTRA_PARTS, SECONDS_OF_EXTRA_PART), **SECONDS}
    for text in arguments.limit:
        part, _, seconds = text.partition("=")
        limits[part] = float(seconds)
    if unknown := (set(chosen) | set(limits)) - {*PARTS, *EXTRA_PARTS}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts: {', '.join((*PARTS, *EXTRA_PARTS))}")
    nsys, ncu = find_nsys(), find_ncu()
    work = Path(arguments.work or tempfile.mkdtemp(prefix="bridge-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    out = Path(arguments.out).resolve() if arguments.out else None
    about = facts(nsys.version, ncu.version)
    if out is not None and out.with_suffix(".json").exists():  # what it says of parts that an earlier call measured
        about |= {k: v for k, v in json.loads(out.with_suffix(".json").read_text()).items() if k == "note"}
    bench = Bench(
        work,
        out,
        about,
        str(nsys.path),
        str(ncu.path),
        commit=arguments.commit,
        parts=earlier(out),
        deadline=time.monotonic() + arguments.in_all,
    )
    say(f"run directories and logs: {work}")
    compileall.compile_dir(Path(llm_perf_opt.__file__).parent, quiet=2)  # as pip does when it installs the product
    for name in chosen:
        bench.measure(name, limits[name])
    return int(not all(bench.parts[name].good for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
